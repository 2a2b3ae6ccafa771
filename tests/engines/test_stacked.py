"""The stacked engine against the loop engine, which is the reference."""

import numpy as np
import pytest
import torch
from families import ADAPTIVE, CRITERIA, FAMILIES, LINEAR, OPTIMIZERS, build, data_for
from parity import ALL, assert_same, both, flat, net
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.aggregation import (
    BaseAggregator,
    CoordinateMedian,
    NormClipping,
    Scaffold,
    ServerOptimizer,
    WeightedMean,
)
from skfed.availability import Dropout, IndependentAvailability
from skfed.schedules import BaseSchedule, LinearDecay
from skfed.selection import BaseSelector, Cohort

# In float64, on ragged users


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("family", ["mlp", "gated"])
def test_each_optimizer_on_ragged_users(wisdm, family, optimizer):
    estimator = net(build(family, 43, 6), batch_size=32, **OPTIMIZERS[optimizer])
    selector = RandomSelector(clients_per_round=6)
    loop, stacked = both(wisdm, estimator, selector=selector, local_epochs=2)
    assert_same(loop, stacked)
    assert any(len({*cohort}) < 6 for cohort in loop.history_["cohort"])  # some train twice


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_on_ragged_users(wisdm, family):
    X, y, clients = wisdm
    estimator = net(build(family, 43, 6), batch_size=24, **OPTIMIZERS["momentum"])
    selector = RandomSelector(clients_per_round=5)
    loop, stacked = both((data_for(family, X), y, clients), estimator, selector=selector)
    assert_same(loop, stacked)
    assert stacked.engine_ == "stacked: " + ("linear layers" if family in LINEAR else "torch.func")


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("family", ["mlp", "gated"])
def test_each_criterion_on_ragged_users(wisdm, family, criterion):
    kind, options, ends = CRITERIA[criterion]
    options = {
        f"criterion__{k}": v.double() if torch.is_tensor(v) else v for k, v in options.items()
    }
    estimator = net(build(family, 43, 6, ends=ends), batch_size=32, criterion=kind, **options)
    selector = PowerOfChoice(d=9, clients_per_round=5)
    assert_same(*both(wisdm, estimator, selector=selector, local_epochs=2))


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", *ADAPTIVE])
@pytest.mark.parametrize("family", ["user-written", "gated"])
def test_float32_on_ragged_users(wisdm, family, optimizer):
    """Within 1e-5 of the weights for SGD's family, and 1e-3 of the way for adaptive optimizers,
    whose first step is the sign of the gradient, however small. Without ReLU: within rounding of
    its kink a row counts in one engine and not in the other, which Adam makes a whole step."""
    X, y, clients = wisdm
    module = build(family, 43, 6).float()
    start = flat(module)
    estimator = net(module, batch_size=32, **OPTIMIZERS[optimizer])
    selector = RandomSelector(clients_per_round=6)
    loop, stacked = both((X.astype("float32"), y, clients), estimator, selector=selector)
    mine, reference = flat(stacked.net_.module_), flat(loop.net_.module_)
    error = (mine - reference).norm()
    if optimizer in ADAPTIVE:
        assert error <= 1e-3 * (reference - start).norm()
    else:
        assert error <= 1e-5 * reference.norm()
    assert loop.history_["cohort"].equals(stacked.history_["cohort"])


# How clients are trained and polled


@pytest.mark.parametrize("family", ["mlp", "gated", "batch normalisation"])
@pytest.mark.parametrize(
    "params",
    [
        {"local_steps": 7},
        {"local_epochs": 3, "lr_schedule": 0.05},
        {"local_epochs": 3, "lr_schedule": lambda t: 0.1 / (t + 1)},
        {"local_steps": 5, "lr_schedule": LinearDecay(0.2, 0.01)},
        {"proximal_mu": 0.5, "local_epochs": 2},
        {"aggregator": CoordinateMedian()},
    ],
    ids=lambda params: " ".join(params),
)
def test_ways_to_train(ragged, family, params):
    estimator = net(build(family, 21, 6), batch_size=15)
    # What shifts all inputs of a normalisation alike does not change its outputs.
    assert_same(*both(ragged, estimator, **params), without=("0.bias",) * (family[0] == "b"))


class TheoremsRate(BaseSchedule):
    """A rate that falls with each epoch within a round."""

    def _at(self, round, n_rounds, step, n_steps):
        return 0.2 / (1 + round * n_steps + step)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("family", ["mlp", "gated"])
def test_a_rate_that_changes_with_each_epoch_of_clients_with_other_numbers_of_steps(
    ragged, family, optimizer
):
    estimator = net(build(family, 21, 6), **OPTIMIZERS[optimizer])
    loop, stacked = both(ragged, estimator, lr_schedule=TheoremsRate(), local_epochs=3)
    assert_same(loop, stacked)
    constant = both(ragged, estimator, lr_schedule=lambda t: 0.2 / (1 + 3 * t), local_epochs=3)[1]
    assert (flat(constant.net_.module_) - flat(stacked.net_.module_)).norm() > 0.01


@pytest.mark.parametrize("family", ["mlp", "gated"])
def test_scaffold(ragged, family):
    estimator = net(build(family, 21, 6), optimizer__weight_decay=0.01)
    loop, stacked = both(ragged, estimator, aggregator=Scaffold(), local_epochs=2)
    assert_same(loop, stacked)
    mine, reference = stacked._server, loop._server
    assert mine.variates.keys() == reference.variates.keys()
    known, expected = (np.isfinite(one.past.column("reported")) for one in (mine, reference))
    assert expected.any() and known.tolist() == expected.tolist()
    for name, c in reference.variate.items():
        torch.testing.assert_close(mine.variate[name], c, rtol=0, atol=1e-9)


class ThreefoldInTraining(nn.CrossEntropyLoss):
    """Three times the cross-entropy in training."""

    def forward(self, input, target):
        return (3 if self.training else 1) * super().forward(input, target)


@pytest.mark.parametrize("family", ["mlp", "gated"])
def test_a_criterion_that_differs_in_training(ragged, family):
    """Polls before each training leave the criterion in evaluation mode."""
    estimator = net(build(family, 21, 6), criterion=ThreefoldInTraining, lr=0.03)
    selector = PowerOfChoice(d=6, clients_per_round=3)
    loop, stacked = both(ragged, estimator, selector=selector)
    assert_same(loop, stacked)
    assert (loop.history_["train_loss"] > 2 * np.log(6)).all()


SELECTORS = {
    "pow-d": PowerOfChoice(d=6, clients_per_round=3, ignore_priority=True),
    "cpow-d": PowerOfChoice(d=6, clients_per_round=3, loss="batch", ignore_priority=True),
    "rpow-d": PowerOfChoice(d=6, clients_per_round=3, loss="reported", ignore_priority=True),
    "fedalign by loss": FedAlignSelector(eps=0.3, warmup=1),
    "fedalign by accuracy": FedAlignSelector(eps=0.3, warmup=1, match="accuracy"),
    "sampled fedalign": FedAlignSelector(eps=0.3, warmup=1, participation=0.5),
}


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("family", ["mlp", "convolutions"])
def test_polls_of_each_selector(ragged, family, selector):
    estimator = net(build(family, 21, 6))
    assert_same(*both(ragged, estimator, selector=SELECTORS[selector], priority=[1, 3, 5]))


class PollsBoth(BaseSelector):
    """Writes down losses and errors of all clients and of some rows."""

    def _select(self, round):
        everybody = np.arange(len(round.sizes))
        for metric in ("loss", "error"):
            ANSWERS.append(round.poll(everybody, metric=metric))
        ANSWERS.append(round.poll(everybody, max_samples=3))
        return Cohort.mean(everybody)


ANSWERS: list[np.ndarray] = []


@pytest.mark.parametrize("weight", [None, torch.arange(1.0, 7.0).double()])
@pytest.mark.parametrize("evaluation_batch", [4, 16, -1])
def test_answers_to_polls(ragged, weight, evaluation_batch):
    """Criteria with class weights average within each batch, so the batches must be the same."""
    ANSWERS.clear()
    estimator = net(
        build("mlp", 21, 6),
        criterion__weight=weight,
        iterator_valid__batch_size=evaluation_batch,
    )
    both(ragged, estimator, selector=PollsBoth(), n_rounds=2, memory_budget=2000)
    half = len(ANSWERS) // 2
    for loop, stacked in zip(ANSWERS[:half], ANSWERS[half:], strict=True):
        np.testing.assert_allclose(stacked, loop, rtol=1e-9)


class Midpoint(BaseAggregator):
    """A rule of the user's own, with the one method that it must have."""

    def _aggregate(self, model, updates, cohort, parameters):
        return {n: ((t.amax(0) + t.amin(0)) / 2).to(model[n].dtype) for n, t in updates.items()}


class Views(WeightedMean):
    """A rule that keeps all models, as views of what it is shown."""

    def collect(self, model, stack, weights, parameters):
        return dict(stack)

    def combine(self, model, parts, cohort, parameters):
        return Midpoint.combine(Midpoint(), model, parts, cohort, parameters)


@pytest.mark.parametrize(
    "params",
    [
        {"aggregator": Midpoint()},
        {"aggregator": Views()},
        {"aggregator": NormClipping(0.05)},
        {"server_optimizer": ServerOptimizer(torch.optim.Adam, lr=0.01)},
        {"availability": Dropout(0.4, IndependentAvailability(0.7))},
        {"selector": RandomSelector(4, probability="uniform", replace=True, weighting="unbiased")},
    ],
    ids=repr,
)
def test_other_rules_of_a_round(ragged, params):
    estimator = net(build("mlp", 21, 6), **OPTIMIZERS["momentum"])
    assert_same(*both(ragged, estimator, memory_budget=20_000, **params))


def freeze(module):
    module[0].weight.requires_grad_(False)
    return module


SETTINGS = {
    "one parameter group": {"optimizer__param_groups": [("*", {"weight_decay": 0.5})]},
    "maximize": {"optimizer__maximize": True, "lr": 0.01},
    "all rows a batch": {"batch_size": -1},
    "batches of one row": {"batch_size": 1},
    "batches of its own": {"iterator_train__batch_size": 7},
    "ignored target": {"criterion__ignore_index": 5, "batch_size": -1},
    "sums": {"criterion__reduction": "sum", "lr": 0.001},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("family", ["mlp", "gated"])
def test_settings_of_the_net(ragged, family, setting):
    X, y, clients = ragged
    y = y % 5 if setting == "ignored target" else y  # else a client with that target alone is NaN
    estimator = net(build(family, 21, 6), **SETTINGS[setting])
    data = X, np.where(np.arange(len(y)) % 9 == 0, 5, y), clients
    assert_same(*both(data, estimator, local_epochs=2))


def test_frozen_parameters_stay_as_they_are(ragged):
    module = freeze(build("mlp", 21, 6))
    loop, stacked = both(ragged, net(module, optimizer__weight_decay=0.1))
    assert_same(loop, stacked)
    assert torch.equal(stacked.net_.module_[0].weight, module[0].weight)


def test_images_through_convolutions():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 1, 6, 6)), np.arange(60) % 3
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)).double()
    data = X, y, rng.integers(0, 4, 60)
    assert_same(*both(data, net(module)))


# Random layers


def test_dropout_agrees_in_distribution(ragged):
    """Means over many seeds agree within their standard errors, for both ways to stack."""
    X, y, clients = ragged
    torch.manual_seed(0)
    stack = nn.Sequential(nn.Linear(21, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 6)).double()
    branches = nn.Sequential(stack, nn.LayerNorm(6)).double()  # not a stack of linear layers
    for module in (stack, branches):
        fits = {engine: [] for engine in ("loop", "stacked")}
        for engine, models in fits.items():
            for seed in range(25):
                model = FederatedClassifier(
                    net(module, batch_size=-1),
                    engine=engine,
                    selector=ALL,
                    n_rounds=1,
                    local_steps=2,
                    random_state=seed,
                ).fit(X, y, clients=clients)
                models.append(flat(model.net_.module_).numpy())
            assert len({m.tobytes() for m in models}) == 25  # other seeds, other masks
        means = [np.mean(models, axis=0) for models in fits.values()]
        variances = [np.var(models, axis=0, ddof=1) / 25 for models in fits.values()]
        z = (means[0] - means[1]) / np.sqrt(sum(variances) + 1e-20)
        moved = sum(variances) > 1e-14
        assert 0.7 < np.sqrt(np.mean(z[moved] ** 2)) < 1.3
        # Masks that clients shared would not average out over them.
        ratio = np.median(variances[1][moved] / variances[0][moved])
        assert 0.6 < ratio < 1.6


# Any module, optimizer and sizes


def draw_module(rng, n_features, n_classes):
    """Draw a stack of layers; with a normalisation or a residual branch it is not linear."""
    torch.manual_seed(int(rng.integers(1000)))
    layers, width = [], n_features
    for _ in range(rng.integers(0, 4)):
        following = int(rng.integers(2, 12))
        layers.append(nn.Linear(width, following, bias=bool(rng.integers(2))))
        width = following
        extras = [
            nn.Tanh(),
            nn.GELU(),
            nn.SiLU(),
            nn.Softplus(),
            nn.LayerNorm(width),
            nn.Identity(),
        ]
        layers += [extras[i] for i in rng.integers(len(extras), size=rng.integers(0, 3))]
    return nn.Sequential(*layers, nn.Linear(width, n_classes)).double()


@pytest.mark.parametrize("seed", range(20))
def test_drawn_modules_optimizers_and_client_sizes(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 30, rng.integers(2, 9))
    clients = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    X, y = rng.normal(size=(len(clients), 7)), rng.integers(0, 4, len(clients))
    y[:2] = 0, 3
    y = np.unique(y, return_inverse=True)[1]
    optimizer = str(rng.choice(list(OPTIMIZERS)))
    criteria = [{}, {"criterion__label_smoothing": 0.2}, {"criterion": CRITERIA["focal"][0]}]
    settings = criteria[rng.integers(3)] | {"batch_size": int(rng.choice([-1, 1, 3, 8, 12]))}
    module = draw_module(rng, 7, len(np.unique(y)))
    ways = [{"local_steps": int(rng.integers(1, 5))}, {"local_epochs": int(rng.integers(1, 4))}]
    params = ways[rng.integers(2)] | {"proximal_mu": float(rng.choice([0.0, 0.3]))}
    loop, stacked = both(
        (X, y, clients), net(module, **settings, **OPTIMIZERS[optimizer]), n_rounds=3, **params
    )
    # An adaptive optimizer makes a whole step of a gradient that is zero but for rounding.
    assert_same(loop, stacked, atol=1e-6 if optimizer in ADAPTIVE else 1e-9)


# On a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", ["mlp", "gated", "convolutions", "batch normalisation"])
@pytest.mark.parametrize("fits", [True, False], ids=["X moved once", "rows moved"])
def test_on_a_gpu(ragged, monkeypatch, family, fits):
    if not fits:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
    estimator = net(build(family, 21, 6), device="cuda", **OPTIMIZERS["momentum"])
    loop, stacked = both(ragged, estimator, selector=SELECTORS["pow-d"], local_epochs=2)
    assert_same(loop, stacked, atol=1e-7, without=("0.bias",) * (family[0] == "b"))

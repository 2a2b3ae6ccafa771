"""FedProx, SCAFFOLD, server optimizers and robust rules, alone and with each selector."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from joblib import parallel_config
from rules import COMPARED
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

from skfed import (
    ActiveFLSelector,
    FedAlignSelector,
    FederatedClassifier,
    PowerOfChoice,
    RandomSelector,
)
from skfed.aggregation import (
    CoordinateMedian,
    NormClipping,
    Scaffold,
    ServerOptimizer,
    TrimmedMean,
)
from skfed.availability import Dropout, IndependentAvailability
from skfed.schedules import LinearDecay
from skfed.selection import BaseSelector, Cohort

ALL = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.net_.module_.parameters()])


def fit(blobs, **params):
    X, y, clients = blobs
    params = {"selector": ALL, "n_rounds": 3, "random_state": 0, **params}
    return FederatedClassifier(**params).fit(X, y, clients=clients)


# FedProx


class Quadratic(nn.Module):
    """F(w) = h/2 (w - e)^2 with h = 2 and e = 5, whatever the data; the loss is read from the
    logits by QuadraticLoss."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0], dtype=torch.double))

    def forward(self, X):
        return self.w.expand(len(X), 2)


class QuadraticLoss(nn.Module):
    def forward(self, output, target):
        return (output[:, 0] - 5).square().mean()


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0, 8.0])
def test_fedprox_iterates_equal_the_closed_form(mu):
    """w <- w - lr (h (w - e) + mu (w - w_t)): with a = 1 - lr (h + mu), after tau steps from
    w_t the distance is w* - w_t = h (e - w_t) / (h + mu), times 1 - a^tau."""
    lr, h, e, tau = 0.05, 2.0, 5.0, 7
    net = NeuralNetClassifier(Quadratic, criterion=QuadraticLoss, lr=lr)
    X, y = np.zeros((4, 1)), [0, 1, 0, 1]
    model = FederatedClassifier(net, n_rounds=2, local_steps=tau, proximal_mu=mu)
    model.fit(X, y, clients=[0] * 4)
    w = 1.0
    for _ in range(2):
        w += h * (e - w) / (h + mu) * (1 - (1 - lr * (h + mu)) ** tau)
    assert weights(model).item() == pytest.approx(w, rel=1e-12)


def test_the_distance_travelled_falls_as_mu_grows(blobs):
    net = NeuralNetClassifier(nn.Linear, module__in_features=5, module__out_features=3,
                              criterion=nn.CrossEntropyLoss, lr=0.1)  # fmt: skip
    start = weights(fit(blobs, estimator=net, lr_schedule=0.0, n_rounds=1))
    distances = [
        (weights(fit(blobs, estimator=net, n_rounds=1, local_steps=20, proximal_mu=mu)) - start)
        .norm()
        .item()
        for mu in (0.0, 0.1, 1.0, 9.0)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.5 * distances[0]


def test_fedprox_with_mu_0_is_fedavg_bit_for_bit(blobs, same_model):
    plain = fit(blobs, local_steps=3)
    assert same_model(plain, fit(blobs, local_steps=3, proximal_mu=0.0))
    # So small a mu takes FedProx's own path, and rounds to nothing in float32. (The stacked
    # engine's step without it writes the product into the weights, which rounds otherwise.)
    loop = fit(blobs, local_steps=3, engine="loop")
    assert same_model(loop, fit(blobs, local_steps=3, proximal_mu=1e-60, engine="loop"))
    assert not same_model(fit(blobs, local_steps=3), fit(blobs, local_steps=3, proximal_mu=0.1))


# Server optimizers


def test_sgd_with_lr_1_is_plain_averaging_to_rounding(blobs):
    plain, server = fit(blobs), fit(blobs, server_optimizer=ServerOptimizer(lr=1.0))
    torch.testing.assert_close(weights(plain), weights(server), rtol=1e-5, atol=1e-7)


def test_momentum_by_hand(blobs):
    """FedAvgM: v <- 0.5 v + (w - aggregate), w <- w - v; with a learning rate of 0 on the
    clients from round 1 on, the aggregate is w itself and only v moves it."""
    options = {"momentum": 0.5}
    model = fit(
        blobs,
        server_optimizer=ServerOptimizer(torch.optim.SGD, lr=1.0, options=options),
        lr_schedule=lambda t: 0.01 if t == 0 else 0.0,
    )
    first = weights(fit(blobs, n_rounds=1, lr_schedule=0.01))
    torch.testing.assert_close(weights(model), first * (1 + 0.5 + 0.25), rtol=1e-5, atol=1e-7)


def test_adam_moves_by_its_learning_rate_at_first(blobs):
    model = fit(blobs, n_rounds=1, server_optimizer=ServerOptimizer(torch.optim.Adam, lr=0.1))
    torch.testing.assert_close(weights(model).abs(), torch.full((18,), 0.1), rtol=1e-2, atol=0)


def test_a_step_beyond_all_numbers_is_refused(blobs):
    huge = ServerOptimizer(torch.optim.SGD, lr=3e38)
    with pytest.raises(ValueError, match="not finite after round 0.*server_optimizer__lr"):
        fit(blobs, server_optimizer=huge, lr_schedule=100.0)


class FailsOnLargeX(nn.Linear):
    def forward(self, X):
        if self.training and X.max() > 500:
            raise RuntimeError("too large")
        return super().forward(X)


def test_a_step_beyond_all_numbers_is_named_where_a_client_fails_too(blobs):
    X, y, clients = blobs
    X = np.where(clients[:, None] == "a", 1e3, X)
    huge = ServerOptimizer(torch.optim.SGD, lr=3e38)
    with pytest.raises(ValueError, match="not finite after round 0.*server_optimizer__lr"):
        fit((X, y, clients), estimator=FailsOnLargeX(5, 3), server_optimizer=huge, lr_schedule=10.0)


def test_the_servers_learning_rate_is_searched_and_its_state_goes_on(blobs, same_model):
    X, y, clients = blobs
    adam = ServerOptimizer(torch.optim.Adam, lr=0.1)
    model = FederatedClassifier(server_optimizer=adam, selector=ALL, n_rounds=4, random_state=0)
    search = GridSearchCV(model, {"server_optimizer__lr": [0.01, 0.3]}, cv=2)
    search.fit(X, y, clients=np.arange(len(y)) % 4)
    assert search.best_params_ == {"server_optimizer__lr": 0.3}
    warm = FederatedClassifier(
        server_optimizer=adam, selector=ALL, n_rounds=2, warm_start=True, random_state=0
    ).fit(X, y, clients=clients)
    warm.set_params(n_rounds=4).fit(X, y, clients=clients)
    assert same_model(warm, model.fit(X, y, clients=clients))
    assert vars(adam) == vars(ServerOptimizer(torch.optim.Adam, lr=0.1))


def test_a_warm_start_takes_the_servers_new_learning_rate_and_optimizer(blobs):
    X, y, clients = blobs
    adam = ServerOptimizer(torch.optim.Adam, lr=0.1)
    model = fit(blobs, server_optimizer=adam, warm_start=True, n_rounds=2)
    before = weights(model)
    model.set_params(server_optimizer__lr=1e-6, n_rounds=3).fit(X, y, clients=clients)
    assert (weights(model) - before).abs().max() < 1e-5
    model.set_params(server_optimizer__optimizer=torch.optim.SGD, n_rounds=4)
    assert weights(model.fit(X, y, clients=clients)).isfinite().all()


@pytest.mark.parametrize(
    ("optimizer", "before", "after"),
    [
        (torch.optim.Adam, {}, {"amsgrad": True}),
        (torch.optim.RMSprop, {}, {"momentum": 0.5}),
        (torch.optim.RMSprop, {"momentum": 0.5}, {"momentum": 0.5, "centered": True}),
    ],
)
def test_a_warm_start_with_options_that_remember_more_begins_anew(
    blobs, same_model, optimizer, before, after
):
    """As a server optimizer that has remembered nothing."""
    X, y, clients = blobs
    server = ServerOptimizer(optimizer, lr=0.01, options=before)
    model = fit(blobs, server_optimizer=server, warm_start=True, n_rounds=2)
    other = pickle.loads(pickle.dumps(model))
    other._server.optimizer_state = None
    changed = {"server_optimizer__options": after, "n_rounds": 4}
    for one in (model, other):
        one.set_params(**changed).fit(X, y, clients=clients)
    assert same_model(model, other)


def test_a_warm_start_with_options_that_remember_as_much_goes_on(blobs, same_model):
    X, y, clients = blobs
    server = ServerOptimizer(torch.optim.Adam, lr=0.01, options={"amsgrad": True})
    model = fit(blobs, server_optimizer=server, warm_start=True, n_rounds=2)
    other = pickle.loads(pickle.dumps(model))
    other._server.optimizer_state = None
    for one in (model, other):
        one.set_params(server_optimizer__options={}, n_rounds=3).fit(X, y, clients=clients)
    assert not same_model(model, other)


# SCAFFOLD


def test_scaffold_on_identical_clients_is_fedavg_to_rounding(blobs):
    X, y, _ = blobs
    clients = np.repeat(list("abc"), len(y))
    data = np.tile(X, (3, 1)), np.tile(y, 3), clients
    net = NeuralNetClassifier(nn.Linear, module__in_features=5, module__out_features=3,
                              criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=-1)  # fmt: skip
    params = {"estimator": net, "local_epochs": 4, "n_rounds": 5}
    plain, scaffold = fit(data, **params), fit(data, aggregator=Scaffold(), **params)
    torch.testing.assert_close(weights(plain), weights(scaffold), rtol=1e-4, atol=1e-6)


class TwoQuadratics(nn.Module):
    """The loss of a row x is (w - x)^2 / 2, read from the logits by RowLoss."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.double))

    def forward(self, X):
        return torch.stack([self.w - X[:, 0], X[:, 0]], dim=1)


class RowLoss(nn.Module):
    def forward(self, output, target):
        return output[:, 0].square().mean() / 2


def test_scaffold_by_hand():
    """Clients at x = 0 and x = 4, full batches, lr 0.5, 2 steps, all weights 1/2.

    Round 0 (c = 0): a stays 0 with mean gradient 0; b goes 0 -> 2 -> 3, mean gradient -3. So
    w = 1.5, c_a = 0, c_b = -3, c = -1.5. Round 1: a steps with gradient w - 0 - 1.5 and stays at
    1.5; b with w - 4 + 3 - 1.5: 1.5 -> 2 -> 2.25. So w = 1.875.
    """
    net = NeuralNetClassifier(TwoQuadratics, criterion=RowLoss, lr=0.5, batch_size=-1)
    X, y, clients = np.array([[0.0], [0.0], [4.0], [4.0]]), [0, 1, 0, 1], list("aabb")
    model = FederatedClassifier(
        net, selector=ALL, aggregator=Scaffold(), n_rounds=1, local_steps=2, warm_start=True
    ).fit(X, y, clients=clients)
    assert weights(model).item() == pytest.approx(1.5)
    model.set_params(n_rounds=2).fit(X, y, clients=clients)
    assert weights(model).item() == pytest.approx(1.875)


class InTurn(BaseSelector):
    """b in round 0, a in round 1."""

    def _select(self, round):
        return Cohort.mean(np.array([1 - round.index]))


def test_scaffold_in_partial_participation_by_hand():
    """b goes 0 -> 2 -> 3 with c_b = -3, so c = -3 / 2 over both clients. Then a, with c_a = 0,
    steps by w - 0 - 1.5: 3 -> 2.25 -> 1.875."""
    net = NeuralNetClassifier(TwoQuadratics, criterion=RowLoss, lr=0.5, batch_size=-1)
    X, y, clients = np.array([[0.0], [0.0], [4.0], [4.0]]), [0, 1, 0, 1], list("aabb")
    model = FederatedClassifier(
        net, selector=InTurn(), aggregator=Scaffold(), n_rounds=2, local_steps=2
    ).fit(X, y, clients=clients)
    assert weights(model).item() == pytest.approx(1.875)


class Twice(BaseSelector):
    def _select(self, round):
        return Cohort.mean(np.array([0, 0, 1]))


def test_scaffold_of_a_client_drawn_twice_sends_one_variate_and_takes_two(blobs):
    history = fit(blobs, selector=Twice(), aggregator=Scaffold()).history_
    assert history["models_down"].tolist() == [2 + 2] * 3
    assert history["models_up"].tolist() == [3 + 3] * 3


def test_scaffold_keeps_variates_only_of_who_took_part_and_charges_for_them(blobs):
    selector = RandomSelector(clients_per_round=2, probability="uniform", replace=False)
    model = fit(blobs, selector=selector, aggregator=Scaffold(), n_rounds=2)
    plain = fit(blobs, selector=selector, n_rounds=2)
    took_part = set().union(*model.history_["cohort"])
    kept = model._server.variates
    assert all(kept.values()) and len(kept) == len(took_part) < 6
    assert model.history_["scalars_up"].equals(plain.history_["scalars_up"])
    models, plain_models = (h.assign(bytes_up=h["bytes_up"] - 8 * h["scalars_up"])
                            for h in (model.history_, plain.history_))  # fmt: skip
    for column in ("models_down", "models_up", "bytes_up"):
        assert (models[column] == 2 * plain_models[column]).all()
    # Variates have no scaling of columns: 5 x 3 weights and 3 biases.
    more = models["bytes_down"] - plain_models["bytes_down"]
    assert (more == plain_models["models_down"] * 4 * (5 * 3 + 3)).all()


def test_scaffold_removes_the_drift_of_skewed_clients():
    """With many local steps FedAvg's fixed point is off the optimum; SCAFFOLD's is not."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 60)
    X = rng.normal(size=(180, 5)) + np.eye(5)[y]
    clients = np.where(rng.random(180) < 0.9, y, rng.integers(0, 3, 180))
    net = NeuralNetClassifier(nn.Linear, module__in_features=5, module__out_features=3, lr=0.3,
                              criterion=nn.CrossEntropyLoss, batch_size=-1,
                              optimizer__weight_decay=0.1)  # fmt: skip
    params = {"estimator": net, "n_rounds": 150}
    data = X, y, clients
    optimum = weights(fit(data, **params, local_steps=1))
    fedavg = weights(fit(data, **params, local_steps=20))
    scaffold = weights(fit(data, **params, local_steps=20, aggregator=Scaffold()))
    assert (scaffold - optimum).norm() < 0.05 * (fedavg - optimum).norm()


def test_scaffold_without_a_step_keeps_its_variates(blobs):
    rates = lambda t: 0.0 if t == 1 else 0.1  # noqa: E731
    model = fit(blobs, aggregator=Scaffold(), lr_schedule=rates, n_rounds=2)
    one_round = fit(blobs, aggregator=Scaffold(), lr_schedule=0.1, n_rounds=1)
    torch.testing.assert_close(weights(model), weights(one_round))
    variates = model._server.variate
    assert variates.keys() == one_round._server.variate.keys()
    for name, c in one_round._server.variate.items():
        assert torch.equal(variates[name], c)
    assert weights(fit(blobs, aggregator=Scaffold(), lr_schedule=rates)).isfinite().all()


def test_nested_parameters_are_searched(blobs):
    X, y, _ = blobs
    model = FederatedClassifier(
        selector=FedAlignSelector(eps=LinearDecay(0.5), warmup=0),
        availability=Dropout(0.1, IndependentAvailability(0.9)),
        aggregator=TrimmedMean(0.1),
        n_rounds=2,
        random_state=0,
    )
    grid = {
        "selector__eps__start": [0.1, 1.0],
        "availability__availability__probability": [0.5, 1.0],
        "aggregator__trim": [0.0, 0.3],
    }
    search = GridSearchCV(model, grid, cv=2).fit(X, y, clients=np.arange(len(y)) % 4)
    assert len(search.cv_results_["params"]) == 8
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert model.selector.eps.start == 0.5


def test_corrections_reach_other_processes(blobs, same_model):
    params = {"aggregator": Scaffold(), "proximal_mu": 0.1, "local_steps": 3}
    with parallel_config(backend="loky"):
        processes = fit(blobs, n_jobs=2, **params)
    assert same_model(fit(blobs, **params), processes)


def test_a_pickled_model_goes_on_with_its_servers_state(blobs, same_model):
    X, y, clients = blobs
    params = {
        "aggregator": Scaffold(),
        "server_optimizer": ServerOptimizer(torch.optim.Adam, lr=0.1),
        "warm_start": True,
    }
    whole = fit(blobs, **params, n_rounds=4)
    half = pickle.loads(pickle.dumps(fit(blobs, **params, n_rounds=2)))
    assert same_model(whole, half.set_params(n_rounds=4).fit(X, y, clients=clients))


def test_scaffold_needs_plain_sgd(blobs):
    net = NeuralNetClassifier(nn.Linear, module__in_features=5, module__out_features=3,
                              criterion=nn.CrossEntropyLoss, optimizer__momentum=0.9)  # fmt: skip
    for estimator in (net, net.set_params(optimizer=torch.optim.Adam, optimizer__momentum=None)):
        with pytest.raises((ValueError, TypeError), match="SGD without momentum|momentum"):
            fit(blobs, estimator=estimator, aggregator=Scaffold())


# Each with each selector

COMBINATIONS = {
    "fedprox": {"proximal_mu": 0.1},
    "server adam": {"server_optimizer": ServerOptimizer(torch.optim.Adam, lr=0.01)},
    "scaffold": {"aggregator": Scaffold()},
    "median": {"aggregator": CoordinateMedian()},
    "trimmed mean": {"aggregator": TrimmedMean(0.2)},
    "clipping": {"aggregator": NormClipping(1.0)},
    "all at once": {
        "proximal_mu": 0.1,
        "aggregator": Scaffold(),
        "server_optimizer": ServerOptimizer(lr=0.5),
        "lr_schedule": lambda t: 0.1 / (t + 1),
    },
}
SELECTORS = [
    RandomSelector(clients_per_round=3, ignore_priority=True),
    RandomSelector(
        2, probability="uniform", replace=False, weighting="unbiased", ignore_priority=True
    ),
    PowerOfChoice(d=4, clients_per_round=2, ignore_priority=True),
    PowerOfChoice(d=4, clients_per_round=2, loss="batch", ignore_priority=True),
    PowerOfChoice(d=4, clients_per_round=2, loss="reported", ignore_priority=True),
    FedAlignSelector(eps=1.0, warmup=1),
    FedAlignSelector(eps=1.0, warmup=0, participation=0.5),
    ActiveFLSelector(clients_per_round=2, ignore_priority=True),
    *COMPARED,
]


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_each_with_each_selector_trains_and_repeats(blobs, same_model, selector, combination):
    params = {"selector": selector, "priority": ["a", "b", "c"], **COMBINATIONS[combination]}
    one, other = fit(blobs, **params), fit(blobs, **params)
    assert same_model(one, other)
    assert weights(one).isfinite().all()
    assert weights(one).any()
    pd.testing.assert_series_equal(one.history_["cohort"], other.history_["cohort"])

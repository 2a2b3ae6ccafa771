"""Frozen parameters, and buffers that training leaves alone, are sent once to each client."""

import copy

import numpy as np
import pytest
import torch
from parity import assert_same
from sklearn.base import clone
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

import skfed
from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.aggregation import CoordinateMedian, Scaffold, ServerOptimizer
from skfed.availability import Dropout
from skfed.contribution import LeaveOneOut
from skfed.devices import ConstantDevices
from skfed.inspection import participation_report
from skfed.metrics import client_exchanges
from skfed.privacy import GaussianMechanism

TWO = RandomSelector(clients_per_round=2, probability="uniform", replace=False)
ALL = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)


class Tuned(nn.Sequential):
    """A frozen layer of 35 numbers and a head of 24: 140 and 96 bytes."""

    def __init__(self, *between):
        super().__init__(nn.Linear(5, 7, bias=False), nn.ReLU(), *between, nn.Linear(7, 3))
        self[0].requires_grad_(False)


BACKBONE, HEAD = 140, 96


class LowRank(nn.Module):
    """A frozen linear layer with an adapter of rank 2: w + b a."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, layer.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, X):
        return self.layer(X) + X @ self.a.T @ self.b.T


def net(module=None, **params):
    module = Tuned() if module is None else module
    params = {"lr": 0.1, "batch_size": 8, **params}
    return NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, **params)


def fitted(blobs, module=None, **params):
    X, y, clients = blobs
    params = {"selector": TWO, "n_rounds": 5, "random_state": 0, **params}
    return FederatedClassifier(net(module), **params).fit(X, y, clients=clients)


def assert_equal(one, other):
    states = (model.net_.module_.state_dict() for model in (one, other))
    for mine, expected in zip(*(state.values() for state in states), strict=True):
        assert torch.equal(mine, expected)


def newcomers(history):
    """Return how many clients of each cohort are in it for the first time."""
    seen, counts = set(), []
    for cohort in history["cohort"]:
        counts.append(len(set(cohort) - seen))
        seen |= set(cohort)
    return np.array(counts)


def test_a_backbone_of_a_million_and_a_head_of_a_thousand_numbers():
    """By hand: 4 MB once a client, and 4 kB each way in each round."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(16, 10_000)).astype(np.float32), np.arange(16) % 10
    module = nn.Sequential(nn.Linear(10_000, 100, bias=False), nn.Linear(100, 10, bias=False))
    module[0].requires_grad_(False)
    model = FederatedClassifier(module, selector=TWO, n_rounds=4, random_state=0)
    model.set_params(devices=ConstantDevices(1e9, 1e6, 1e6, latency=0))
    history = model.fit(X, y, clients=np.arange(16) % 4).history_
    new = newcomers(history)
    assert 2 < new.sum() <= 4 and new[0] == 2
    assert history["bytes_down"].tolist() == (2 * 4_000 + new * 4_000_000).tolist()
    assert history["bytes_up"].tolist() == [2 * 4_000] * 4
    assert history["models_down"].tolist() == history["models_up"].tolist() == [2] * 4
    seconds = 0.008 + 4 / 1e9 + np.where(new, 4.0, 0)  # a row of each takes 1 ns
    np.testing.assert_allclose(history["seconds"], seconds)


def test_it_is_sent_with_a_poll_and_then_no_more(blobs):
    history = fitted(blobs, selector=PowerOfChoice(d=4, clients_per_round=2)).history_
    seen = set()
    for polled, n_bytes in zip(history["polled"], history["bytes_down"], strict=True):
        assert n_bytes == 4 * HEAD + len(set(polled) - seen) * BACKBONE
        seen |= set(polled)


def test_totals_and_exchanges_have_the_same_bytes(blobs):
    devices = ConstantDevices(10, 1e3, 1e3)
    model = fitted(blobs, devices=devices)
    report = participation_report(model)
    assert report["bytes_down"].sum() == model.history_["bytes_down"].sum()
    assert client_exchanges(model)["bytes_down"].sum() == model.history_["bytes_down"].sum()


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_by_hand_with_plain_torch(blobs, engine):
    X, y, clients = blobs
    module = Tuned()
    start = copy.deepcopy(module)
    model = FederatedClassifier(
        net(module, batch_size=-1), selector=ALL, n_rounds=5, engine=engine, random_state=0
    ).fit(X, y, clients=clients)
    sizes = np.array([np.sum(clients == k) for k in "abcdef"])
    for _ in range(5):
        heads = []
        for k in "abcdef":
            own = copy.deepcopy(start)
            rows = torch.from_numpy(np.flatnonzero(clients == k))
            loss = nn.CrossEntropyLoss()(own(torch.from_numpy(X)[rows]), torch.from_numpy(y)[rows])
            loss.backward()
            with torch.no_grad():
                heads.append([w - 0.1 * w.grad for w in own[-1].parameters()])
        for i, w in enumerate(start[-1].parameters()):
            w.data = sum(n * head[i] for n, head in zip(sizes, heads, strict=True)) / sizes.sum()
    for mine, expected in zip(model.net_.module_.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-6)
    assert torch.equal(model.net_.module_[0].weight, module[0].weight)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"aggregator": Scaffold()},
        {"aggregator": CoordinateMedian()},
        {"server_optimizer": ServerOptimizer(torch.optim.Adam, lr=0.01)},
        {"proximal_mu": 0.1, "selector": FedAlignSelector(eps=0.5), "priority": ["a", "b"]},
        {"update_privacy": GaussianMechanism(clip=1.0, noise_multiplier=0.1)},
        {
            "availability": Dropout(0.3),
            "contribution": LeaveOneOut(),
            "priority": ["a", "b"],
            "selector": RandomSelector(3, ignore_priority=True),
        },
    ],
    ids=lambda params: ", ".join(params) or "plain",
)
def test_engines_agree_and_what_is_frozen_stays(blobs, params):
    module = Tuned()
    loop, stacked = (fitted(blobs, module, engine=name, **params) for name in ("loop", "stacked"))
    assert_same(loop, stacked, atol=1e-6)
    assert loop.history_["bytes_down"].tolist() == stacked.history_["bytes_down"].tolist()
    assert torch.equal(loop.net_.module_[0].weight, module[0].weight)
    assert loop.history_["n_failed"].sum() == 0 or "availability" in params


def test_variates_are_of_what_trains(blobs):
    history = fitted(blobs, aggregator=Scaffold()).history_
    assert history["bytes_up"].tolist() == [2 * 2 * HEAD] * 5
    assert history["bytes_down"].tolist() == (4 * HEAD + newcomers(history) * BACKBONE).tolist()


def test_running_statistics_travel_and_those_that_are_kept_do_not(blobs):
    """Two means and variances of 7, two affine tensors, and a count of 8 bytes."""
    model = fitted(blobs, Tuned(nn.BatchNorm1d(7)), engine="loop", local_steps=2)
    assert model.history_["bytes_up"].tolist() == [2 * (HEAD + 4 * 28 + 8)] * 5
    default = fitted(blobs).set_params(estimator=None, engine="loop")
    X, y, clients = blobs
    history = default.fit(X, y, clients=clients).history_
    assert history["bytes_up"].tolist()[1:] == [2 * 18 * 4] * 4


def test_tied_weights_travel_once_and_stay_tied(blobs):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 5, bias=False)
            self.second = nn.Linear(5, 5, bias=False)
            self.second.weight = self.first.weight
            self.frozen, self.out = nn.Linear(5, 5), nn.Linear(5, 3)
            self.frozen.requires_grad_(False)

        def forward(self, X):
            return self.out(torch.tanh(self.frozen(self.second(torch.tanh(self.first(X))))))

    model = fitted(blobs, Tied())
    module, history = model.net_.module_, model.history_
    assert module.first.weight is module.second.weight
    assert history["bytes_up"].tolist() == [2 * 4 * (25 + 18)] * 5
    assert history["bytes_down"].sum() == 10 * 4 * 43 + newcomers(history).sum() * 4 * 30


def test_adapters_of_low_rank(blobs):
    base = nn.Linear(5, 3)
    model = fitted(blobs, LowRank(base))
    history, module = model.history_, model.net_.module_
    assert history["bytes_up"].tolist() == [2 * 4 * (10 + 6)] * 5
    assert torch.equal(module.layer.weight, base.weight) and (module.b != 0).any()


def test_adapters_of_peft(blobs):
    peft = pytest.importorskip("peft", reason="the adapters of peft are tested where it is")
    config = peft.LoraConfig(target_modules=["0"], modules_to_save=["2"], r=2)
    module = peft.get_peft_model(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), config)
    history = fitted(blobs, module).history_
    assert history["bytes_up"].tolist() == [2 * 4 * (10 + 14 + 24)] * 5
    assert history["n_failed"].sum() == 0


def unfrozen(model, blobs, requires_grad=True, **params):
    """Go on for three rounds after the backbone was unfrozen, or frozen."""
    X, y, clients = blobs
    model.net_.module_[0].requires_grad_(requires_grad)
    n_rounds = model.n_rounds_ + 3
    return model.set_params(warm_start=True, n_rounds=n_rounds, **params).fit(X, y, clients=clients)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_what_was_unfrozen_travels_and_when_frozen_again_once_more(blobs, engine):
    module = Tuned()
    model = unfrozen(fitted(blobs, module, selector=ALL, engine=engine), blobs)
    history = model.history_
    assert history["bytes_up"].tolist()[-3:] == [6 * (HEAD + BACKBONE)] * 3
    assert history["bytes_down"].tolist()[-3:] == [6 * (HEAD + BACKBONE)] * 3
    changed = model.net_.module_[0].weight.detach().clone()
    assert not torch.equal(changed, module[0].weight)
    history = unfrozen(model, blobs, requires_grad=False).history_
    assert history["bytes_down"].tolist()[-3:] == [6 * (HEAD + BACKBONE), 6 * HEAD, 6 * HEAD]
    assert torch.equal(model.net_.module_[0].weight, changed)


def test_what_has_not_changed_between_fits_is_not_sent_again(blobs, tmp_path):
    model = fitted(blobs, selector=ALL)
    skfed.save(model, tmp_path / "model.safetensors")
    loaded = skfed.load(clone(model), tmp_path / "model.safetensors")
    for one in (model, loaded):
        history = unfrozen(one, blobs, requires_grad=False).history_
        assert history["bytes_down"].tolist()[-3:] == [6 * HEAD] * 3


def test_a_run_that_is_resumed_sends_it_to_those_that_lack_it(blobs, tmp_path):
    from skfed.callbacks import RoundCallback

    class Stop(RoundCallback):
        def on_round_end(self, estimator, row):
            if row["round"] == 2:
                raise KeyboardInterrupt

    whole = fitted(blobs, n_rounds=6)
    X, y, clients = blobs
    params = {"selector": TWO, "n_rounds": 6, "random_state": 0, "checkpoint": tmp_path}
    module = whole.estimator.module
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="interrupted"):
        FederatedClassifier(net(module), **params).set_callbacks(Stop()).fit(X, y, clients=clients)
    resumed = FederatedClassifier(net(module), **params).fit(X, y, clients=clients)
    assert resumed.history_["bytes_down"].tolist() == whole.history_["bytes_down"].tolist()
    assert_equal(resumed, whole)


def test_jobs_give_the_same(blobs):
    module = Tuned()
    one, two = (fitted(blobs, module, engine="loop", n_jobs=n_jobs) for n_jobs in (None, 2))
    assert one.history_["bytes_down"].tolist() == two.history_["bytes_down"].tolist()
    assert_equal(two, one)


class Late(nn.Module):
    """Changes a buffer in its third pass of training alone."""

    def __init__(self):
        super().__init__()
        self.out, self.n = nn.Linear(5, 3), 0
        self.register_buffer("scale", torch.ones(3))

    def forward(self, X):
        if self.training:
            self.n += 1
            if self.n == 3:
                self.scale.mul_(2)
        return self.out(X) * self.scale


def test_a_buffer_that_changes_though_a_pass_leaves_it_alone_is_an_error(blobs):
    with pytest.raises(RuntimeError, match=r"training has changed module\.scale, .* in each such"):
        fitted(blobs, Late(), engine="loop", local_epochs=3, on_client_error="raise")


class Following(Callback):
    """Lets a buffer follow the weights, batch by batch."""

    def on_batch_end(self, net, **kwargs):
        net.module_.mean.lerp_(net.module_.weight.detach(), 0.1)


class Followed(nn.Linear):
    """Has the buffer."""

    def __init__(self):
        super().__init__(5, 3)
        self.register_buffer("mean", torch.zeros(3, 5))


def test_what_a_callback_of_the_users_changes_travels(blobs):
    X, y, clients = blobs
    of_batches = net(Followed(), callbacks=[("following", Following())])
    model = FederatedClassifier(of_batches, selector=ALL, n_rounds=2, on_client_error="raise")
    history = model.fit(X, y, clients=clients).history_
    assert history["bytes_up"].tolist() == [6 * 4 * (15 + 3 + 15)] * 2
    assert model.net_.module_.mean.any()


def test_a_net_of_which_all_is_frozen_has_nothing_to_train(blobs):
    with pytest.raises(ValueError, match=r"nothing to train, .* call requires_grad_\(\) of those"):
        fitted(blobs, nn.Linear(5, 3).requires_grad_(False))

"""Nets with buffers and frozen parameters of any dtype, on both engines and over many rounds."""

import numpy as np
import pytest
import torch
from torch import nn

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.aggregation import (
    BaseAggregator,
    CoordinateMedian,
    NormClipping,
    Scaffold,
    ServerOptimizer,
    TrimmedMean,
)

ALL = RandomSelector(1.0, "uniform", False)
UNBIASED = RandomSelector(0.5, "uniform", False, weighting="unbiased")
RULES = [None, NormClipping(0.1), CoordinateMedian(), TrimmedMean(), Scaffold()]
PHASES = torch.polar(torch.ones(6), torch.linspace(0.3, 1.1, 6))
LARGE = torch.tensor([2**53 + 1, 9223372036854775783])
MASK = torch.full((6, 6), -float("inf")).triu(1)


class Unusual(nn.Module):
    """Rotates its inputs, mixes them under a causal mask, and sums them up."""

    def __init__(self, phases=PHASES, trained=False):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("large", LARGE.clone())
        self.register_buffer("mask", MASK.clone())
        self.register_buffer("unset", torch.tensor([float("nan"), 1.0]))
        if phases is not None:
            self.phases = nn.Parameter(phases.clone(), requires_grad=trained)
            self.register_buffer("f", phases.clone())
        self.mixing = nn.Parameter(torch.randn(6, 6), requires_grad=False)
        self.out = nn.Linear(6, 2)

    def forward(self, X):
        if hasattr(self, "f"):
            X = (X * self.f * self.phases).real
        return self.out(X @ (self.mixing + self.mask).softmax(1).T)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 6)).astype(np.float32)
    return X, (X.sum(1) > 0).astype(int), np.repeat(["a", "b", "c", "d"], 6)


def bits(module):
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        n: t.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        for n, t in tensors.items()
    }


def changed(before, after):
    before, after = bits(before), bits(after)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("aggregator", RULES, ids=repr)
def test_constant_buffers_and_frozen_parameters_stay_bit_for_bit(data, engine, aggregator):
    model = FederatedClassifier(
        Unusual(), selector=ALL, n_rounds=2, engine=engine, aggregator=aggregator, random_state=0
    ).fit(*data)
    assert changed(Unusual(), model.net_.module_) == {"out.weight", "out.bias"}
    assert model.history_["n_failed"].sum() == 0


def test_constants_stay_under_every_way_to_move_the_model(data):
    for params in (
        {"selector": UNBIASED},
        {"server_optimizer": ServerOptimizer(torch.optim.Adam, lr=0.1)},
        {"proximal_mu": 0.1},
    ):
        params = {"selector": ALL, **params}
        model = FederatedClassifier(Unusual, n_rounds=2, random_state=0, **params).fit(*data)
        assert changed(Unusual(), model.net_.module_) == {"out.weight", "out.bias"}


def test_unusual_nets_are_the_same_on_both_engines(data):
    loop, stacked = (
        FederatedClassifier(
            Unusual, selector=ALL, n_rounds=3, local_epochs=2, engine=engine, random_state=0
        ).fit(*data)
        for engine in ("loop", "stacked")
    )
    assert stacked.engine_.startswith("stacked")
    torch.testing.assert_close(stacked.net_.module_.out.weight, loop.net_.module_.out.weight)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_unusual_nets_are_saved_and_resumed(data, tmp_path, dtype):
    module = Unusual(PHASES.to(dtype)).double()  # which keeps what is complex
    params = {"selector": ALL, "n_rounds": 2, "random_state": 0}
    model = FederatedClassifier(module, checkpoint=tmp_path / "runs", **params).fit(*data)
    again = FederatedClassifier(module, checkpoint=tmp_path / "runs", **params).fit(*data)
    model.save(tmp_path / "model")
    loaded = FederatedClassifier(module, **params).load(tmp_path / "model")
    assert loaded.net_.module_.f.dtype == dtype
    assert bits(again.net_.module_) == bits(loaded.net_.module_) == bits(model.net_.module_)


@pytest.mark.parametrize("kind", [FederatedClassifier, FederatedRegressor])
def test_a_trainable_complex_parameter_is_refused_by_name(data, kind):
    X, y, clients = data
    if kind is FederatedRegressor:
        y = X[:, :2]
    with pytest.raises(ValueError, match=r"phases.*complex64.*view_as_complex"):
        kind(Unusual(trained=True), selector=ALL).fit(X, y, clients=clients)


class Recording(nn.Module):
    """Has a buffer that training changes, to what it is given for the largest row seen."""

    def __init__(self, first, then):
        super().__init__()
        torch.manual_seed(0)
        self.then = then
        self.register_buffer("seen", torch.tensor(first))
        self.out = nn.Linear(6, 2)

    def forward(self, X):
        if self.training:
            value = torch.where(X.abs().amax() > 50, self.then, self.seen)
            self.seen.copy_(torch.where(self.seen.isfinite(), value, self.seen))
        return self.out(X)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_change_to_what_is_not_finite_makes_the_client_fail(data, engine):
    X, y, clients = data
    X = X.copy()
    X[clients == "b", 0] = 99.0
    infinite = torch.tensor([float("inf"), -float("inf"), 1.0])
    model = FederatedClassifier(
        Recording([1.0, -float("inf"), 1.0], infinite),
        selector=ALL,
        n_rounds=1,
        engine=engine,
        random_state=0,
    ).fit(X, y, clients=clients)
    (row,) = model.history_.to_dict("records")
    assert row["failed"] == ("b",)
    assert "not finite" in row["causes"][0]
    assert model.net_.module_.seen.tolist() == [1.0, -float("inf"), 1.0]


class Breaking(BaseAggregator):
    """A rule that makes an infinite buffer of finite ones."""

    def _aggregate(self, model, updates, cohort, parameters):
        mean = {name: tensor.mean(0) for name, tensor in updates.items()}
        return mean | {"module.seen": model["module.seen"] / 0}


def test_the_aggregates_buffers_are_checked(data):
    X, y, clients = data
    net = Recording([1.0, 2.0], torch.tensor([5.0, 6.0]))
    model = FederatedClassifier(net, selector=ALL, aggregator=Breaking(), n_rounds=1)
    with pytest.raises(ValueError, match=r"module\.seen.* not finite after round 0"):
        model.fit(100 * X, y, clients=clients)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_batch_normalisation_works_with_unbiased_weights(data, engine):
    X, y, clients = data
    spread = np.where(np.isin(clients, ["a", "b"]), 100, 1)[:, None]
    rows = np.r_[0:12, 12:14, 18:20]  # two of 6 and two of 2 rows: sums of q from 0.5 to 1.5
    module = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))
    model = FederatedClassifier(
        module, selector=UNBIASED, n_rounds=10, local_epochs=20, engine=engine, random_state=0
    ).fit((spread * X)[rows], y[rows], clients=clients[rows])
    norm = model.net_.module_[0]
    assert (norm.running_var > 0).all()
    assert norm.num_batches_tracked == 200  # an epoch is a batch
    assert np.isfinite(model.predict_proba(X)).all()


def test_a_group_that_does_not_move_stays_bit_for_bit(data):
    from skorch import NeuralNetClassifier

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    net = NeuralNetClassifier(
        module,
        criterion=nn.CrossEntropyLoss,
        lr=0.1,
        optimizer__param_groups=[("0.*", {"lr": 0.0})],
    )
    model = FederatedClassifier(net, selector=RandomSelector(3), n_rounds=3, random_state=0)
    fitted = model.fit(*data).net_.module_
    assert changed(module, fitted) == {"2.weight", "2.bias"}

"""Rates of a client's own, and gradients that are clipped: both engines, and by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from parity import ALL, net
from skorch import NeuralNetRegressor
from torch import nn

from skfed import FedAlignSelector, FederatedRegressor, RandomSelector
from skfed._federation import make_federation
from skfed.aggregation import BaseAggregator, Scaffold
from skfed.engines import (
    Batching,
    LocalTraining,
    StackedEngine,
    TrainRequest,
    make_engine,
)
from skfed.modules import LinearRegression
from skfed.nets import NetPool, by_member, get_state, parameter_names
from skfed.privacy import GaussianMechanism
from skfed.selection import Cohort

FACTORS = np.array([1.0, 0.5, 0.25, 1.0, 0.1, 0.75, 0.5, 0.9, 0.3])


def deep():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(21, 12), nn.ReLU(), nn.Linear(12, 6)).double()


def conv():
    torch.manual_seed(0)
    layers = nn.Unflatten(1, (1, 21)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(38, 6)
    return nn.Sequential(*layers).double()


class Kept(BaseAggregator):
    """Keeps the model of each client."""

    def _aggregate(self, model, stack, cohort, parameters):
        raise NotImplementedError


def train(engine, model_net, data, training, weights=None, **request):
    """Train every client once by an engine; return the request and the updates."""
    X, y, clients = data
    federation = make_federation(clients, len(X))
    batching = Batching(federation, 0, batch_size=16)
    pool = NetPool(model_net, X[:1])
    made, _ = make_engine(engine, pool, X, y, batching, 2**30, n_jobs=None, weights=weights)
    request = TrainRequest(
        round=0,
        state=get_state(model_net),
        parameters=parameter_names(model_net),
        cohort=Cohort.mean(np.arange(len(federation))),
        training=training,
        **{"aggregator": Kept(), **request},
    )
    return request, made.train(request)


def models(updates):
    """The models of all clients in a matrix, a row each."""
    rows = {}
    for members, stack in updates.parts:
        flat = torch.cat([by_member(tensor) for tensor in stack.values()], dim=1)
        rows |= dict(zip(members.tolist(), flat, strict=True))
    return torch.stack([rows[i] for i in sorted(rows)])


def variates(updates):
    """The new c_k of all clients in a matrix."""
    found = {
        i: torch.cat([tensor.flatten() for tensor in variate.values()])
        for report in updates.reports
        for i, variate in zip(report.members.tolist(), report.variates, strict=True)
    }
    return torch.stack([found[i] for i in sorted(found)])


def initialized(module, **settings):
    made = net(module, batch_size=16, **settings)
    return made.initialize()


def by_rate(rate=0.1, n=1, **settings):
    return LocalTraining(rates=((rate,),) * n, **settings)


def corrections(module):
    rng = np.random.default_rng(5)
    names = [f"module.{name}" for name, _ in module.named_parameters()]
    shapes = [tuple(w.shape) for w in module.parameters()]
    return [
        {
            name: torch.from_numpy(rng.normal(0, 0.1, shape))
            for name, shape in zip(names, shapes, strict=True)
        }
        for _ in FACTORS
    ]


TRAININGS = {
    "one epoch": by_rate(),
    "two epochs": LocalTraining(epochs=2, rates=((0.1,), (0.02,))),
    "steps": LocalTraining(steps=3, rates=((0.1,), (0.02,), (0.3,))),
    "proximal": by_rate(proximal_mu=0.5, n=2, epochs=2),
}
MODULES = {"linear layers": deep, "by torch.func": conv}


@pytest.mark.parametrize("max_norm", [None, 0.7])
@pytest.mark.parametrize("with_factors", [True, False])
@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize("module", MODULES)
def test_both_engines_train_the_same_models(module, name, with_factors, max_norm, ragged):
    model_net = initialized(MODULES[module]())
    training = replace(TRAININGS[name], max_norm=max_norm)
    factors = FACTORS if with_factors else None
    found = [
        models(train(engine, model_net, ragged, training, rate_factors=factors)[1])
        for engine in ("loop", "stacked")
    ]
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_norm", [None, 0.7])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_both_engines_train_the_same_variates(momentum, max_norm, ragged):
    model_net = initialized(deep(), optimizer__momentum=momentum)
    given = {"corrections": corrections(model_net.module_), "rate_factors": FACTORS}
    training = replace(TRAININGS["steps"], max_norm=max_norm)
    loop, stacked = (
        train(engine, model_net, ragged, training, **given)[1] for engine in ("loop", "stacked")
    )
    torch.testing.assert_close(models(loop), models(stacked), rtol=0, atol=1e-12)
    torch.testing.assert_close(variates(loop), variates(stacked), rtol=0, atol=1e-11)


@pytest.mark.parametrize("max_norm", [None, 0.7])
def test_rows_with_weights(max_norm, ragged):
    weights = np.random.default_rng(1).uniform(0, 1, len(ragged[0]))
    model_net, training = initialized(deep()), by_rate(max_norm=max_norm)
    given = {"weights": weights, "rate_factors": FACTORS}
    found = [
        models(train(engine, model_net, ragged, training, **given)[1])
        for engine in ("loop", "stacked")
    ]
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("memory_of", [1, 4, 9])
def test_a_member_keeps_its_factor_in_each_chunk(memory_of, ragged, monkeypatch):
    """Members are sorted by their steps, and cut into chunks."""
    asked = "stacked", initialized(deep()), ragged, by_rate()
    whole = models(train(*asked, rate_factors=FACTORS)[1])
    monkeypatch.setattr(StackedEngine, "_clients_a_chunk", lambda *args, **kw: memory_of)
    cut = models(train(*asked, rate_factors=FACTORS)[1])
    torch.testing.assert_close(cut, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_factor_of_a_half_is_half_the_rate(engine, ragged):
    """Of every client, over all of its steps."""
    model_net, n = initialized(deep()), len(FACTORS)
    factors = train(engine, model_net, ragged, by_rate(0.1), rate_factors=np.full(n, 0.5))[1]
    half = train(engine, model_net, ragged, by_rate(0.05))[1]
    torch.testing.assert_close(models(factors), models(half), rtol=0, atol=1e-12)


def line(engine, factor=None, **settings):
    """One step of w x + b from 0 by y = 3 at x = 2, at a rate of 0.1.

    The gradient of (w x + b - y)^2 is 2 (0 - 3) (2, 1) = (-12, -6), of norm 6 sqrt(5).
    """
    made = NeuralNetRegressor(LinearRegression(1).double(), batch_size=1).initialize()
    data = np.array([[2.0]]), np.array([[3.0]]), np.array(["a"])
    factors = None if factor is None else np.array([factor])
    _, updates = train(engine, made, data, by_rate(**settings), rate_factors=factors)
    return models(updates)[0].tolist()


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_one_step_by_hand(engine):
    assert line(engine) == pytest.approx([1.2, 0.6])
    assert line(engine, 0.5) == pytest.approx([0.6, 0.3])
    assert line(engine, max_norm=100.0) == pytest.approx([1.2, 0.6])  # longer than the gradient
    # To a norm of sqrt(5) the gradient becomes (-2, -1).
    assert line(engine, max_norm=5**0.5) == pytest.approx([0.2, 0.1])
    assert line(engine, 0.5, max_norm=5**0.5) == pytest.approx([0.1, 0.05])


SCENES = {"plain": {}, "steps": {"local_steps": 5}, "proximal": {"proximal_mu": 0.1}}
SCENES |= {"SCAFFOLD": {"aggregator": Scaffold()}, "weights": {}, "two epochs": {"local_epochs": 2}}


def rare():
    """Four clients; the flag is rare at a and b, which have priority, and frequent at c and d."""
    rng = np.random.default_rng(0)
    clients = np.repeat(list("abcd"), [150, 90, 70, 130])
    X = rng.normal(size=(440, 4))
    X[:, 3] = rng.random(440) < np.where(np.isin(clients, ["c", "d"]), 0.5, 0.004)
    X[3, 3] = 1
    return X, X @ [1, 1, 1, 3] + rng.normal(0, 0.3, 440), clients


def regressor(eps=np.inf, **params):
    given = {"selector": FedAlignSelector(eps=eps, warmup=0), "priority": ["a", "b"]}
    return FederatedRegressor(**given | {"n_rounds": 10, "random_state": 0} | params)


@pytest.mark.parametrize("scene", SCENES)
def test_a_column_that_is_rare_at_the_priority_clients(scene):
    X, y, clients = rare()
    weights = np.random.default_rng(1).uniform(size=len(y)) if scene == "weights" else None
    loop, stacked = (
        regressor(engine=engine, **SCENES[scene]).fit(X, y, clients=clients, sample_weight=weights)
        for engine in ("loop", "stacked")
    )
    assert loop.engine_.startswith("loop") and stacked.engine_.startswith("stacked")
    np.testing.assert_allclose(stacked.coef_, loop.coef_, atol=1e-4)
    np.testing.assert_allclose(stacked.intercept_, loop.intercept_, atol=1e-4)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_it_does_not_diverge(engine):
    X, y, clients = rare()
    model = regressor(n_rounds=100, engine=engine).fit(X, y, clients=clients)
    assert model.score(X, y) > 0.97
    assert model.history_["n_aggregated"].tolist() == [4] * 100


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_eps_0_is_the_priority_clients_alone(engine, same_model):
    X, y, clients = rare()
    align = regressor(eps=0, engine=engine).fit(X, y, clients=clients)
    rows = np.isin(clients, ["a", "b"])
    alone = FederatedRegressor(selector=ALL, n_rounds=10, random_state=0, engine=engine)
    alone.fit(X[rows], y[rows], clients=clients[rows])
    assert same_model(align, alone)
    assert align.history_["lr"].tolist() == alone.history_["lr"].tolist()


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_eps_inf_is_fedavg_over_all_clients(engine, same_model):
    X, y, clients = rare()
    align = regressor(engine=engine).fit(X, y, clients=clients)
    everybody = RandomSelector(1.0, "uniform", False, ignore_priority=True)
    averaged = regressor(selector=everybody, engine=engine).fit(X, y, clients=clients)
    assert same_model(align, averaged)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_private_fits_of_wild_rows_stay_finite(engine):
    """Nothing is known of columns whose deviations are 1e4 and of targets of 1e7."""
    rng = np.random.default_rng(0)
    X = rng.standard_t(1.5, size=(200, 4)) * 1e4
    privacy = GaussianMechanism(clip=1.0, noise_multiplier=0.01)
    model = FederatedRegressor(update_privacy=privacy, n_rounds=20, random_state=0, engine=engine)
    with pytest.warns(UserWarning) as caught:
        model.fit(X, X.sum(1) * 1e3, clients=np.arange(200) % 5)
    assert any("update_privacy is set" in str(one.message) for one in caught)
    assert np.isfinite(model.coef_).all() and np.isfinite(model.intercept_)
    assert model.history_["n_failed"].tolist() == [0] * 20
    # A local step of at most 1 / (n_features + 1); three batches of 40 rows.
    assert np.abs(model.coef_).max() <= 20 * 3 / 5

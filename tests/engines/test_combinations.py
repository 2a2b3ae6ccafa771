"""Evaluations of combinations of models: the stacked engine against states that are written."""

from contextlib import closing

import numpy as np
import pytest
import torch
from families import build
from joblib import parallel_config
from parity import net
from skorch import NeuralNetRegressor
from torch import nn

from skfed._federation import make_federation
from skfed.engines import Batching, CombinationsRequest, EvaluateRequest, make_engine
from skfed.engines._combinations import CombinationsEvaluation, combine, combined_states
from skfed.modules import SoftmaxRegression
from skfed.nets import NetPool, get_state

ROUND, N_MODELS = 3, 5
CLIENTS = np.array([4, 0, 7, 1])  # with 20, 2, 25 and 40 rows
SUBSETS = np.array([[0, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 1, 1, 1], [0, 1, 0, 0, 1.0]])
MEANS = SUBSETS / SUBSETS.sum(1, keepdims=True)
UNITS = np.eye(N_MODELS)
SHARES = np.array([0.0, 1.5, -0.25, 2.0, 0.4])
# w + sum of q_k (w_k - w): the rows sum to 1.
UNBIASED = SUBSETS * SHARES + np.outer(1 - SUBSETS @ SHARES, UNITS[0])
COEFFICIENTS = np.concatenate([UNITS[:1], MEANS, UNBIASED, UNITS[2:3]])


def models_like(state, scale=0.3, names=None, n_models=N_MODELS):
    """Return models around a state; what is no floating-point number is that of the state."""
    rng = torch.Generator().manual_seed(0)

    def near(w):
        noise = torch.randn(w.shape, generator=rng, dtype=torch.double)
        return w + (scale * noise).to(w.dtype) if w.is_floating_point() else w

    return {
        name: torch.stack([near(w) for _ in range(n_models)])
        for name, w in state.items()
        if names is None or name in names
    }


def engine_for(kind, data, estimator, weights=None, memory_budget=2**30, n_jobs=1):
    """Return an engine, and the state of the net."""
    X, y, clients = data
    initialized = estimator.initialize()
    batching = Batching(make_federation(clients, len(y)), 0, batch_size=16)
    net_pool = NetPool(initialized, X[:1])
    engine, _ = make_engine(kind, net_pool, X, y, batching, memory_budget, n_jobs, weights)
    return engine, get_state(initialized)


def request_for(state, coefficients=COEFFICIENTS, models=None, metric="loss", clients=CLIENTS):
    models = models_like(state) if models is None else models
    return CombinationsRequest(ROUND, state, models, coefficients, clients, metric)


def evaluate(kind, data, estimator, *, weights=None, memory_budget=2**30, n_jobs=1, **request):
    """Return the replies of an engine."""
    engine, state = engine_for(kind, data, estimator, weights, memory_budget, n_jobs)
    with closing(engine):
        return engine.evaluate_combinations(request_for(state, **request))


def assert_same(data, estimator, rtol=1e-9, **request):
    """Assert that both engines have the same values, all finite; return those of the stacked."""
    loop, stacked = (evaluate(kind, data, estimator, **request) for kind in ("loop", "stacked"))
    assert stacked.values.shape == loop.values.shape
    np.testing.assert_allclose(stacked.values, loop.values, rtol=rtol)
    assert np.isfinite(stacked.values).all()
    assert stacked.n_samples.tolist() == loop.n_samples.tolist()
    assert not stacked.raised
    return stacked


@pytest.fixture
def works(monkeypatch):
    """Return a list of the works that combine outputs instead of weights, as they run."""
    ran = []
    run = CombinationsEvaluation.run

    def watch(self, load):
        ran.append(self)
        return run(self, load)

    monkeypatch.setattr(CombinationsEvaluation, "run", watch)
    return ran


# What a combination is


def test_a_combination_by_hand():
    stack = torch.tensor([[1.0, 2.0], [3.0, -4.0], [5.0, 8.0]])
    rows = np.array([[0.5, 0.5, 0.0], [-1.0, 0.0, 2.0]])
    assert combine(stack, rows).tolist() == [[2.0, -1.0], [9.0, 14.0]]


def test_sums_are_in_float64():
    stack = torch.tensor([2.0**24, 1.0, 1.0, -(2.0**24)])
    assert combine(stack, np.ones((1, 4))).tolist() == [2.0]


def test_unit_vectors_give_a_models_own_tensors():
    """Also -0.0, and integers that float64 has not."""
    stack = torch.tensor([[-0.0, 1.1], [torch.inf, torch.nan]])
    assert combine(stack, np.eye(2)).view(torch.int32).equal(stack.view(torch.int32))
    whole = torch.tensor([2**60 + 1, 7])
    assert combine(whole, np.eye(2)[[1, 0]]).tolist() == [7, 2**60 + 1]


def test_large_tensors_are_combined_in_parts(monkeypatch):
    monkeypatch.setattr("skfed.engines._combinations._VALUES_A_SUM", 18)
    stack = torch.randn(5, 3, 7)
    rows = np.random.default_rng(0).normal(size=(4, 5))
    expected = torch.einsum("ji,iab->jab", torch.from_numpy(rows), stack.double())
    torch.testing.assert_close(combine(stack, rows), expected.float())


def test_what_models_lack_is_that_of_the_state():
    state = {"a": torch.ones(2), "b": torch.zeros(1)}
    request = request_for(state, MEANS[:1], {"a": torch.arange(10.0).view(5, 2)})
    (written,) = combined_states(request)
    assert list(written) == ["a", "b"]
    assert written["a"].tolist() == [5.0, 6.0]
    assert written["b"] is state["b"]


@pytest.mark.parametrize("kind", ["loop", "stacked"])
def test_unit_vectors_are_polls_of_a_models_state(ragged, kind):
    """Bit for bit in the loop."""
    X, y, clients = ragged
    data = X.astype("float32"), y, clients
    engine, state = engine_for(kind, data, net(build("mlp", 21, 6).float()))
    models = models_like(state)
    with closing(engine):
        values = engine.evaluate_combinations(request_for(state, UNITS, models)).values
        for i in range(N_MODELS):
            own = {name: stack[i] for name, stack in models.items()}
            polled = engine.evaluate(EvaluateRequest(ROUND, own, CLIENTS)).values
            np.testing.assert_allclose(values[:, i], polled, rtol=0 if kind == "loop" else 1e-6)


# Both engines


@pytest.mark.parametrize("metric", ["loss", "error"])
@pytest.mark.parametrize("family", ["softmax regression", "mlp", "user-written"])
def test_linear_layers(ragged, works, family, metric):
    assert_same(ragged, net(build(family, 21, 6)), metric=metric)
    assert works


@pytest.mark.parametrize("family", ["gated", "convolutions", "batch normalisation", "recurrent"])
def test_other_modules_are_written(ragged, works, family):
    """The buffers of a normalisation are among the models', and one is a number of batches."""
    estimator = net(build(family, 21, 6))
    _, state = engine_for("stacked", ragged, estimator)
    names = [name for name, w in state.items() if w.is_floating_point()]
    models = models_like(state, names=names)
    models = {n: w.abs() + 0.1 if "running_var" in n else w for n, w in models.items()}
    rows = np.concatenate([UNITS[:1], MEANS])  # variances of the others may be negative
    assert_same(ragged, estimator, coefficients=rows, models=models)
    assert not works


def test_integers_with_unit_vectors(ragged):
    estimator = net(build("batch normalisation", 21, 6))
    _, state = engine_for("stacked", ragged, estimator)
    models = models_like(state, scale=0.01)
    assert not all(w.is_floating_point() for w in models.values())
    assert_same(ragged, estimator, coefficients=UNITS[[2, 0]], models=models)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_regressors(ragged, works, n_outputs):
    X, _, clients = ragged
    X = X.astype("float32")
    torch.manual_seed(0)
    estimator = NeuralNetRegressor(
        nn.Sequential(nn.Linear(21, 4), nn.Tanh(), nn.Linear(4, n_outputs)), batch_size=16
    )
    assert_same((X, X[:, :n_outputs].copy(), clients), estimator, rtol=1e-5)
    assert works


CRITERIA = {
    "class weights": {"criterion__weight": torch.arange(1.0, 7.0).double()},
    "ignored target": {"criterion__ignore_index": 5},
    "smoothed": {"criterion__label_smoothing": 0.1},
    "sums": {"criterion__reduction": "sum"},
    "log p": {"criterion": nn.NLLLoss},
    "small batches": {"criterion__weight": torch.ones(6).double(), "batch_size": 3},
}


@pytest.mark.parametrize("criterion", CRITERIA)
def test_criteria(ragged, works, criterion):
    X, y, clients = ragged
    y = np.where(np.arange(len(y)) % 2, y % 5, y)  # no client has the ignored target alone
    ends = (nn.Softmax(dim=-1),) if criterion == "log p" else ()
    assert_same((X, y, clients), net(build("mlp", 21, 6, ends=ends), **CRITERIA[criterion]))
    assert works


def test_rows_with_weights(ragged, works):
    weights = np.random.default_rng(0).random(len(ragged[1]))
    for metric in ("loss", "error"):
        assert_same(ragged, net(build("mlp", 21, 6)), weights=weights, metric=metric)
    assert works


def test_layers_that_models_share(ragged, works):
    """What is before the first layer that differs is evaluated once, also a standardisation."""
    estimator = net(SoftmaxRegression(21, 6, standardize=True).double())
    _, state = engine_for("stacked", ragged, estimator)
    weights = [name for name, w in state.items() if w.dim() == 2]
    assert_same(ragged, estimator, models=models_like(state, names=weights))
    mlp = net(build("mlp", 21, 6))
    _, state = engine_for("stacked", ragged, mlp)
    for names in (["module.0.bias"], ["module.2.weight"], ["module.2.bias", "module.4.weight"]):
        assert_same(ragged, mlp, models=models_like(state, names=names))
    assert works


def test_a_buffer_that_layers_use_is_written(ragged, works):
    estimator = net(SoftmaxRegression(21, 6, standardize=True).double())
    _, state = engine_for("stacked", ragged, estimator)
    buffers = [name for name, w in state.items() if w.shape == (21,)]
    assert len(buffers) == 2
    models = {n: w.abs() + 0.5 for n, w in models_like(state, names=buffers).items()}
    assert_same(ragged, estimator, coefficients=MEANS, models=models)
    assert not works


def test_float32(ragged, works):
    X, y, clients = ragged
    data = X.astype("float32"), y, clients
    assert_same(data, net(build("mlp", 21, 6).float()), rtol=1e-5)
    assert works


def test_a_model_that_overflows_counts_only_where_it_has_a_part(ragged):
    """Its outputs are infinite, and 0 times infinity is NaN."""
    X, y, clients = ragged
    data, estimator = (X.astype("float32"), y, clients), net(build("mlp", 21, 6).float())
    _, state = engine_for("stacked", data, estimator)
    models = models_like(state)
    models["module.0.weight"][4] = 3e38
    without = COEFFICIENTS[:, 4] == 0
    loop, stacked = (
        evaluate(k, data, estimator, models=models).values for k in ("loop", "stacked")
    )
    np.testing.assert_allclose(stacked[:, without], loop[:, without], rtol=1e-5)
    assert np.isfinite(stacked[:, without]).all()
    assert not np.isfinite(stacked).all()


# Who evaluates how many


def test_few_combinations_of_many_models_are_written_once(ragged, works):
    values = assert_same(ragged, net(build("mlp", 21, 6)), coefficients=MEANS).values
    assert works
    assert all(len(work.layers.models["module.0.weight"]) == len(MEANS) for work in works)
    many = evaluate("stacked", ragged, net(build("mlp", 21, 6))).values
    np.testing.assert_allclose(values, many[:, 1:5], rtol=1e-9)


@pytest.mark.parametrize("kind", ["loop", "stacked"])
@pytest.mark.parametrize("rows", [0, 1])
def test_none_or_one_combination(ragged, kind, rows):
    found = evaluate(kind, ragged, net(build("mlp", 21, 6)), coefficients=MEANS[:rows])
    assert found.values.shape == (4, rows)
    assert found.n_samples.tolist() == [20, 2, 25, 40]


@pytest.mark.parametrize("kind", ["loop", "stacked"])
def test_no_client(ragged, kind):
    found = evaluate(kind, ragged, net(build("mlp", 21, 6)), clients=np.array([], dtype=int))
    assert found.values.shape == (0, len(COEFFICIENTS))
    assert not found.n_samples.size


def test_one_row_a_client(ragged):
    X, y, _ = ragged
    data = X[:9], y[:9] % 6, np.arange(9)
    assert_same(data, net(build("mlp", 21, 6)))


def test_a_client_that_is_listed_twice(ragged):
    clients = np.array([1, 1, 0])
    values = assert_same(ragged, net(build("mlp", 21, 6)), clients=clients).values
    np.testing.assert_allclose(values[0], values[1], rtol=1e-12)


@pytest.mark.parametrize("budget", [1, 4000, 60_000])
@pytest.mark.parametrize("criterion", ["smoothed", "sums", "class weights"])
def test_the_memory_budget_cuts_rows_and_combinations(ragged, works, criterion, budget):
    """Sums over all rows need them at once: where they do not fit, states are written."""
    estimator = net(build("mlp", 21, 6), **CRITERIA[criterion])
    assert_same(ragged, estimator, memory_budget=budget)
    assert all(work.n_together < len(COEFFICIENTS) for work in works)
    assert works or criterion == "sums"


@pytest.mark.parametrize("backend", ["threading", "loky"])
@pytest.mark.parametrize("family", ["mlp", "gated"])
def test_n_jobs_gives_the_same_bits(ragged, family, backend):
    X, y, clients = ragged
    data = X.astype("float32"), y, clients
    estimator = net(build(family, 21, 6).float())
    one = evaluate("stacked", data, estimator, memory_budget=20_000).values
    with parallel_config(backend=backend):
        two = evaluate("stacked", data, estimator, memory_budget=20_000, n_jobs=2).values
    assert np.array_equal(one, two)


@pytest.mark.parametrize("metric", ["loss", "error"])
@pytest.mark.parametrize("family", ["mlp", "gated"])
@pytest.mark.parametrize("kind", ["loop", "stacked"])
def test_who_raises_has_no_value(ragged, kind, family, metric):
    """A target that the criterion does not know, among the rows of one client."""
    X, y, clients = ragged
    y = y.copy()
    y[np.flatnonzero(clients == 7)[3]] = 6
    estimator = net(build(family, 21, 6))
    found = evaluate(kind, (X, y, clients), estimator, metric=metric)
    fine = evaluate(kind, ragged, estimator, metric=metric)
    raises = metric == "loss" or kind == "loop"  # a poll of errors by the loop has losses too
    assert list(found.raised) == ([2] if raises else [])
    others = [0, 1, 3]
    np.testing.assert_allclose(found.values[others], fine.values[others], rtol=1e-12)
    if raises:
        assert np.isnan(found.values[2]).all()
        assert "client 7 in round 3" in found.raised[2].__notes__[0]
    assert found.n_samples.tolist() == [20, 2, 25, 40]

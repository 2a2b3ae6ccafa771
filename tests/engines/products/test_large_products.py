"""Training with large products by oneDNN, in place of MKL."""

import numpy as np
import pytest
import torch
from joblib import parallel_config
from parity import ALL, flat, net
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice
from skfed.utils import _onednn
from skfed.utils._products import PRODUCTS

pytestmark = pytest.mark.skipif(
    _onednn._LINEAR is None or not torch.backends.mkl.is_available(),
    reason="needs oneDNN and MKL",
)

MODULES = {
    "narrow": lambda: nn.Sequential(nn.Linear(400, 100), nn.Tanh(), nn.Linear(100, 3)),
    "without bias": lambda: nn.Sequential(
        nn.Linear(400, 200, bias=False), nn.Tanh(), nn.Linear(200, 3)
    ),
    "two wide layers": lambda: nn.Sequential(
        nn.Linear(400, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 3)
    ),
    "above a small one": lambda: nn.Sequential(
        nn.Linear(400, 16), nn.Tanh(), nn.Linear(16, 3000), nn.Tanh(), nn.Linear(3000, 3)
    ),
}


@pytest.fixture
def shapes(monkeypatch):
    """Return the shapes that oneDNN is called for, as on a processor on which it is faster."""
    found = []
    multiply = _onednn._LINEAR.default

    class Noted:
        @staticmethod
        def default(x, weight, *rest):
            found.append((*x.shape, len(weight)))
            return multiply(x, weight, *rest)

    monkeypatch.setattr(PRODUCTS, "by_onednn", True)
    monkeypatch.setattr(_onednn, "_LINEAR", Noted)
    return found


def make_data(sizes):
    rng = np.random.default_rng(0)
    clients = np.repeat(np.arange(len(sizes)), sizes)
    y = np.arange(len(clients)) % 3
    X = rng.normal(size=(len(y), 400)) + np.eye(400)[y]
    return X.astype("float32"), y, clients


def fit(data, engine, module, batch_size=64, **params):
    X, y, clients = data
    torch.manual_seed(0)
    momentum = params.pop("momentum", 0)
    estimator = net(module(), batch_size=batch_size, lr=0.02, optimizer__momentum=momentum)
    params = {"selector": ALL, "n_rounds": 2, "local_epochs": 2, "random_state": 0, **params}
    return FederatedClassifier(estimator, engine=engine, **params).fit(X, y, clients=clients)


@pytest.mark.parametrize("momentum", [0, 0.9])
@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("without bias", {(200, 400, 64), (200, 64, 400)}),
        # Output, slope of the input, and gradient of each.
        ("two wide layers", {(200, 400, 64), (200, 200, 64), (64, 200, 200), (200, 64, 200)}),
        ("above a small one", {(3000, 16, 50), (50, 3000, 16), (3000, 50, 16)}),
    ],
)
def test_a_round_is_that_of_the_loop(shapes, family, expected, momentum):
    data = make_data([130, 64, 40, 200, 9])
    batch_size = 50 if family == "above a small one" else 64
    settings = {"module": MODULES[family], "batch_size": batch_size, "momentum": momentum}
    loop = fit(data, "loop", **settings)
    shapes.clear()
    stacked = fit(data, "stacked", **settings)
    assert stacked.engine_ == "stacked: linear layers"
    mine, reference = flat(stacked.net_.module_), flat(loop.net_.module_)
    torch.testing.assert_close(mine, reference, rtol=0, atol=1e-5)
    assert expected <= set(shapes)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_polls(shapes, engine):
    """The loop polls clients one by one, each in a batch of all its rows."""
    data = make_data([130, 60])
    settings = {"module": MODULES["narrow"], "selector": PowerOfChoice(2, 1), "batch_size": -1}
    fit(data, engine, n_rounds=1, local_epochs=1, **settings)
    rows = {128, 64} if engine == "stacked" else {128, 64, 60}
    assert {(n, 400, 100) for n in rows} <= set(shapes)


@pytest.mark.parametrize(("n_rows", "is_large"), [(190, False), (1900, True)])
def test_the_library_of_a_poll_is_that_of_all_its_rows(shapes, n_rows, is_large):
    """1,667 rows are large; a poll has products of some 1,600."""
    data = make_data([n_rows - 60, 60])
    settings = {"module": lambda: nn.Linear(400, 3), "selector": PowerOfChoice(2, 1)}
    fit(data, "stacked", n_rounds=1, local_steps=1, **settings)
    assert bool(shapes) == is_large


def fit_with_jobs(n_jobs):
    data = make_data([130, 64, 40, 200, 64, 70])
    selector = PowerOfChoice(d=5, clients_per_round=4)
    settings = {"selector": selector, "memory_budget": 3_000_000, "n_jobs": n_jobs}
    return fit(data, "stacked", MODULES["two wide layers"], **settings)


def test_the_bits_do_not_depend_on_the_number_of_threads(shapes, same_model):
    assert same_model(fit_with_jobs(1), fit_with_jobs(2))
    assert shapes


@pytest.mark.skipif(not PRODUCTS.by_onednn, reason="workers would use MKL")
def test_the_bits_of_processes_are_the_same(same_model):
    with parallel_config(backend="loky"):
        assert same_model(fit_with_jobs(1), fit_with_jobs(2))

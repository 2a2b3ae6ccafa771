"""Products of small matrices by numpy, in place of torch's."""

import numpy as np
import pytest
import torch
from families import build
from joblib import parallel_config
from parity import ALL, flat, net
from torch import nn
from torch.nn.functional import softmax

from skfed import FederatedClassifier
from skfed.utils._openblas import SmallProduct
from skfed.utils._products import PRODUCTS

MODULES = {
    "softmax": lambda: nn.Linear(130, 3),
    "two wide layers": lambda: nn.Sequential(nn.Linear(130, 140), nn.Tanh(), nn.Linear(140, 3)),
}


@pytest.fixture(params=[True, False], ids=["numpy", "torch"])
def by_numpy(request, monkeypatch):
    """Whether numpy multiplies; results are right on every machine, whichever is faster there."""
    monkeypatch.setattr(PRODUCTS, "by_openblas", request.param)
    return request.param


@pytest.fixture(scope="module")
def wide():
    """Seven clients of 5 to 40 rows in 130 dimensions, three classes: X, y, clients."""
    rng = np.random.default_rng(0)
    clients = np.repeat(np.arange(7), [40, 5, 21, 12, 40, 33, 8])
    y = np.arange(len(clients)) % 3
    X = rng.normal(size=(len(y), 130)) + np.eye(130)[y]
    return X.astype("float32"), y, clients


def fit(data, engine, module, **params):
    X, y, clients = data
    optimizer = params.pop("optimizer", torch.optim.SGD)
    estimator = net(module.float(), batch_size=16, lr=0.02, optimizer=optimizer)
    params = {"selector": ALL, "n_rounds": 2, "local_epochs": 2, "random_state": 0, **params}
    return FederatedClassifier(estimator, engine=engine, **params).fit(X, y, clients=clients)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam], ids=["SGD", "Adam"])
@pytest.mark.parametrize("family", ["softmax", "two wide layers", "user-written"])
def test_a_round_is_that_of_the_loop(wide, by_numpy, family, optimizer):
    module = MODULES[family]() if family in MODULES else build(family, 130, 3)
    loop, stacked = (fit(wide, e, module, optimizer=optimizer) for e in ("loop", "stacked"))
    assert stacked.engine_ == "stacked: linear layers"
    atol = 1e-5 if optimizer is torch.optim.SGD else 1e-3
    mine, reference = flat(stacked.net_.module_), flat(loop.net_.module_)
    torch.testing.assert_close(mine, reference, rtol=0, atol=atol)


@pytest.mark.parametrize("n_jobs", [2, 3])
def test_the_bits_do_not_depend_on_n_jobs(wide, by_numpy, same_model, n_jobs):
    settings = {"module": nn.Linear(130, 3), "memory_budget": 60_000}
    one, more = (fit(wide, "stacked", n_jobs=n, **settings) for n in (1, n_jobs))
    assert same_model(one, more)


@pytest.mark.parametrize("order", ["C", "F"])
def test_bits_are_those_of_other_processes(same_model, order):
    """By the library that is faster here; rows not in C's order are in memory of numpy's."""
    rng = np.random.default_rng(0)
    clients = np.repeat(np.arange(7), 75)
    X = np.asarray(rng.normal(size=(525, 784)), dtype="float32", order=order)
    data = X, np.arange(525) % 10, clients
    settings = {"module": nn.Linear(784, 10), "memory_budget": 10**6}
    one = fit(data, "stacked", **settings)
    with parallel_config(backend="loky"):
        assert same_model(one, fit(data, "stacked", n_jobs=2, **settings))


def test_a_step_by_hand(by_numpy, monkeypatch):
    """One client, one step of softmax regression on 32 rows: w - lr X^T (p - onehot) / 32."""
    calls = []
    multiply = SmallProduct.__call__
    monkeypatch.setattr(
        SmallProduct, "__call__", lambda *of: calls.append(multiply(*of)) or calls[-1]
    )
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(32, 128)).astype("float32"), np.arange(32) % 2
    module = nn.Linear(128, 2)
    start = module.weight.detach().clone()
    estimator = net(module, batch_size=32, lr=0.5)
    model = FederatedClassifier(estimator, engine="stacked", n_rounds=1, local_steps=1)
    model.set_params(random_state=0, selector=ALL).fit(X, y, clients=np.zeros(32, dtype=int))
    rows = torch.from_numpy(X)
    p = softmax(rows @ start.T + module.bias.detach(), 1)
    expected = start - 0.5 * (p - torch.eye(2)[y]).T @ rows / 32
    torch.testing.assert_close(model.net_.module_.weight.detach(), expected, rtol=0, atol=1e-5)
    assert bool(calls) == by_numpy

"""Products of small matrices by numpy, in place of torch's."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from families import build
from joblib import parallel_config
from parity import ALL, flat, net
from threadpoolctl import threadpool_limits
from torch import nn
from torch.nn.functional import softmax

from skfed import FederatedClassifier
from skfed.engines import _small_products
from skfed.engines._small_products import SmallProduct

WEIGHT = torch.ones(3, 10, 128)
MODULES = {
    "softmax": lambda: nn.Linear(130, 3),
    "two wide layers": lambda: nn.Sequential(nn.Linear(130, 140), nn.Tanh(), nn.Linear(140, 3)),
}


@pytest.fixture(params=[True, False], ids=["numpy", "torch"])
def by_numpy(request, monkeypatch):
    """Whether numpy multiplies; results are right on every machine, whichever is faster there."""
    monkeypatch.setattr(_small_products, "openblas_is_faster", lambda: request.param)
    return request.param


def by_columns(stack):
    return stack.mT.contiguous().mT


@pytest.fixture
def multiply(monkeypatch):
    monkeypatch.setattr(_small_products, "openblas_is_faster", lambda: True)
    return SmallProduct(WEIGHT)


@pytest.mark.parametrize(
    ("m", "k", "p", "layouts", "taken"),
    [
        (10, 128, 32, "rows rows", True),
        (10, 128, 32, "rows columns", True),
        (10, 128, 32, "columns rows", True),
        (10, 128, 32, "columns columns", False),
        (10, 31, 32, "rows rows", True),
        (10, 31, 32, "rows columns", False),  # short vectors
        (60, 128, 20, "rows columns", True),  # 1200 elements
        (64, 128, 20, "rows columns", True),  # 1280, in two parts of 640
        (64, 1570, 20, "rows columns", False),  # two parts of more than a million multiplications
        (61, 128, 20, "rows columns", False),  # cannot be halved
        (64, 128, 64, "rows columns", False),  # would be four parts
        (100, 100, 100, "rows rows", True),  # a million
        (101, 100, 100, "rows rows", False),
        (2, 784, 600, "rows columns", True),
        (2, 784, 601, "rows columns", False),  # halves would be vectors
        (2, 128, 1200, "rows columns", False),
        (1, 128, 32, "rows rows", False),
        (10, 1, 32, "rows rows", False),
        (10, 128, 1, "rows rows", False),
    ],
)
def test_what_it_takes_is_the_product(multiply, m, k, p, layouts, taken):
    torch.manual_seed(0)
    a, b = torch.randn(3, m, k), torch.randn(3, k, p)
    one, other = layouts.split()
    a, b = by_columns(a) if one == "columns" else a, by_columns(b) if other == "columns" else b
    found = multiply(a, b)
    assert (found is not None) == taken
    if taken:
        assert found.is_contiguous()
        torch.testing.assert_close(
            found, torch.bmm(a.double(), b.double()).float(), rtol=0, atol=1e-4
        )


def test_a_result_is_valid_until_the_next(multiply):
    a, b = torch.ones(3, 10, 128), torch.ones(3, 128, 32)
    first = multiply(a, b)
    assert (first == 128).all()
    assert multiply(2 * a, b) is first
    assert (first == 256).all()
    last = multiply(a, b[..., :20])  # the last batch of an epoch
    assert last.shape == (3, 10, 20)
    assert (last == 128).all()


def test_the_default_dtype_does_not_matter(multiply):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = multiply(WEIGHT, WEIGHT.mT.contiguous())
    finally:
        torch.set_default_dtype(before)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("weight", [WEIGHT.double(), WEIGHT[..., :127]], ids=["float64", "narrow"])
def test_other_layers_are_left_to_torch(monkeypatch, weight):
    monkeypatch.setattr(_small_products, "openblas_is_faster", lambda: True)
    multiply = SmallProduct(weight)
    assert multiply(weight, weight.mT.contiguous()) is None


@pytest.mark.skipif(not _small_products.has_kernels(), reason="needs OpenBLAS and AVX-512")
@pytest.mark.parametrize(
    ("m", "k", "p", "layout"),
    [
        (100, 100, 100, "rows"),
        (10, 32, 784, "rows"),
        (10, 784, 100, "columns"),
        (60, 800, 20, "columns"),
        (64, 784, 20, "columns"),
        (2, 784, 600, "columns"),
        (30, 784, 42, "columns"),
    ],
)
def test_the_bits_do_not_depend_on_the_threads_of_blas(multiply, m, k, p, layout):
    """A worker process of joblib has one."""
    torch.manual_seed(0)
    a, b = torch.randn(3, m, k), torch.randn(3, k, p)
    b = by_columns(b) if layout == "columns" else b
    found = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads, "blas"):
            found.append(multiply(a, b).clone())
    assert torch.equal(*found)


def test_kernels_are_those_of_the_core_that_openblas_runs():
    """``OPENBLAS_CORETYPE`` chooses it when numpy is imported."""
    code = "from skfed.engines._small_products import has_kernels; print(has_kernels())"
    env = {**os.environ, "OPENBLAS_CORETYPE": "Haswell"}
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, env=env, capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("processor", "mkl", "kernels", "faster"),
    [
        ({"cpu_name": "AMD EPYC"}, True, True, True),
        ({"cpu_name": "AMD EPYC"}, True, False, False),
        ({"cpu_name": "Intel Xeon"}, True, True, False),
        ({"cpu_name": "Intel Xeon"}, False, True, True),
        ({}, True, True, True),
    ],
)
def test_on_a_processor_of_intel_it_is_used_only_without_mkl(
    monkeypatch, processor, mkl, kernels, faster
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor, raising=False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(_small_products, "has_kernels", lambda: kernels)
    assert _small_products.openblas_is_faster.__wrapped__() is faster


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
    assert any(result is not None for result in calls) == by_numpy

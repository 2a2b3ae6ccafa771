"""Products of small matrices by numpy, in place of torch's."""

import os
import subprocess
import sys

import pytest
import torch
from threadpoolctl import threadpool_limits

from skfed.utils._openblas import SmallProduct, has_kernels


def by_columns(stack):
    return stack.mT.contiguous().mT


@pytest.fixture
def multiply():
    return SmallProduct()


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
        weight = torch.ones(3, 10, 128)
        found = multiply(weight, weight.mT.contiguous())
    finally:
        torch.set_default_dtype(before)
    assert found.dtype == torch.float32


@pytest.mark.skipif(not has_kernels(), reason="needs OpenBLAS and AVX-512")
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
    code = "from skfed.utils._openblas import has_kernels; print(has_kernels())"
    env = {**os.environ, "OPENBLAS_CORETYPE": "Haswell"}
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, env=env, capture_output=True, text=True).stdout == "False\n"

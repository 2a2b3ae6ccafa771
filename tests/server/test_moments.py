"""Moments and norms of rows: by hand, against numpy, and pooled over clients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skfed.server import _moments
from skfed.server._moments import (
    Moments,
    MomentsPool,
    Norms,
    Pooled,
    client_moments,
    client_norms,
    safe_rate,
)


def pooled(mean, variance, low, high, n_rows=1.0):
    """Moments of one column."""
    return Pooled(
        n_rows, *(np.array([value], dtype=float) for value in (mean, variance, low, high))
    )


def pool(X, owners, weights=None):
    """Pool the moments of clients; ``weights`` are those of their rows, 1 if None."""
    pool = MomentsPool()
    for k in np.unique(owners):
        rows = np.flatnonzero(owners == k)
        pool.add(client_moments(X, rows), len(rows) * (1.0 if weights is None else weights[k]))
    return pool.pooled


def test_moments_of_a_client_by_hand():
    X = np.array([[1.0, 7.0], [99.0, 99.0], [2.0, 7.0], [6.0, 7.0]])
    moments = client_moments(X, np.array([0, 2, 3]))
    assert moments.mean.tolist() == [3.0, 7.0]
    assert moments.variance.tolist() == [(4 + 1 + 9) / 3, 0.0]
    assert moments.largest.tolist() == [3.0, 0.0]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.float16, np.float32, bool])
def test_moments_are_float64_whatever_the_dtype(dtype):
    X = np.array([[[0, 1]], [[1, 1]], [[1, 1]], [[0, 1]]]).astype(dtype)
    moments = client_moments(X, np.arange(4))
    assert [part.tolist() for part in moments] == [[0.5, 1.0], [0.25, 0.0], [0.5, 0.0]]
    assert all(part.dtype == np.float64 for part in moments)


@pytest.mark.parametrize("offset", [1e8, -1e12, 1e15])
def test_moments_far_from_0_lose_no_digits(offset):
    """The deviations -3, -1, 1, 3 are exact at each of the offsets."""
    X = offset + np.array([[-3.0], [-1.0], [1.0], [3.0]])
    mean, variance, largest = client_moments(X, np.arange(4))
    assert (mean.item(), variance.item(), largest.item()) == (offset, 5.0, 3.0)


@pytest.mark.parametrize("value", [0.1, 1e12 + 0.1, -1e-30, 1e300])
def test_a_constant_column_has_no_variance(value):
    X = np.full((1000, 1), value)
    moments = client_moments(X, np.arange(1000))
    assert moments == Moments(*(np.array([v]) for v in (value, 0.0, 0.0)))
    both = pool(X, np.arange(1000) % 7)
    assert (both.mean.item(), both.variance.item(), both.scale.item()) == (value, 0.0, 1.0)


def test_the_scale_by_hand():
    assert pooled(5, 4, 1, 10).scale == 2  # a tenth of the largest deviation is 0.5
    assert pooled(5, 4, 1, 45).scale == 4  # of 40 above the mean
    assert pooled(5, 4, -55, 10).scale == 6  # of 60 below it
    assert pooled(5, 4, -55, 10).deviation == 2
    assert pooled(5, 0, 5, 5).scale == pooled(5, 0, 5, 5).deviation == 1


def test_a_deviation_of_rounding_counts_as_constant():
    """8 times float64's eps is 1.8e-15."""
    for mean in (1.0, -1e12):
        for deviation, scale in ((1e-15, 1.0), (3e-15, 3e-15)):
            part = abs(mean) * deviation
            found = pooled(mean, part**2, mean - part, mean + part).scale
            np.testing.assert_allclose(found, 1.0 if scale == 1.0 else part)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_column_is_far_above_4096_scales(sign):
    assert not pooled(sign * 4096 * 2, 4, sign * 8192, sign * 8192).is_far
    assert pooled(sign * 8193, 4, sign * 8193, sign * 8193).is_far
    assert pooled(sign * 4097, 0, sign * 4097, sign * 4097).is_far  # constant: its scale is 1


def test_later_rows_by_hand():
    """1 and 3, then 7, 8 and 9: the mean is 5.6, the squares 1 + 9 + 49 + 64 + 81 = 204."""
    both = pooled(2, 1, 1, 3, n_rows=2).with_later(pooled(8, 2 / 3, 7, 9, n_rows=3))
    assert both.n_rows == 5
    np.testing.assert_allclose(both.mean, 5.6)
    np.testing.assert_allclose(both.variance, 204 / 5 - 5.6**2)
    assert (both.low.item(), both.high.item()) == (1, 9)


def test_values_that_are_too_large_do_not_warn():
    """Their fit ends with an error that names X or y."""
    huge = pool(np.array([[1e200], [1.0], [-1e200], [3.0]]), np.array([0, 0, 1, 1]))
    assert huge.with_later(huge).variance != 0
    assert not np.isfinite(huge.variance)


def test_equal_moments_stay_as_they_are_bit_for_bit():
    rng = np.random.default_rng(0)
    X = rng.normal(1e5, 3, size=(30, 4))
    first = pool(X, np.arange(30) % 4)
    again = first.with_later(first).with_later(first)
    assert again.n_rows == 90
    assert again.equals(first) and first.equals(again)


def test_what_is_equal():
    one = pooled(2, 1, 1, 3, n_rows=2)
    assert one.equals(one._replace(n_rows=9))
    assert not one.equals(None)
    for name in ("mean", "variance", "low", "high"):
        assert not one.equals(one._replace(**{name: np.array([2.5])})), name


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e3, 1e8, 1e12]))
def test_pooled_moments_are_those_of_all_rows(seed, offset):
    rng = np.random.default_rng(seed)
    n, n_clients = int(rng.integers(1, 60)), int(rng.integers(1, 8))
    owners = rng.integers(0, n_clients, n)
    X = rng.normal(size=(n, 3)) * [1, 1e3, 0] + rng.normal(size=(n_clients, 3))[owners] * [2, 50, 0]
    weights = rng.uniform(0.1, 1, n_clients)
    X += offset
    of_rows = weights[owners]
    mean = offset + np.average(X - offset, axis=0, weights=of_rows)
    variance = np.average(np.square(X - offset - (mean - offset)), axis=0, weights=of_rows)
    found = pool(X, owners, weights)
    rounding = 1e-9 + 1e-15 * offset
    np.testing.assert_allclose(found.n_rows, of_rows.sum())
    np.testing.assert_allclose(found.mean, mean, rtol=1e-15, atol=1e-9)
    np.testing.assert_allclose(found.variance, variance, rtol=rounding, atol=1e-9)
    assert (found.low <= X.min(axis=0) + rounding).all()  # bounds, as clients send distances
    assert (found.high >= X.max(axis=0) - rounding).all()
    assert found.scale[2] == 1


def test_one_client_has_the_floor_of_its_own_rows():
    """A flag in one of 1000 rows: deviation 0.0316, largest 0.999, so that it is at most 10."""
    X = np.zeros((1000, 1))
    X[17] = 1
    found = pool(X, np.zeros(1000, dtype=int))
    np.testing.assert_allclose(found.scale, 0.0999)
    np.testing.assert_allclose((1 - found.mean) / found.scale, 10)


def expected_norms(X, mean, scale, weights=None):
    inputs = np.hstack([(X.reshape(len(X), -1) - mean) / scale, np.ones((len(X), 1))])
    share = np.full(len(X), 1 / len(X)) if weights is None else weights / weights.sum()
    largest = np.square(inputs[share > 0]).sum(axis=1).max() * len(X) * np.square(share).sum()
    return largest, np.linalg.eigvalsh((inputs * share[:, None]).T @ inputs)[-1]


def test_norms_by_hand():
    """Rows (2, 1) and (0, 1) after the scale, with the intercept's 1."""
    X = np.array([[7.0], [3.0], [99.0]])
    norms = client_norms(X, np.array([0, 1]), np.array([3.0]), np.array([2.0]))
    # The mean of x x' is [[2, 1], [1, 1]].
    assert norms == Norms(5.0, float(np.float32((3 + np.sqrt(5)) / 2)))


def test_norms_of_weighted_rows_by_hand():
    """Of weights 3 and 1, two rows count as 1.6: the squared shares are 9/16 + 1/16 = 1 / 1.6."""
    X, at = np.array([[2.0], [0.0], [50.0]]), (np.zeros(1), np.ones(1))
    weights = np.array([3.0, 1.0, 0.0])
    norms = client_norms(X, np.array([0, 1]), *at, weights)
    assert norms.largest == 5 * 2 / 1.6
    assert norms.eigenvalue == pytest.approx(2 + np.sqrt(4 - 0.75))  # of [[3, 1.5], [1.5, 1]]
    # A row without weight is never seen, but makes batches smaller.
    alone = client_norms(X, np.array([0, 1, 2]), *at, weights)
    assert alone.largest == pytest.approx(5 * 3 / 1.6)
    assert alone.eigenvalue == norms.eigenvalue


SHAPES = {
    "tall": (60, 5),
    "wide": (7, 40),
    "one row": (1, 4),
    "one column": (9, 1),
    "images": (8, 2, 3),
}
BRANCHES = {"columns": (20, "tall"), "rows": (20, "wide"), "operator": (3, "tall")}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_norms_are_those_of_numpy(shape, weighted):
    rng = np.random.default_rng(0)
    X, n_columns = rng.normal(3, 2, shape), int(np.prod(shape[1:]))
    weights = rng.uniform(size=len(X)) if weighted else None
    mean, scale = rng.normal(size=n_columns), rng.uniform(0.5, 2, n_columns)
    norms = client_norms(X, np.arange(len(X)), mean, scale, weights)
    np.testing.assert_allclose(norms, expected_norms(X, mean, scale, weights), rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("branch", BRANCHES)
def test_each_way_to_the_eigenvalue_is_that_of_numpy(branch, weighted, monkeypatch):
    exact, shape = BRANCHES[branch]
    monkeypatch.setattr(_moments, "_EXACT", exact)
    used = []
    eigsh = _moments.eigsh
    monkeypatch.setattr(_moments, "eigsh", lambda *a, **kw: used.append(1) or eigsh(*a, **kw))
    rng = np.random.default_rng(1)
    X = rng.normal(3, 2, SHAPES[shape])
    weights = rng.uniform(size=len(X)) if weighted else None
    at = np.zeros(X.shape[1]), np.full(X.shape[1], 2.0)
    norms = client_norms(X, np.arange(len(X)), *at, weights)
    np.testing.assert_allclose(norms, expected_norms(X, *at, weights), rtol=1e-3)
    assert bool(used) == (branch == "operator")


def test_the_smaller_matrix_is_decomposed(monkeypatch):
    shapes, eigvalsh = [], np.linalg.eigvalsh
    monkeypatch.setattr(np.linalg, "eigvalsh", lambda A: shapes.append(A.shape) or eigvalsh(A))
    for n_rows, n_columns in ((9, 4), (4, 9)):
        X = np.ones((n_rows, n_columns))
        client_norms(X, np.arange(n_rows), np.zeros(n_columns), np.ones(n_columns))
    assert shapes == [(5, 5), (4, 4)]  # a column for the intercept


def test_constant_columns_leave_the_eigenvalue_of_the_intercept(monkeypatch):
    for exact in (1024, 3):
        monkeypatch.setattr(_moments, "_EXACT", exact)
        norms = client_norms(np.full((6, 9), 4.0), np.arange(6), np.full(9, 4.0), np.ones(9))
        assert norms == Norms(1.0, 1.0)


def test_norms_of_rows_that_are_too_large():
    """Above the range of float32 they are right; above that of float64 the rate is 0."""
    X = np.array([[1e100], [0.0]])
    norms = client_norms(X, np.array([0]), np.zeros(1), np.ones(1))
    np.testing.assert_allclose(norms, 1e200, rtol=1e-7)
    np.testing.assert_allclose(safe_rate(norms, 1), 0.5e-200, rtol=1e-7)
    norms = client_norms(X, np.array([0, 1]), np.zeros(1), np.full(1, 1e-100))
    assert norms == Norms(np.inf, np.inf)
    assert safe_rate(norms, 1) == safe_rate(norms, 2) == 0


def test_norms_are_taken_in_chunks(monkeypatch):
    rng = np.random.default_rng(0)
    X, at = rng.normal(size=(50, 4)), (np.zeros(4), np.ones(4))
    rows, weights = np.arange(1, 48), rng.uniform(size=50)
    whole = client_norms(X, rows, *at, weights)
    sizes, flat = [], _moments._flat
    monkeypatch.setattr(_moments, "_CHUNK", 8 * 4 * 10)
    monkeypatch.setattr(_moments, "_flat", lambda X: sizes.append(len(X)) or flat(X))
    np.testing.assert_allclose(client_norms(X, rows, *at, weights), whole, rtol=1e-6)
    assert max(sizes) == 10


def test_the_rate_by_hand():
    """b / (2 (max + (b - 1) eigenvalue))."""
    norms = Norms(10.0, 2.0)
    assert safe_rate(norms, 1) == 1 / 20
    assert safe_rate(norms, 6) == 6 / 40
    assert safe_rate(norms, 16) == 16 / 80


def test_steps_at_the_safe_rate_do_not_diverge_in_the_mean():
    """The largest eigenvalue of E[(I - rate H)^2], H of a drawn batch, is below 1."""
    rng = np.random.default_rng(0)
    X = np.hstack([rng.standard_t(2, size=(40, 3)), np.ones((40, 1))])
    norms = client_norms(X[:, :3], np.arange(40), np.zeros(3), np.ones(3))
    for n_rows in (1, 4, 16):
        rate, mean = safe_rate(norms, n_rows), np.zeros((4, 4))
        for _ in range(2000):
            batch = X[rng.choice(40, n_rows, replace=False)]
            step = np.eye(4) - rate * 2 * batch.T @ batch / n_rows  # of squared errors
            mean += step @ step / 2000
        assert np.linalg.eigvalsh(mean)[-1] < 1

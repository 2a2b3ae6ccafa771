"""How far a suppressed quantile may be from the true one, and in how many exchanges."""

import numpy as np
import pytest

from skfed.preprocessing import FederatedRobustScaler, FederatedSimpleImputer
from skfed.preprocessing._quantiles import (
    client_counts,
    merge_counts,
    order_statistics,
    sorted_columns,
)

DRAWS = {
    "near 0": lambda rng, n: rng.normal(size=n) * 1e-3,
    "all magnitudes": lambda rng, n: rng.choice([-1, 1], n) * 10.0 ** rng.uniform(-300, 300, n),
    "0 and others": lambda rng, n: np.where(rng.random(n) < 0.5, 0.0, rng.exponential(size=n)),
    "ties": lambda rng, n: rng.normal(size=n).round(1),
    "far from 0": lambda rng, n: 1e12 + rng.normal(size=n),
    "two groups": lambda rng, n: np.where(rng.random(n) < 0.5, 1e-30, 1e30) * rng.random(n),
    "tiny and huge": lambda rng, n: rng.choice([-1.7e308, -1e-300, 1e-300, 1.7e308], n),
    "skewed": lambda rng, n: rng.lognormal(0, 6, n),
}


def narrowest(x, values, ids, min_count, min_holders):
    """Return the width of the narrowest interval that holds x and enough, by trying all."""
    order = np.argsort(values)
    values, ids = values[order], ids[order]
    best = np.inf
    for i in range(len(values)):
        for j in range(i, len(values)):
            holds_x = values[i] <= x <= values[j]
            if holds_x and j - i + 1 >= min_count and len(set(ids[i : j + 1])) >= min_holders:
                best = min(best, values[j] / 2 - values[i] / 2)
                break
    return 2 * best


def search(values, ids, ranks, min_count, min_holders):
    """Return the values of ranks, which are suppressed, and the number of exchanges."""
    clients = [sorted_columns(values[ids == k][:, None]) for k in np.unique(ids)]
    server = order_statistics(
        np.array([ranks]), np.array([len(values)]), values.dtype, min_count, min_holders
    )
    request, n_exchanges = next(server), 0
    try:
        while True:
            n_exchanges += 1
            sent = [client_counts(columns, request) for columns in clients]
            request = server.send(merge_counts(sent, min_holders))
    except StopIteration as end:
        return end.value[0][0], end.value[1][0], n_exchanges


@pytest.mark.parametrize("least", [(1, 1), (2, 1), (7, 1), (3, 2), (1, 3)])
@pytest.mark.parametrize("kind", DRAWS)
def test_no_farther_than_the_narrowest_interval_that_holds_enough(kind, least):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        values, ids = DRAWS[kind](rng, 40), np.arange(40) % 4
        ranks = [0, 9, 10, 19, 20, 39]
        found, suppressed, n_exchanges = search(values, ids, ranks, *least)
        exact = np.sort(values)[ranks]
        np.testing.assert_array_equal(found[~suppressed], exact[~suppressed])
        with np.errstate(over="ignore"):
            widths = np.array([narrowest(x, values, ids, *least) for x in exact])
        assert (abs(found / 2 - exact / 2) <= max(widths / 2) * (1 + 1e-9)).all()
        assert (np.diff(found) >= 0).all()
        assert n_exchanges <= 25
        if least == (1, 1):
            assert not suppressed.any() and n_exchanges <= 17


def test_a_median_by_hand():
    """0.001 lies between 0 and 0.002; in floats, half of all numbers lie between 0 and 1."""
    values = np.array([-5.0, 0.0, 0.001, 0.002, 7.0])
    found, suppressed, _ = search(values, np.arange(5), [2], 3, 1)
    assert suppressed.all() and abs(found[0] - 0.001) <= 0.002


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_transformers_of_each_dtype(dtype):
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(300, 3)).astype(dtype)
    ids = np.arange(300) % 5
    exact = FederatedSimpleImputer(strategy="median").fit(X, clients=ids)
    coarse = FederatedSimpleImputer(strategy="median", min_count=30, min_holders=2)
    coarse.fit(X, clients=ids)
    assert set(coarse.exchange_["result"]) == {"exact", "suppressed"}
    for found, expected, column in zip(coarse.statistics_, exact.statistics_, X.T, strict=True):
        ordered = np.sort(column.astype(float))
        width = min(ordered[k + 29] - ordered[k] for k in range(121, 150))
        assert 0 < abs(found - expected) <= 2 * width
    scaler = FederatedRobustScaler(min_count=30).fit(X.astype(np.float32), clients=ids)
    np.testing.assert_allclose(scaler.scale_, np.subtract(*np.percentile(X, [75, 25], 0)), rtol=0.3)


def test_a_range_that_suppression_leaves_unknown_is_warned_of():
    """Eight of ten values are in no interval narrower than 1002, as the true range is 999.5."""
    values, ids = np.r_[np.arange(5.0), 1000 + np.arange(5.0)][:, None], np.arange(10) % 2
    with pytest.warns(UserWarning, match="column 0: min_count=8 and min_holders=1 leave") as found:
        FederatedRobustScaler(min_count=8).fit(values, clients=ids)
    assert len(found) == 1 and found[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_a_range_that_suppression_hardly_changes_is_not_warned_of():
    values = np.column_stack([np.linspace(0, 1, 201), np.ones(201)])
    scaler = FederatedRobustScaler(min_count=8).fit(values, clients=np.arange(201) % 2)
    assert abs(scaler.scale_[0] - 0.5) < 0.05 and scaler.scale_[1] == 1

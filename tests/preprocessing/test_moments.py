"""Sums are taken block by block; where blocks end changes nothing but rounding."""

import numpy as np
import pytest

from skfed.preprocessing import FederatedMinMaxScaler, FederatedStandardScaler, _blocks
from skfed.preprocessing._blocks import ClientRows, blocks
from skfed.preprocessing._moments import merge_moments, merge_products, moments, products

X = np.array([[1.0, 10.0], [3.0, np.nan], [5.0, 16.0], [7.0, 4.0]])


def test_moments_by_hand(monkeypatch):
    for n_rows in (1, 2, 3, 4):
        monkeypatch.setattr(_blocks, "_BLOCK", 0)
        monkeypatch.setattr(_blocks, "_LEAST_ROWS", n_rows)
        merged = merge_moments([moments(X)])
        assert merged["n"].tolist() == [4, 3] and merged["mean"].tolist() == [4, 10]
        assert merged["squares"].tolist() == [9 + 1 + 1 + 9, 36 + 36]
        merged = merge_products([products(X[[0, 2, 3]])])
        mean, deviations = np.array([13 / 3, 10]), X[[0, 2, 3]] - [13 / 3, 10]
        np.testing.assert_allclose(merged["mean"], mean, rtol=1e-15)
        np.testing.assert_allclose(merged["products"], deviations.T @ deviations, rtol=1e-15)


def test_blocks_are_the_clients_rows_in_order(monkeypatch):
    monkeypatch.setattr(_blocks, "_BLOCK", 0)
    monkeypatch.setattr(_blocks, "_LEAST_ROWS", 2)
    rows = ClientRows(X, np.array([0, 2, 3]))
    assert len(rows) == 3
    assert [block.tolist() for block in blocks(rows)] == [X[[0, 2]].tolist(), X[[3]].tolist()]
    assert [len(block) for block in blocks(X)] == [2, 2]


@pytest.mark.parametrize("far", [0.0, 1e9])
def test_rows_that_drift_over_blocks_lose_no_digits(far):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 8)) + np.linspace(0, 50, 20_000)[:, None] + far
    ids = rng.integers(0, 3, len(rows))
    scaler = FederatedStandardScaler().fit(rows, clients=ids)
    exact = rows - far
    np.testing.assert_allclose(scaler.var_, exact.var(axis=0), rtol=1e-12)
    extremes = FederatedMinMaxScaler().fit(rows, clients=ids)
    np.testing.assert_array_equal(extremes.data_min_, rows.min(axis=0))
    np.testing.assert_array_equal(extremes.data_max_, rows.max(axis=0))

"""Counts, means and sums of squares or products of deviations, merged over clients.

As in T. Chan, G. Golub, R. LeVeque: Algorithms for computing the sample variance: analysis and
recommendations. The American Statistician 37(3), 1983. A mean is rounded; so a client sends also
the sum of the deviations from its rounded mean, and variances stay exact to rounding where means
are far larger than deviations.
"""

import numpy as np

from skfed.preprocessing._base import Statistics


def means(X: np.ndarray) -> Statistics:
    """Return each column's number of values, their mean, and the sum of deviations from it."""
    return _centred(X)[0]


def moments(X: np.ndarray) -> Statistics:
    """Return ``means``, and the sums of squared deviations."""
    sent, deviations = _centred(X)
    return {**sent, "squares": np.einsum("ij,ij->j", deviations, deviations)}


def products(X: np.ndarray) -> Statistics:
    """Return ``means`` of columns that lack no value, and the sums of products of deviations."""
    sent, deviations = _centred(X)
    return {**sent, "n": sent["n"][:1], "products": deviations.T @ deviations}


def merge_means(statistics: list[Statistics]) -> Statistics:
    """Return number and mean of all clients' values; the mean is NaN where there are none."""
    _, total, mean, _, rests = _shifted(statistics)
    exact = mean + rests.sum(axis=0) / np.maximum(total, 1)
    return {"n": total, "mean": np.where(total > 0, exact, np.nan)}


def merge_moments(statistics: list[Statistics]) -> Statistics:
    """Return number, mean and sum of squared deviations of all clients' values."""
    n, total, _, shifts, rests = _shifted(statistics)
    squares = np.stack([s["squares"] for s in statistics])
    # Around the shifted centre; a shifted rest is rest + n shift.
    around = squares + shifts * (2 * rests - n * shifts)
    around = around.sum(axis=0) - rests.sum(axis=0) ** 2 / np.maximum(total, 1)
    return {**merge_means(statistics), "squares": np.maximum(around, 0.0)}


def merge_products(statistics: list[Statistics]) -> Statistics:
    """Return number, mean and sums of products of deviations of all clients' rows."""
    n, total, _, shifts, rests = _shifted(statistics)
    cross = shifts.T @ (rests - n * shifts / 2)
    rest = rests.sum(axis=0)
    around = sum(s["products"] for s in statistics) + cross + cross.T
    return {**merge_means(statistics), "products": around - np.outer(rest, rest) / total}


def _shifted(statistics: list[Statistics]) -> tuple[np.ndarray, ...]:
    """Return numbers, their sum, a common centre, shifts to it, and rests around it."""
    n, centres, rests = (np.stack([s[key] for s in statistics]) for key in ("n", "mean", "rest"))
    total = n.sum(axis=0)
    centre = (n * centres).sum(axis=0) / np.maximum(total, 1)
    shifts = np.where(n > 0, centres - centre, 0.0)
    return n, total, centre, shifts, rests + n * shifts


def _centred(X: np.ndarray) -> tuple[Statistics, np.ndarray]:
    """Return what ``means`` does, and float64 deviations, 0 where X is missing."""
    missing = np.isnan(X)
    has_missing = bool(missing.any())
    n = len(X) - missing.sum(axis=0)
    sums = (np.nansum if has_missing else np.sum)(X, axis=0, dtype=np.float64)
    mean = sums / np.maximum(n, 1)
    deviations = X - mean
    if has_missing:
        deviations[missing] = 0.0
    return {"n": n, "mean": mean, "rest": deviations.sum(axis=0)}, deviations

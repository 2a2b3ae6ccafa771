"""Counts, means and sums of squares or products of deviations, merged over clients.

As in T. Chan, G. Golub, R. LeVeque: Algorithms for computing the sample variance: analysis and
recommendations. The American Statistician 37(3), 1983. A mean is rounded; so a client sends also
the sum of the deviations from its rounded mean, and variances stay exact to rounding where means
are far larger than deviations.
"""

from typing import Any

import numpy as np

from skfed.preprocessing._base import Statistics
from skfed.preprocessing._blocks import ClientRows, blocks

Rows = np.ndarray | ClientRows


def means(X: Rows) -> Statistics:
    """Return each column's number of values, their mean, and the sum of deviations from it."""
    return _combine([_centred(block)[0] for block in blocks(X)])


def moments(X: Rows) -> Statistics:
    """Return ``means``, and the sums of squared deviations."""
    return _combine([_moments(block) for block in blocks(X)])


def products(X: Rows) -> Statistics:
    """Return ``means`` of columns that lack no value, and the sums of products of deviations."""
    return _combine([_products(block) for block in blocks(X)])


def merge_means(statistics: list[Statistics]) -> Statistics:
    """Return number and mean of all clients' values; the mean is NaN where there are none."""
    sums = _combine(statistics)
    mean = sums["mean"] + sums["rest"] / np.maximum(sums["n"], 1)
    return {"n": sums["n"], "mean": np.where(sums["n"] > 0, mean, np.nan)}


def merge_moments(statistics: list[Statistics]) -> Statistics:
    """Return number, mean and sum of squared deviations of all clients' values."""
    sums = _combine(statistics)
    around = sums["squares"] - sums["rest"] ** 2 / np.maximum(sums["n"], 1)
    return {**merge_means([sums]), "squares": np.maximum(around, 0.0)}


def merge_products(statistics: list[Statistics]) -> Statistics:
    """Return number, mean and sums of products of deviations of all clients' rows."""
    sums = _combine(statistics)
    around = sums["products"] - np.outer(sums["rest"], sums["rest"]) / sums["n"]
    return {**merge_means([sums]), "products": around}


def check_sums(sent: Statistics, n_samples: int) -> None:
    """Raise a ValueError if ``means``, ``moments`` or ``products`` are not those of so many rows.

    They have to be so small that sums of them over 2^40 clients are finite.
    """
    n, mean, rest = (sent[name] for name in ("n", "mean", "rest"))
    check_counts("n", n, n_samples)
    squares = sent.get("squares", sent.get("products"))
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.maximum(n, 1) * abs(mean) + abs(rest)
        sizes = [size] if squares is None else [size**2, abs(squares)]
        too_large = any(not np.isfinite(2.0**40 * one).all() for one in sizes)
    if too_large:
        raise ValueError("its means or sums are not finite, or too large to be added up.")
    if squares is not None:
        # By Cauchy and Schwarz, but for rounding.
        most = n * (squares if squares.ndim == 1 else squares.diagonal()) * (1 + 1e-6)
        if (most < 0).any() or (rest**2 > most + 1e-300).any():
            raise ValueError("its sums of squares are negative, or too small for the others.")
    if n.shape == mean.shape and (abs(mean) + abs(rest))[n == 0].any():
        raise ValueError("it has means of columns without values.")


def check_counts(name: str, counts: np.ndarray, most: Any) -> None:
    """Raise a ValueError if numbers of rows are negative, or more than there are."""
    if (counts < 0).any() or (counts > most).any():
        raise ValueError(f"its {name} is negative, or more than its rows.")


def _combine(statistics: list[Statistics]) -> Statistics:
    """Return the statistics of several sets of rows as those of one, around a common centre."""
    if len(statistics) == 1:
        return statistics[0]
    n, centres, rests = (np.stack([s[key] for s in statistics]) for key in ("n", "mean", "rest"))
    total = n.sum(axis=0)
    centre = (n * centres).sum(axis=0) / np.maximum(total, 1)
    shifts = np.where(n > 0, centres - centre, 0.0)
    rests = rests + n * shifts
    combined = {"n": total, "mean": centre, "rest": rests.sum(axis=0)}
    if "squares" in statistics[0]:
        squares = np.stack([s["squares"] for s in statistics])
        around = (squares + shifts * (2 * rests - n * shifts)).sum(axis=0)
        combined["squares"] = np.maximum(around, 0.0)  # rounding may leave less
    if "products" in statistics[0]:
        cross = shifts.T @ (rests - n * shifts / 2)
        combined["products"] = sum(s["products"] for s in statistics) + cross + cross.T
    return combined


def _moments(X: np.ndarray) -> Statistics:
    sent, deviations = _centred(X)
    return {**sent, "squares": np.einsum("ij,ij->j", deviations, deviations)}


def _products(X: np.ndarray) -> Statistics:
    sent, deviations = _centred(X)
    return {**sent, "n": sent["n"][:1], "products": deviations.T @ deviations}


def _centred(X: np.ndarray) -> tuple[Statistics, np.ndarray]:
    """Return what ``means`` does, and float64 deviations, 0 where X is missing."""
    missing = np.isnan(X)
    has_missing = bool(missing.any())
    n = np.full(X.shape[1], len(X))
    values = X.astype(np.float64, copy=False)
    if has_missing:
        n -= missing.sum(axis=0)
        values = np.where(missing, 0.0, values)
    mean = _sums(values) / np.maximum(n, 1)
    deviations = values - mean
    if has_missing:
        deviations[missing] = 0.0
    return {"n": n, "mean": mean, "rest": _sums(deviations)}, deviations


def _sums(values: np.ndarray) -> np.ndarray:
    """Return each column's sum, bit for bit the same for any number of threads."""
    if values.shape[1] == 1:  # BLAS would take a dot product, whose parts depend on the threads
        return values.sum(axis=0)
    return np.ones(len(values)) @ values  # three times faster than a sum over rows

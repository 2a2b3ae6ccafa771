"""Exact quantiles of all clients' values, by bisection on counts.

Floats are numbered in their order, as unsigned integers of their bits. The server keeps, for each
wanted rank, a bracket of numbers that holds the value of that rank, sends the ends of 16 parts of
it, and goes on with the part that the sums of the clients' counts point at. A bracket of 2^64
numbers has one left after 17 exchanges; 9 for float32. Sums of counts are exact, so the result is
too.
"""

from collections.abc import Generator

import numpy as np

from skfed.preprocessing._base import Statistics, SuppressingTransformer

_N_PARTS = 16
_BITS = {
    np.dtype(np.float64): np.uint64,
    np.dtype(np.float32): np.uint32,
    np.dtype(np.float16): np.uint16,
}


def sorted_columns(X: np.ndarray) -> np.ndarray:
    """Return each column's values in order, missing ones last; shape (n_features, n_samples)."""
    return np.sort((X + X.dtype.type(0)).T, axis=1)  # + 0 turns -0.0 into 0.0


def client_counts(columns: np.ndarray, request: Statistics) -> Statistics:
    """Return the number of values of each column, or how many are at most each edge asked for."""
    if "edges" not in request:
        return {"n": columns.shape[1] - np.isnan(columns).sum(axis=1)}
    edges = request["edges"]
    counts = [np.searchsorted(c, e.ravel(), "right") for c, e in zip(columns, edges, strict=True)]
    return {"counts": np.stack(counts).reshape(edges.shape)}


def merge_counts(statistics: list[Statistics]) -> Statistics:
    """Return the sums of counts, and how many clients have values in what they count."""
    if "n" in statistics[0]:
        n = [s["n"] for s in statistics]
        return {"n": sum(n), "holders": sum(one > 0 for one in n)}
    counts = [s["counts"] for s in statistics]
    return {"counts": sum(counts), "holders": sum(np.diff(one) > 0 for one in counts)}


def neighbours(
    n: np.ndarray, shares: list[float], dtype: np.dtype, min_count: int, min_holders: int
) -> Generator[Statistics, Statistics, tuple[np.ndarray, np.ndarray, np.ndarray, bool]]:
    """Yield edges, get merged counts, and return the values that quantiles lie between.

    ``n`` has the number of values of each column, ``shares`` the quantiles in [0, 1]. Returned are
    the value below, the one above and the part of the way between, each of shape (n_features,
    n_shares), and whether any is suppressed.
    """
    places = np.maximum(n[:, None] - 1, 0) * np.asarray(shares, dtype=np.float64)
    below = np.floor(places).astype(np.int64)
    ranks = np.concatenate([below, np.ceil(places).astype(np.int64)], axis=1)
    values, suppressed = yield from order_statistics(ranks, n, dtype, min_count, min_holders)
    low, high = np.split(values, 2, axis=1)
    return low, high, places - below, bool(suppressed.any())


def interpolate(low: np.ndarray, high: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return values between neighbours, in the two forms of numpy, each exact at its own end."""
    step = high - low
    return np.where(part >= 0.5, high - step * (1 - part), low + step * part)


def order_statistics(
    ranks: np.ndarray, n: np.ndarray, dtype: np.dtype, min_count: int, min_holders: int
) -> Generator[Statistics, Statistics, tuple[np.ndarray, np.ndarray]]:
    """Yield edges, get merged counts, and return the values of the wanted ranks.

    A bracket is not divided further where the part to go on with holds fewer than ``min_count``
    values, or values of fewer than ``min_holders`` clients; its middle stands for the value.

    Parameters
    ----------
    ranks : ndarray of shape (n_features, n_ranks), dtype=int
        Wanted ranks, from 0, of columns that have values; others are NaN in the result.
    n : ndarray of shape (n_features,)
        Numbers of values.
    dtype : dtype
        float64 or float32.
    min_count, min_holders : int
        What a bracket has to hold.

    Returns
    -------
    values : ndarray of shape (n_features, n_ranks)
        The values, or middles of brackets.
    suppressed : ndarray of bool, of the same shape
        Where a middle stands for the value.
    """
    numbers = _BITS[np.dtype(dtype)]
    largest = np.array([-np.finfo(dtype).max, np.finfo(dtype).max], dtype)
    first, last = _to_numbers(largest)
    low = np.full(ranks.shape, first - numbers(1))  # the bracket is (low, high]
    high = np.full(ranks.shape, last)
    frozen = np.broadcast_to(n[:, None] == 0, ranks.shape).copy()
    while (active := ~frozen & (high - low > 1)).any():
        edges = _edges(low, high)
        merged = yield {"edges": _to_floats(np.where(active[..., None], edges, high[..., None]))}
        part = np.argmax(merged["counts"][..., 1:] > ranks[..., None], axis=-1)[..., None]
        rows = np.take_along_axis(np.diff(merged["counts"]), part, axis=-1)[..., 0]
        holders = np.take_along_axis(merged["holders"], part, axis=-1)[..., 0]
        enough = (rows >= min_count) & (holders >= min_holders)
        frozen |= active & ~enough
        low, high = (
            np.where(active & enough, np.take_along_axis(edges, part + i, axis=-1)[..., 0], end)
            for i, end in enumerate((low, high))
        )
    suppressed = frozen & (n[:, None] > 0)
    middle = _to_floats(low + numbers(1)) / 2 + _to_floats(high) / 2
    values = np.where(suppressed, middle, _to_floats(high))
    return np.where(n[:, None] > 0, values, np.nan).astype(dtype), suppressed


def _edges(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the ends of 16 parts of each bracket, in a new last axis."""
    steps = np.arange(_N_PARTS + 1, dtype=low.dtype)
    quotient, rest = np.divmod(high - low, low.dtype.type(_N_PARTS))
    parts = quotient[..., None] * steps + rest[..., None] * steps // low.dtype.type(_N_PARTS)
    return low[..., None] + parts


def _to_numbers(values: np.ndarray) -> np.ndarray:
    """Return unsigned integers in the order of floats."""
    bits = values.view(_BITS[values.dtype])
    top = bits.dtype.type(1) << bits.dtype.type(8 * bits.itemsize - 1)
    return np.where(bits & top, ~bits, bits | top)


def _to_floats(numbers: np.ndarray) -> np.ndarray:
    """Return the floats that ``_to_numbers`` numbers."""
    top = numbers.dtype.type(1) << numbers.dtype.type(8 * numbers.itemsize - 1)
    bits = np.where(numbers & top, numbers ^ top, ~numbers)
    return bits.view(f"f{bits.itemsize}")


def check_enough(transformer: SuppressingTransformer, counted: Statistics) -> None:
    """Raise where a column has values, but fewer than suppression lets be told of."""
    n, holders = counted["n"], counted["holders"]
    least = transformer.min_count, transformer.min_holders
    short = np.flatnonzero((n > 0) & ((n < least[0]) | (holders < least[1])))
    if len(short):
        j = int(short[0])
        raise ValueError(
            f"column {transformer.column_name(j)!r} has {n[j]} values of {holders[j]} clients: "
            f"min_count={least[0]} and min_holders={least[1]} suppress its quantiles. Lower them, "
            "or leave the column out."
        )

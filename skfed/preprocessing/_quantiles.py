"""Exact quantiles of all clients' values, by bisection on counts.

Floats are numbered in their order, as unsigned integers of their bits. The server keeps, for each
wanted rank, a bracket of numbers that holds the value of that rank, sends the ends of 16 parts of
it, and goes on with the part that the sums of the clients' counts point at. A bracket of 2^64
numbers has one left after 17 exchanges; 9 for float32. Sums of counts are exact, so the result is
too.

Where the part to go on with holds too little to be told (``min_count``, ``min_holders``), a value
stands for the wanted one that is at most w from it: w is the width of the narrowest interval that
holds the wanted value and enough others. The server looks for it in brackets that hold enough, by
16 parts of equal width, 16 of equally many floats and some of powers at once, so that it gets near
to 0 quickly. In each it finds the narrowest run of parts that holds the wanted value and enough
others, of width W; so w <= W, and no value of that interval is farther than W from the wanted one,
which gives the next bracket. The middle of the last run is the result. The search ends where the
next bracket would be wider than 5/8 of the last, 10 of its 16 equal parts: it is at most 2 W and
one part wide, so W is at least 4.5 parts; the interval touches at most two parts beyond its width,
so w is at least 2.5 parts and W/2, which bounds the error, at most w/2 and one part, less than w.
"""

from collections.abc import Generator

import numpy as np
import torch

from skfed.preprocessing._base import Statistics, SuppressingTransformer
from skfed.preprocessing._moments import check_counts

_N_PARTS = 16
_BITS = {
    np.dtype(np.float64): np.uint64,
    np.dtype(np.float32): np.uint32,
    np.dtype(np.float16): np.uint16,
}


def sorted_columns(X: np.ndarray) -> np.ndarray:
    """Return each column's values in order, infinity for missing ones; (n_features, n_samples)."""
    values = np.where(np.isnan(X), X.dtype.type(np.inf), X + X.dtype.type(0))  # no -0.0
    return np.sort(np.ascontiguousarray(values.T), axis=1)


def client_counts(columns: np.ndarray, request: Statistics) -> Statistics:
    """Return the number of values of each column, or how many are at most each edge asked for."""
    if "edges" not in request:
        return {"n": np.isfinite(columns).sum(axis=1)}
    edges = request["edges"]
    # One call for all columns: with thousands of clients, calls take most of the time.
    dtype = np.float32 if columns.dtype == np.float16 else columns.dtype
    found = torch.searchsorted(
        torch.from_numpy(columns.astype(dtype, copy=False)),
        torch.from_numpy(edges.astype(dtype).reshape(len(edges), -1)),
        right=True,
    )
    return {"counts": found.numpy().reshape(edges.shape)}


def check_client_counts(sent: Statistics, n_samples: int) -> None:
    """Raise a ValueError if ``client_counts`` of so many rows are others."""
    name = "n" if "n" in sent else "counts"
    check_counts(name, sent[name], n_samples)
    if name == "counts" and (np.diff(sent[name], axis=-1) < 0).any():
        raise ValueError("its counts do not grow with the edges.")


def check_agreement(exchanges: list[tuple[Statistics, Statistics]]) -> None:
    """Raise a ValueError if the counts of several exchanges are not of the same values."""
    n = exchanges[0][1]["n"][:, None]
    pairs = [(asked["edges"], sent["counts"]) for asked, sent in exchanges[1:]]
    if not pairs:
        return
    edges, counts = (
        np.concatenate([one.reshape(len(n), -1) for one in ones], axis=1)
        for ones in zip(*pairs, strict=True)
    )
    order = np.lexsort((counts, edges))
    edges, counts = (np.take_along_axis(one, order, axis=1) for one in (edges, counts))
    steps, is_same_edge = np.diff(counts, axis=1), edges[:, 1:] == edges[:, :-1]
    is_last = edges == np.finfo(edges.dtype).max
    if (steps < 0).any() or steps[is_same_edge].any() or (counts > n).any():
        raise ValueError("its counts are not those of the same values in all exchanges.")
    if (is_last & (counts != n)).any():
        raise ValueError("its counts up to the largest number are not those of all values.")


def merge_counts(statistics: list[Statistics], min_holders: int) -> Statistics:
    """Return the sums of counts, and how many clients have values in what they count.

    Between edges, "holders" has in its last two axes the number of clients with values above one
    edge and up to another; it is there only if ``min_holders`` needs it.
    """
    if "n" in statistics[0]:
        n = [s["n"] for s in statistics]
        return {"n": sum(n), "holders": sum(one > 0 for one in n)}
    counts = [s["counts"] for s in statistics]
    merged: Statistics = {"counts": sum(counts)}
    if min_holders > 1:
        merged["holders"] = sum(one[..., None, :] > one[..., :, None] for one in counts)
    return merged


def neighbours(
    n: np.ndarray, shares: list[float], dtype: np.dtype, min_count: int, min_holders: int
) -> Generator[Statistics, Statistics, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield edges, get merged counts, and return the values that quantiles lie between.

    ``n`` has the number of values of each column, ``shares`` the quantiles in [0, 1]. Returned are
    the value below, the one above, the part of the way between, and how far suppressed values may
    be from the true ones, NaN where none is suppressed; each of shape (n_features, n_shares).
    """
    places = np.maximum(n[:, None] - 1, 0) * np.asarray(shares, dtype=np.float64)
    below = np.floor(places).astype(np.int64)
    ranks = np.concatenate([below, np.ceil(places).astype(np.int64)], axis=1)
    values, _, errors = yield from order_statistics(ranks, n, dtype, min_count, min_holders)
    low, high = np.split(values, 2, axis=1)
    return low, high, places - below, np.fmax(*np.split(errors, 2, axis=1))


def interpolate(low: np.ndarray, high: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return values between neighbours, in the two forms of numpy, each exact at its own end."""
    step = high - low
    return np.where(part >= 0.5, high - step * (1 - part), low + step * part)


def order_statistics(
    ranks: np.ndarray, n: np.ndarray, dtype: np.dtype, min_count: int, min_holders: int
) -> Generator[Statistics, Statistics, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield edges, get merged counts, and return the values of the wanted ranks.

    Parameters
    ----------
    ranks : ndarray of shape (n_features, n_ranks), dtype=int
        Wanted ranks, from 0, of columns that have values; others are NaN in the result.
    n : ndarray of shape (n_features,)
        Numbers of values.
    dtype : dtype
        float64, float32 or float16.
    min_count, min_holders : int
        What a bracket has to hold.

    Returns
    -------
    values : ndarray of shape (n_features, n_ranks)
        The values, or what stands for them.
    suppressed : ndarray of bool, of the same shape
        Where something else stands for the value.
    errors : ndarray of float, of the same shape
        How far that may be from the value; NaN where the value is exact.
    """
    least = min_count, min_holders
    low, high, frozen = yield from _bisect(ranks, n, np.dtype(dtype), least)
    suppressed = frozen & (n[:, None] > 0)
    values = _to_floats(high).astype(np.float64)
    errors = np.full(ranks.shape, np.nan)
    if suppressed.any():
        bracket = _to_floats(low + low.dtype.type(1)), _to_floats(high)
        middles, halves = yield from _narrow(ranks, bracket, suppressed, least)
        values = _in_order(np.where(suppressed, middles, values), ranks, suppressed)
        errors[suppressed] = halves[suppressed]
    return np.where(n[:, None] > 0, values, np.nan).astype(dtype), suppressed, errors


def _bisect(
    ranks: np.ndarray, n: np.ndarray, dtype: np.dtype, least: tuple[int, int]
) -> Generator[Statistics, Statistics, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Divide brackets of numbers; return their ends, and a mask of those that are not divided."""
    numbers = _BITS[dtype]
    largest = np.array([-np.finfo(dtype).max, np.finfo(dtype).max], dtype)
    first, last = _to_numbers(largest)
    low = np.full(ranks.shape, first - numbers(1))  # the bracket is (low, high]
    high = np.full(ranks.shape, last)
    frozen = np.broadcast_to(n[:, None] == 0, ranks.shape).copy()
    while (active := ~frozen & (high - low > 1)).any():
        edges = _edges(low, high)
        merged = yield {"edges": _to_floats(np.where(active[..., None], edges, high[..., None]))}
        part = _part_of(merged, ranks)
        start, end = _pick(merged["counts"], part), _pick(merged["counts"], part + 1)
        enough = end - start >= least[0]
        if least[1] > 1:
            holders = np.diagonal(merged["holders"], 1, axis1=-2, axis2=-1)
            enough &= _pick(holders, part) >= least[1]
        frozen |= active & ~enough
        go_on = active & enough
        low = np.where(go_on, _pick(edges, part), low)
        high = np.where(go_on, _pick(edges, part + 1), high)
    return low, high, frozen


def _narrow(
    ranks: np.ndarray,
    bracket: tuple[np.ndarray, np.ndarray],
    active: np.ndarray,
    least: tuple[int, int],
) -> Generator[Statistics, Statistics, tuple[np.ndarray, np.ndarray]]:
    """Return middles of narrow intervals that hold values and enough others, and half widths."""
    dtype = bracket[0].dtype
    most = float(np.finfo(dtype).max)
    low, high = (end.astype(np.float64) for end in bracket)
    half = high / 2 - low / 2  # halves do not overflow
    with np.errstate(over="ignore"):
        low, high = np.maximum(low - 2 * half, -most), np.minimum(high + 2 * half, most)
    middles, halves = low / 2 + high / 2, high / 2 - low / 2
    while active.any():
        edges = np.where(active[..., None], _fine_edges(low, high, dtype), high[..., None])
        merged = yield {"edges": edges.astype(dtype)}
        edges = edges.astype(dtype).astype(np.float64)
        part = _part_of(merged, ranks)
        start, end = _narrowest_run(merged, edges, part, least)
        middles = np.where(active, start / 2 + end / 2, middles)
        halves = np.where(active, end / 2 - start / 2, halves)
        with np.errstate(over="ignore"):
            width = 2 * (end / 2 - start / 2)
            next_low = np.maximum(low, _pick(edges, part) - width)
            next_high = np.minimum(high, _pick(edges, part + 1) + width)
        shrinks = next_high / 2 - next_low / 2 < 5 / 8 * (high / 2 - low / 2)
        active = active & shrinks & (end > start)
        low, high = np.where(active, next_low, low), np.where(active, next_high, high)
    return middles, halves


def _narrowest_run(
    merged: Statistics, edges: np.ndarray, part: np.ndarray, least: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the narrowest run of parts that has the given one and holds enough."""
    counts, places = merged["counts"], np.arange(edges.shape[-1])
    before = places <= part[..., None]
    fits = before[..., :, None] & ~before[..., None, :]
    fits &= counts[..., None, :] - counts[..., :, None] >= least[0]
    if least[1] > 1:
        fits &= merged["holders"] >= least[1]
    halves = edges[..., None, :] / 2 - edges[..., :, None] / 2
    halves = np.where(fits, halves, np.inf).reshape(*part.shape, -1)
    start, end = np.divmod(halves.argmin(axis=-1), len(places))
    return _pick(edges, start), _pick(edges, end)


def _in_order(values: np.ndarray, ranks: np.ndarray, suppressed: np.ndarray) -> np.ndarray:
    """Return values that increase with their ranks, where only suppressed ones are changed."""
    order = np.argsort(ranks, axis=1, kind="stable")
    v, s = np.take_along_axis(values, order, axis=1), np.take_along_axis(suppressed, order, axis=1)
    above = np.minimum.accumulate(np.where(s, np.inf, v)[:, ::-1], axis=1)[:, ::-1]
    v = np.maximum.accumulate(np.minimum(v, above), axis=1)
    result = values.copy()
    np.put_along_axis(result, order, v, axis=1)
    return result


def _part_of(merged: Statistics, ranks: np.ndarray) -> np.ndarray:
    """Return the number of the part between edges in which the value of each rank is."""
    return np.argmax(merged["counts"][..., 1:] > ranks[..., None], axis=-1)


def _pick(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, place[..., None], axis=-1)[..., 0]


def _fine_edges(low: np.ndarray, high: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the ends of 16 parts of equal width, of 16 of equally many floats, and powers.

    Those are powers of 1/256 of the bracket's magnitude, for values that are much smaller.
    """
    shares = np.arange(_N_PARTS + 1) / _N_PARTS
    by_width = low[..., None] * (1 - shares) + high[..., None] * shares
    numbers = (_to_numbers(end.astype(dtype) + dtype.type(0)) for end in (low, high))
    by_number = _to_floats(_edges(*numbers)).astype(np.float64)
    powers = np.maximum(abs(low), abs(high))[..., None] * 2.0 ** (-8 * np.arange(1, _N_PARTS))
    powers = np.concatenate([-powers, powers], axis=-1).clip(low[..., None], high[..., None])
    return np.sort(np.concatenate([by_width, by_number, powers], axis=-1), axis=-1)


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

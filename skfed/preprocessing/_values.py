"""Distinct values of columns, how often they occur, and how many clients have them."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd

from skfed.preprocessing._base import Statistics


@dataclass(frozen=True)
class Values:
    """The distinct values of a column over all clients."""

    values: np.ndarray
    counts: np.ndarray  # rows that have the value
    holders: np.ndarray  # clients that have it

    def take(self, mask: np.ndarray) -> "Values":
        """Return some of the values."""
        return Values(self.values[mask], self.counts[mask], self.holders[mask])


def distinct(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values of a column and their counts; all NaN are one value."""
    if column.dtype != object:
        return np.unique(column, return_counts=True)
    counter = Counter(map(_one_nan, column))
    return _objects(counter), np.fromiter(counter.values(), dtype=np.int64, count=len(counter))


def client_values(
    columns: list[np.ndarray], min_count: int, column_name: Callable[[int], Hashable]
) -> Statistics:
    """Return values and counts of each column, those of fewer rows than ``min_count`` left out."""
    found = [_distinct_of(column, column_name(j)) for j, column in enumerate(columns)]
    enough = [counts >= min_count for _, counts in found]
    return {
        "values": [values[mask] for (values, _), mask in zip(found, enough, strict=True)],
        "counts": [counts[mask] for (_, counts), mask in zip(found, enough, strict=True)],
    } | ({} if all(mask.all() for mask in enough) else {"suppressed": True})


def _distinct_of(column: np.ndarray, name: Hashable) -> tuple[np.ndarray, np.ndarray]:
    try:
        return distinct(column)
    except TypeError as error:
        raise TypeError(
            f"column {name!r}: an argument must be a string or a number: {error}."
        ) from error


def check_values(sent: Statistics, n_values: np.ndarray) -> None:
    """Raise a ValueError if ``client_values`` are not those of so many values of each column."""
    is_whole = "counts" in sent and not np.any(sent.get("suppressed", False))
    for j, (values, most) in enumerate(zip(sent["values"], n_values.tolist(), strict=True)):
        counts = sent["counts"][j] if "counts" in sent else np.ones(len(values), dtype=np.int64)
        if len(counts) != len(values) or (counts < 1).any() or (counts > most).any():
            raise ValueError("it has counts of values that are not those of its rows.")
        if counts.sum() > most or (is_whole and counts.sum() != most):
            raise ValueError("its counts are not those of its rows together.")
        if len(distinct(values)[0]) < len(values):
            raise ValueError("it has the same value more than once.")


def kinds_of(*columns: np.ndarray) -> set[str]:
    """Return what the values are: numbers, or else names of types; without missing ones."""
    values = [value for column in columns for value in column.tolist() if not pd.isna(value)]
    return {"number" if isinstance(one, Number) else type(one).__name__ for one in values}


def merge_values(statistics: list[Statistics]) -> list[Values]:
    """Return the distinct values of each column over all clients."""
    if "counts" not in statistics[0]:
        statistics = [
            {**s, "counts": [np.ones(len(values), int) for values in s["values"]]}
            for s in statistics
        ]
    return [
        _merge_column([s["values"][j] for s in statistics], [s["counts"][j] for s in statistics])
        for j in range(len(statistics[0]["values"]))
    ]


def _merge_column(values: list[np.ndarray], counts: list[np.ndarray]) -> Values:
    if values[0].dtype != object:
        merged, at, holders = np.unique(
            np.concatenate(values), return_inverse=True, return_counts=True
        )
        totals = np.zeros(len(merged), dtype=np.int64)
        np.add.at(totals, at, np.concatenate(counts))
        return Values(merged, totals, holders)
    rows: Counter = Counter()
    clients: Counter = Counter()
    for of_client, numbers in zip(values, counts, strict=True):
        normal = [_one_nan(value) for value in of_client]
        clients.update(normal)
        for value, number in zip(normal, numbers.tolist(), strict=True):
            rows[value] += number
    counts_and_holders = np.array([(rows[v], clients[v]) for v in rows], dtype=np.int64)
    return Values(_objects(rows), *counts_and_holders.reshape(-1, 2).T)


def _objects(values: Any) -> np.ndarray:
    return np.fromiter(values, dtype=object, count=len(values))


def _one_nan(value: Any) -> Any:
    """Return the one NaN for every NaN, so that they are equal as keys."""
    return np.nan if isinstance(value, float) and value != value else value

"""Rows of one client among those of others, read in blocks that fit in a processor's cache."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_BLOCK = 2**19  # bytes
_LEAST_ROWS = 64


@dataclass(frozen=True)
class ClientRows:
    """Some rows of an array; they are copied only block by block, where they are read."""

    array: np.ndarray
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)


def blocks(rows: np.ndarray | ClientRows) -> Iterator[np.ndarray]:
    """Yield the rows in order, some at a time; at least one block, which may be empty."""
    array = rows.array if isinstance(rows, ClientRows) else rows
    n_rows = max(_LEAST_ROWS, _BLOCK // max(1, array.itemsize * array.shape[1]))
    for start in range(0, max(len(rows), 1), n_rows):
        if isinstance(rows, ClientRows):
            yield array.take(rows.indices[start : start + n_rows], axis=0)
        else:
            # In the order that take returns: sums are rounded in the order of memory.
            yield np.ascontiguousarray(array[start : start + n_rows])

"""A random projection of gradients and updates, by which a server compares clients."""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import torch

from skfed.selection._past import SKETCH_SIZE
from skfed.utils._seeding import Purpose, stream

_BLOCK = 2**16  # numbers that are projected at once
_N_ROWS = 4  # of a block's matrix that are not 0, in each column


def project(tensors: Iterable[torch.Tensor], seed: int) -> np.ndarray:
    """Return a random projection of some tensors together, of shape (64,).

    Inner products are kept in expectation. Each number is added, with a random sign, to four of the
    64, one of each sixteen (Kane and Nelson: Sparser Johnson-Lindenstrauss Transforms, 2014): a
    dense matrix of 64 rows takes 256 bytes a parameter. Sums are in float64 and in the order of the
    tensors, so that they do not depend on how clients are cut into chunks.
    """
    flat = np.concatenate(
        [tensor.detach().cpu().double().numpy().ravel() for tensor in tensors] or [np.zeros(0)]
    )
    result = np.zeros(SKETCH_SIZE)
    for block, start in enumerate(range(0, len(flat), _BLOCK)):
        values = flat[start : start + _BLOCK]
        rows, signs = _block(seed, block)
        for own, sign in zip(rows[:, : len(values)], signs[:, : len(values)], strict=True):
            result += np.bincount(own, sign * values, minlength=SKETCH_SIZE)
    return result / np.sqrt(_N_ROWS)


@lru_cache(maxsize=4)
def _block(seed: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and signs of a block of the projection, (4, 65536) each."""
    rng, n_of_group = stream(seed, Purpose.PROJECTION, block), SKETCH_SIZE // _N_ROWS
    rows = rng.integers(n_of_group, size=(_N_ROWS, _BLOCK), dtype=np.uint8)
    rows += (np.arange(_N_ROWS, dtype=np.uint8) * n_of_group)[:, None]
    return rows, rng.integers(2, size=rows.shape, dtype=np.int8) * 2 - 1

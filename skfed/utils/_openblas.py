"""Products of small matrices, one for each client, by numpy; ``_products`` has where it is faster.

torch multiplies by MKL, which packs matrices before it multiplies them: with 10 classes or batches
of 20 rows this takes as long as the product. On processors of AMD it also uses 256 bits at a time.
OpenBLAS, of which numpy's wheels have a copy, has kernels without packing for processors with
AVX-512. They run in the thread that calls: their rounding does not depend on the number of threads,
as that of OpenBLAS's other kernels does. On an Intel Xeon with AVX-512 MKL is faster than they are.
"""

from functools import cache, lru_cache

import numpy as np
import torch
from threadpoolctl import threadpool_info

# What OpenBLAS has kernels for (sgemm_small_kernel_permit_skylakex.c). Any product has at most so
# many multiplications.
_MOST_MULTIPLICATIONS = 1_000_000
# Where the rows of the first matrix and the columns of the second are contiguous, they have at
# least this length, and the product at most so many elements.
_SHORTEST_VECTORS = 32
_MOST_ELEMENTS = 1200
# There is none for vectors, nor where the columns of both matrices are contiguous.
_CORES = {"skylakex", "cooperlake", "sapphirerapids"}  # OpenBLAS's names of processors with them

_FEWEST_INPUTS = 128  # of a layer: with fewer, calls take more time than the kernels save
_MOST_PARTS = 2  # of a product that is too large as a whole: each part reads the rows again


@cache
def has_kernels() -> bool:
    """Tell whether numpy multiplies by OpenBLAS's kernels for a processor with AVX-512."""
    built_with = np.show_config(mode="dicts").get("Build Dependencies", {})
    if "openblas" not in built_with.get("blas", {}).get("name", ""):
        return False
    libraries = [one for one in threadpool_info() if one["internal_api"] == "openblas"]
    cores = {str(one.get("architecture")).lower() for one in libraries}
    return bool(cores) and cores <= _CORES


def is_wide(weight: torch.Tensor) -> bool:
    """Tell whether a layer (..., out, in) has so many inputs that the kernels save time."""
    return weight.shape[-1] >= _FEWEST_INPUTS


class SmallProduct:
    """Products of two stacks of small float32 matrices, each into the memory of the one before."""

    def __init__(self) -> None:
        self._result = torch.empty(0)

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
        """Return ``torch.bmm(a, b)``, valid until the next call; None if torch is to compute it."""
        n, m, k = a.shape
        p = b.shape[2]
        n_parts = _count_parts(m, k, p, a.stride(2) == 1, b.stride(2) == 1)
        if not n_parts:
            return None
        if self._result.shape != (n, m, p):
            self._result = torch.empty((n, m, p), dtype=torch.float32)
        one, other, out = a.numpy(), b.numpy(), self._result.numpy()
        if n_parts > 1:
            rows = n, n_parts, m // n_parts
            one, other, out = one.reshape(*rows, k), other[:, None], out.reshape(*rows, p)
        np.matmul(one, other, out=out)
        return self._result


@lru_cache
def _count_parts(m: int, k: int, p: int, by_rows: bool, by_other_rows: bool) -> int:
    """Return in how many parts an (m, k) matrix can be multiplied with a (k, p) one; 0 for none.

    ``by_rows`` and ``by_other_rows`` tell whose rows are contiguous.
    """
    if min(k, p) == 1:
        return 0
    if by_other_rows:
        return int(m > 1 and m * k * p <= _MOST_MULTIPLICATIONS)
    if by_rows and k >= _SHORTEST_VECTORS:
        most = min(_MOST_ELEMENTS, _MOST_MULTIPLICATIONS // k)
        for n_parts in range(1, _MOST_PARTS + 1):
            rows = m // n_parts
            if m % n_parts == 0 and rows > 1 and rows * p <= most:
                return n_parts
    return 0

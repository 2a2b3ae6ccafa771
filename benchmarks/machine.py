"""What the machine can do: FLOP/s, bytes/s, and its caches; the floors are made from these."""

import time
from collections.abc import Iterable
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.workloads import N_PIXELS, ROW_BYTES
from skfed.utils._products import PRODUCTS

CACHE_BYTES = 32 * 2**20  # of a machine that does not name its caches


def gemm_peak(seconds: float = 0.3) -> float:
    """Return the highest measured FLOP/s of a float32 matrix product, on torch's threads.

    It is computed by the library that skfed uses for large products.
    """
    size = 1024
    a, b = torch.randn(2, size, size)
    return 2 * size**3 / _fastest(lambda: PRODUCTS.linear(a, b, None, size), seconds)


def gather_rate(seconds: float = 0.3) -> float:
    """Return the highest measured bytes/s of rows taken at random out of memory."""
    source = _uncached_rows()
    taken = np.empty((256, N_PIXELS), source.dtype)
    batches = cycle(np.random.default_rng(0).integers(len(source), size=(1000, len(taken))))
    take = partial(np.take, source, axis=0, out=taken, mode="clip")
    return taken.nbytes / _fastest(lambda: take(indices=next(batches)), seconds)


@cache
def _uncached_rows() -> np.ndarray:
    """Return rows of an image each, many times more than the cache holds."""
    return np.ones((8 * last_cache_bytes() // ROW_BYTES, N_PIXELS), np.float32)


def gpu_rates(seconds: float = 0.05) -> tuple[float, float]:
    """Return the highest measured FLOP/s and bytes/s of a GPU, of the same two kinds."""
    size = 4096
    a, b = torch.randn(2, size, size, device="cuda")
    source = torch.ones(8 * gpu_cache_bytes() // ROW_BYTES, N_PIXELS, device="cuda")
    numbers = torch.randint(len(source), (2**16,), device="cuda")

    def and_wait(call) -> None:
        call()
        torch.cuda.synchronize()

    multiplying = _fastest(partial(and_wait, partial(torch.mm, a, b)), seconds)
    gathering = _fastest(partial(and_wait, partial(source.index_select, 0, numbers)), seconds)
    return 2 * size**3 / multiplying, len(numbers) * ROW_BYTES / gathering


def gpu_cache_bytes() -> int:
    """Return the bytes of the GPU's last cache."""
    return torch.cuda.get_device_properties().L2_cache_size


def _fastest(call, seconds: float) -> float:
    """Return the shortest time of calls that take ``seconds``, one at least."""
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        started = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - started)
        if now >= end:
            return best


def cache_sizes() -> dict[str, int]:
    """Return the bytes of the caches of the first core by level, as Linux names them."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            level, size = ((index / name).read_text().strip() for name in ("level", "size"))
            sizes[f"L{level}"] = int(size.removesuffix("K")) * 1024
    return sizes


def last_cache_bytes() -> int:
    """Return the bytes of the largest cache, or 32 MiB where the system does not tell."""
    return max(cache_sizes().values(), default=CACHE_BYTES)


class Floor:
    """The least time that rounds can take, by their FLOPs and by the bytes that they read."""

    def __init__(self, on_gpu: bool = False):
        self.on_gpu = on_gpu
        self.rates: list[tuple[float, float]] = []
        self.seconds: list[tuple[float, float]] = []

    def add(self, rounds: Iterable[tuple[float, float]]) -> None:
        """Add rounds by their FLOPs and bytes, at the rates measured now."""
        rates = gpu_rates() if self.on_gpu else (gemm_peak(), gather_rate())
        self.rates.append(rates)
        self.seconds.extend((flops / rates[0], read / rates[1]) for flops, read in rounds)

    def info(self) -> dict[str, float]:
        """Return the floor, which is the larger one, both of them, and the rates: medians."""
        by_flops, by_bytes = (median(values) for values in zip(*self.seconds, strict=True))
        flop_rate, byte_rate = (median(values) for values in zip(*self.rates, strict=True))
        return {
            "floor": max(by_flops, by_bytes),
            "floor by FLOPs": by_flops,
            "floor by bytes": by_bytes,
            "FLOP/s": flop_rate,
            "bytes/s": byte_rate,
        }

    def __str__(self) -> str:
        info = self.info()
        by_flops, by_bytes = info["floor by FLOPs"], info["floor by bytes"]
        return f"floor {by_flops:.4f} s by FLOPs, {by_bytes:.4f} s by bytes read"

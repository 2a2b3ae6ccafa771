"""Memory that is used again: that of a chunk of clients, for the next."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from skfed.engines.products._cuda_graphs import StepGraphs
from skfed.utils._pools import Pool


class Memory:
    """Tensors by name that use the same memory again: fresh pages would take longer.

    Attributes
    ----------
    graphs : StepGraphs
        CUDA graphs of steps that use these tensors.
    """

    def __init__(self):
        self.graphs = StepGraphs()
        self._blocks: dict[str, torch.Tensor] = {}
        self._last: dict[str, torch.Tensor] = {}  # views of the blocks, in their shapes

    @property
    def n_bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(block.nbytes for block in self._blocks.values())

    def empty(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, device: Any = "cpu"
    ) -> torch.Tensor:
        """Return a tensor with any values; it is valid until the next of this name."""
        last = self._last.get(name)
        if last is not None and last.shape == shape and last.dtype == dtype:
            return last
        needed = torch.Size(shape).numel()
        block = self._blocks.get(name)
        if block is None or block.numel() < needed or block.dtype != dtype:
            if torch.device(device).type != "cpu":
                self.graphs.clear()
            block = self._blocks[name] = torch.empty(needed, dtype=dtype, device=device)
        last = self._last[name] = block[:needed].view(torch.Size(shape))
        return last


class MemoryPool(Pool[Memory]):
    """Memories, each used by one thread at a time."""

    def borrowed(self) -> AbstractContextManager[Memory]:
        """Context manager for a memory that no other thread has."""
        return self._borrowed(Memory)

    def close(self) -> None:
        """Forget the CUDA graphs of all memories."""
        for one in self._idle:
            one.graphs.close()

    def _n_bytes(self, one: Memory) -> int:
        return one.n_bytes

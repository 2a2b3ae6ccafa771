"""Memory that is used again from one chunk of clients to the next."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class Memory:
    """Tensors by name: the system would hand out fresh pages for each, and that takes longer."""

    def __init__(self):
        self._blocks: dict[str, torch.Tensor] = {}

    def empty(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, device: Any = "cpu"
    ) -> torch.Tensor:
        """Return a tensor of any content; it is valid until the next of this name."""
        needed = torch.Size(shape).numel()
        block = self._blocks.get(name)
        if block is None or block.numel() < needed or block.dtype != dtype:
            block = self._blocks[name] = torch.empty(needed, dtype=dtype, device=device)
        return block[:needed].view(torch.Size(shape))


class MemoryPool:
    """Lends a memory to one thread at a time."""

    def __init__(self):
        self._idle: list[Memory] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"_idle": []}  # nothing of it is worth sending to another process

    @contextmanager
    def borrowed(self) -> Iterator[Memory]:
        """Lend a memory that nobody else has."""
        try:
            memory = self._idle.pop()
        except IndexError:
            memory = Memory()
        try:
            yield memory
        finally:
            self._idle.append(memory)

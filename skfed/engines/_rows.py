"""The rows of one array, taken by row number to where the net computes."""

from collections.abc import Iterator

import numpy as np
import torch

from skfed.engines._memory import Memory
from skfed.nets import CastRows


class ArrayRows:
    """The rows of one array, which is X or under a key of it.

    Parameters
    ----------
    array : ndarray or CastRows of shape (n_samples, ...)
        In the dtype of the module.
    name : str
        That of the array in a ``Memory``.
    device : torch.device
        Where the net computes.
    moves_whole : bool
        Whether all of it is moved there now, or the rows of each step.
    """

    def __init__(
        self, array: np.ndarray | CastRows, name: str, device: torch.device, moves_whole: bool
    ):
        self.array, self.name, self.device = array, name, device
        self._moved: torch.Tensor | None = None
        if moves_whole:
            whole = np.require(array, requirements=("C", "W"))
            self._moved = torch.from_numpy(whole).to(device)

    def take(self, rows: np.ndarray | torch.Tensor, memory: Memory) -> torch.Tensor:
        """Return what is at prepared row numbers; see ``Dataset.take``."""
        if isinstance(rows, torch.Tensor):
            assert self._moved is not None
            shape = *rows.shape, *self.array.shape[1:]
            return self._moved.index_select(0, rows.flatten()).view(shape)
        (taken,) = self.batches(rows[None], memory)
        return taken

    def batches(self, rows: np.ndarray | torch.Tensor, memory: Memory) -> Iterator[torch.Tensor]:
        """Yield what is at each entry of an array of row numbers; see ``Dataset.batches``."""
        shape = (*rows.shape[1:], *self.array.shape[1:])
        if isinstance(rows, torch.Tensor):
            assert self._moved is not None
            out = memory.empty(f"{self.name} on device", shape, self._moved.dtype, self.device)
            by_row = out.view(-1, *self.array.shape[1:])
            for numbers in rows.flatten(1):
                torch.index_select(self._moved, 0, numbers, out=by_row)
                yield out
        elif isinstance(self.array, np.ndarray) and self.array.flags.c_contiguous:
            out = memory.empty(self.name, shape, _torch_dtype(self.array.dtype))
            flat = out.numpy().reshape(-1, *self.array.shape[1:])
            for numbers in rows.reshape(len(rows), -1):
                # Not torch's index_select, which is as fast, since torch takes no read-only array.
                np.take(self.array, numbers, axis=0, out=flat, mode="clip")
                yield self._on_device(out, memory)
        else:  # np.take would copy all of it
            for numbers in rows:
                yield self._on_device(torch.from_numpy(self.array[numbers]), memory)

    def _on_device(self, rows: torch.Tensor, memory: Memory) -> torch.Tensor:
        """Return rows where the net computes."""
        if self.device.type == "cpu":
            return rows
        name = f"{self.name} on device"
        return memory.empty(name, rows.shape, rows.dtype, self.device).copy_(rows)


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype

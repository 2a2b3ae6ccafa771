"""The data of all clients, taken by row number to where the net computes.

X is never copied as a whole nor sorted by client, so it may be a memory map larger than memory.
"""

import numpy as np
import torch

from skfed.engines._memory import Memory


class Rows:
    """X and y of all clients.

    On a GPU X is moved there once if it fills at most half of its free memory; else the rows of
    each step are moved. Which of the two changes no result.

    Parameters
    ----------
    X : ndarray of shape (n_samples, ...)
        In the dtype of the module.
    y : ndarray of shape (n_samples,)
        Encoded targets.
    device : str, default="cpu"
        Where the net computes.
    weights : ndarray of shape (n_samples,), default=None
        By which the losses of rows are averaged; None: all alike.
    """

    def __init__(
        self,
        X: np.ndarray,
        y: np.ndarray,
        device: str = "cpu",
        weights: np.ndarray | None = None,
    ):
        self.X, self.y, self.device = X, y, torch.device(device)
        self.weights = weights
        self._moved: torch.Tensor | None = None
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            if 2 * X.nbytes <= free:
                whole = np.require(X, requirements=("C", "W"))
                self._moved = torch.from_numpy(whole).to(self.device)

    def prepare(self, rows: np.ndarray) -> tuple[np.ndarray | torch.Tensor, torch.Tensor]:
        """Return row numbers as ``take`` wants them, parts of them at a time, and their y."""
        y = torch.from_numpy(self.y[rows]).to(self.device)
        return rows if self._moved is None else torch.from_numpy(rows).to(self.device), y

    def weigh(self, rows: np.ndarray) -> torch.Tensor | None:
        """Return the weights of rows, in the shape of ``rows``, if they have any."""
        if self.weights is None:
            return None
        return torch.from_numpy(self.weights[rows]).to(self.device)

    def take(self, rows: np.ndarray | torch.Tensor, memory: Memory) -> torch.Tensor:
        """Return X at prepared row numbers, in the shape of ``rows``, on the device.

        It may be in ``memory``, and is valid until the next call.
        """
        if isinstance(rows, torch.Tensor):
            assert self._moved is not None
            return self._moved.index_select(0, rows.flatten()).view(*rows.shape, *self.X.shape[1:])
        return self._gather(rows, memory).to(self.device)

    def _gather(self, rows: np.ndarray, memory: Memory) -> torch.Tensor:
        if not self.X.flags.c_contiguous:  # np.take would copy X whole
            return torch.from_numpy(self.X[rows])
        out = memory.empty("X", (*rows.shape, *self.X.shape[1:]), _torch_dtype(self.X.dtype))
        # Not torch's index_select, which is as fast, since torch takes no read-only array.
        flat = out.numpy().reshape(rows.size, *self.X.shape[1:])
        np.take(self.X, rows.ravel(), axis=0, out=flat, mode="clip")
        return out


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype

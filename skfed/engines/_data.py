"""The rows of all clients, taken by row number to where the net computes, and their weights.

X is never copied as a whole nor sorted by client, so it may be a memory map larger than memory.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn

from skfed._federation import Federation
from skfed.engines._memory import Memory
from skfed.nets import Samples, arrays_of, from_arrays, moved, overridden, weighed
from skfed.utils._checks import naming
from skfed.utils._seeding import torch_seeded
from skfed.utils._sklearn import check_sample_weight

#: Methods of a net that a loss with weights of rows goes through.
_LOSS_METHODS = "train_step", "train_step_single", "validation_step", "infer", "get_loss"


class Dataset:
    """X and y of all clients.

    On a GPU X is moved there once if it is an array that fills at most half of its free memory;
    else the rows of each step are moved. Which of the two changes no result.

    Parameters
    ----------
    X : ndarray, CastRows or DictRows of shape (n_samples, ...)
        In the dtype of the module.
    y : ndarray of shape (n_samples,)
        Encoded targets.
    device : str, default="cpu"
        Where the net computes.
    weights : ndarray of shape (n_samples,), default=None
        Weights of the rows in the loss; None: all alike.
    """

    def __init__(
        self,
        X: Samples,
        y: np.ndarray,
        device: str = "cpu",
        weights: np.ndarray | None = None,
    ):
        self.X, self.y, self.device = X, y, torch.device(device)
        self.weights = weights
        self._moved: torch.Tensor | None = None
        if self.device.type == "cuda" and isinstance(X, np.ndarray):
            free, _ = torch.cuda.mem_get_info(self.device)
            if 2 * X.nbytes <= free:
                whole = np.require(X, requirements=("C", "W"))
                self._moved = torch.from_numpy(whole).to(self.device)

    @classmethod
    def of(
        cls, keys: tuple[str, ...] | None, arrays: Sequence[np.ndarray], device: str = "cpu"
    ) -> Self:
        """Return a dataset of the keys and arrays of another."""
        n = 1 if keys is None else len(keys)
        y, *weights = arrays[n:]
        return cls(from_arrays(keys, arrays[:n]), y, device, *weights)

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The keys of X if it is a dict."""
        return arrays_of(self.X)[0]

    @property
    def arrays(self) -> tuple[Samples, ...]:
        """The array of X or those by key, y, and the weights if rows have any."""
        _, arrays = arrays_of(self.X)
        return (*arrays, self.y) if self.weights is None else (*arrays, self.y, self.weights)

    def prepare(self, rows: np.ndarray) -> tuple[np.ndarray | torch.Tensor, torch.Tensor]:
        """Return row numbers in the form that ``take`` needs, and their y."""
        y = moved(torch.from_numpy(self.y[rows]), self.device)
        return rows if self._moved is None else torch.from_numpy(rows).to(self.device), y

    def weigh(self, rows: np.ndarray) -> torch.Tensor | None:
        """Return the weights of rows, in the shape of ``rows``, if they have any."""
        if self.weights is None:
            return None
        return moved(torch.from_numpy(self.weights[rows]), self.device)

    def take(self, rows: np.ndarray | torch.Tensor, memory: Memory) -> torch.Tensor:
        """Return X at prepared row numbers, in the shape of ``rows``, on the device.

        It may be in ``memory``, and is valid until the next call.
        """
        if isinstance(rows, torch.Tensor):
            assert self._moved is not None
            return self._moved.index_select(0, rows.flatten()).view(*rows.shape, *self.X.shape[1:])
        (X,) = self.batches(rows[None], memory)
        return X

    def batches(self, rows: np.ndarray | torch.Tensor, memory: Memory) -> Iterator[torch.Tensor]:
        """Yield X at each entry of an array of prepared row numbers; see ``take``.

        On a GPU all are at the same address, as those of the next call of this shape, if no larger
        one comes between.
        """
        shape = (*rows.shape[1:], *self.X.shape[1:])
        if isinstance(rows, torch.Tensor):
            assert self._moved is not None
            out = memory.empty("X on device", shape, self._moved.dtype, self.device)
            by_row = out.view(-1, *self.X.shape[1:])
            for numbers in rows.flatten(1):
                torch.index_select(self._moved, 0, numbers, out=by_row)
                yield out
        elif isinstance(self.X, np.ndarray) and self.X.flags.c_contiguous:
            out = memory.empty("X", shape, _torch_dtype(self.X.dtype))
            flat = out.numpy().reshape(-1, *self.X.shape[1:])
            for numbers in rows.reshape(len(rows), -1):
                # Not torch's index_select, which is as fast, since torch takes no read-only array.
                np.take(self.X, numbers, axis=0, out=flat, mode="clip")
                yield self._on_device(out, memory)
        else:  # np.take would copy all of X
            for numbers in rows:
                yield self._on_device(torch.from_numpy(self.X[numbers]), memory)

    def _on_device(self, X: torch.Tensor, memory: Memory) -> torch.Tensor:
        """Return rows where the net computes."""
        if self.device.type == "cpu":
            return X
        return memory.empty("X on device", X.shape, X.dtype, self.device).copy_(X)


def clients_with_weight(sample_weight, X: np.ndarray, federation: Federation) -> Federation:
    """Return the federation of the clients that have a row with weight: the others have no loss.

    Raises
    ------
    ValueError
        If there is not one a row, one is negative or not finite, or no priority client has any.
    """
    weights = _checked_weights(sample_weight, X, "sample_weight")
    left_out = _largest_weights(weights, federation) == 0
    if not left_out.any():
        return federation
    if not (federation.priority & ~left_out).any():
        raise ValueError("sample_weight is zero in all rows of the priority clients.")
    return federation.without(left_out)


def row_weights(
    sample_weight, X: np.ndarray, federation: Federation, name: str = "sample_weight"
) -> np.ndarray:
    """Check the weights of rows; return them as fractions of their client's largest.

    A batch is of one client, so that its loss does not depend on their scale. Those of rows of no
    client are 0.

    Raises
    ------
    ValueError
        If there is not one a row, one is negative or not finite, or all of a client's are 0.
    """
    weights = _checked_weights(sample_weight, X, name)
    largest = _largest_weights(weights, federation)
    if not largest.all():
        (client,) = federation.names(np.flatnonzero(largest == 0)[:1])
        raise ValueError(
            f"{name} is zero in all rows of client {client!r}, so it has no loss: leave its "
            "rows out of fit, or give one of them a weight."
        )
    scaled = np.zeros_like(weights)
    scaled[federation.order] = weights[federation.order] / np.repeat(largest, federation.sizes)
    return scaled


def _checked_weights(sample_weight, X: np.ndarray, name: str) -> np.ndarray:
    with naming(name):
        return check_sample_weight(
            sample_weight,
            X,
            dtype=np.float64,
            ensure_non_negative=True,
            allow_all_zero_weights=True,
        )


def _largest_weights(weights: np.ndarray, federation: Federation) -> np.ndarray:
    """Return the largest weight of a row of each client."""
    return np.maximum.reduceat(weights[federation.order], federation.offsets[:-1])


def check_gives_row_losses(net: NeuralNet, X: Any, y: torch.Tensor) -> None:
    """Check that a net's loss is the mean of losses of rows, by its settings and on a few rows.

    Raises
    ------
    ValueError
        If it is not, so that rows cannot have weights.
    """
    reason = _obstacle(net) or _difference(net, X, y)
    if reason:
        raise ValueError(
            f"sample_weight needs a loss that is the mean of the losses of the rows, but {reason}. "
            "Use one of torch's criteria with reduction='mean', or fit without weights."
        )


def _obstacle(net: NeuralNet) -> str | None:
    if own := overridden(net, _LOSS_METHODS):
        return f"estimator overrides {', '.join(own)}"
    if net._criteria != ["criterion"]:
        return "estimator has more than one criterion"
    criterion = net.criterion_
    if not isinstance(criterion, nn.Module) or getattr(criterion, "reduction", None) != "mean":
        return f"the criterion {criterion} has no reduction='mean'"
    if getattr(criterion, "weight", None) is not None:
        return f"the criterion {criterion} has weights of its own: put them into sample_weight"
    if getattr(criterion, "ignore_index", -1) >= 0:
        return f"the criterion {criterion} leaves out rows: give them weight 0"
    return None


def _difference(net: NeuralNet, X: Any, y: torch.Tensor) -> str | None:
    with torch_seeded(np.random.default_rng(0), net.device):
        output = net.evaluation_step((X, None))
        mean = net.get_loss(output, y, X=X, training=False)
        ones = torch.ones(len(y), device=y.device)
        try:
            with weighed(net, ones):
                by_row = net.get_loss(output, y, X=X, training=False)
        except ValueError as error:
            return str(error)
    same = torch.allclose(mean, by_row, rtol=1e-3, equal_nan=True)
    return None if same else f"that of the criterion {net.criterion_} is another"


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype

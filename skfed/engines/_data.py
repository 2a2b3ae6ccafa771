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
from skfed.engines._rows import ArrayRows
from skfed.nets import Samples, arrays_of, from_arrays, moved, overridden, weighed
from skfed.utils._checks import naming
from skfed.utils._seeding import torch_seeded
from skfed.utils._sklearn import check_sample_weight

#: Methods of a net that a loss with weights of rows goes through.
_LOSS_METHODS = "train_step", "train_step_single", "validation_step", "infer", "get_loss"


class Dataset:
    """X and y of all clients.

    On a GPU X is moved there once if its arrays fill at most half of the free memory; else the rows
    of each step are moved. Which of the two changes no result.

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
        self.keys, arrays = arrays_of(X)  # those of X if it is a dict
        self._moves_whole = self.device.type == "cuda" and self._fits(arrays)
        names = ["X"] if self.keys is None else [f"X[{key!r}]" for key in self.keys]
        self._rows = [
            ArrayRows(one, name, self.device, self._moves_whole)
            for name, one in zip(names, arrays, strict=True)
        ]

    def _fits(self, arrays: Sequence[Any]) -> bool:
        """Tell whether the arrays of X fill at most half of the device's free memory."""
        if not all(isinstance(one, np.ndarray) for one in arrays):
            return False
        free, _ = torch.cuda.mem_get_info(self.device)
        return 2 * sum(one.nbytes for one in arrays) <= free

    @classmethod
    def of(
        cls, keys: tuple[str, ...] | None, arrays: Sequence[np.ndarray], device: str = "cpu"
    ) -> Self:
        """Return a dataset of the keys and arrays of another."""
        n = 1 if keys is None else len(keys)
        y, *weights = arrays[n:]
        return cls(from_arrays(keys, arrays[:n]), y, device, *weights)

    @property
    def arrays(self) -> tuple[Samples, ...]:
        """The array of X or those by key, y, and the weights if rows have any."""
        _, arrays = arrays_of(self.X)
        return (*arrays, self.y) if self.weights is None else (*arrays, self.y, self.weights)

    def prepare(self, rows: np.ndarray) -> tuple[np.ndarray | torch.Tensor, torch.Tensor]:
        """Return row numbers in the form that ``take`` needs, and their y."""
        y = moved(torch.from_numpy(self.y[rows]), self.device)
        return torch.from_numpy(rows).to(self.device) if self._moves_whole else rows, y

    def weigh(self, rows: np.ndarray) -> torch.Tensor | None:
        """Return the weights of rows, in the shape of ``rows``, if they have any."""
        if self.weights is None:
            return None
        return moved(torch.from_numpy(self.weights[rows]), self.device)

    def take(self, rows: np.ndarray | torch.Tensor, memory: Memory) -> Any:
        """Return X at prepared row numbers, in the shape of ``rows``, on the device.

        It is a dict of tensors if X is a dict. It may be in ``memory``, and is valid until the next
        call.
        """
        return self._joined([one.take(rows, memory) for one in self._rows])

    def batches(self, rows: np.ndarray | torch.Tensor, memory: Memory) -> Iterator[Any]:
        """Yield X at each entry of an array of prepared row numbers; see ``take``.

        On a GPU all are at the same address, as those of the next call of this shape, if no larger
        one comes between.
        """
        parts = (one.batches(rows, memory) for one in self._rows)
        return map(self._joined, zip(*parts, strict=True))

    def _joined(self, tensors: Sequence[torch.Tensor]) -> Any:
        return tensors[0] if self.keys is None else dict(zip(self.keys, tensors, strict=True))


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

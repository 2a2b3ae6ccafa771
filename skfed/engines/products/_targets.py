"""Targets of the local steps of some clients, in the form that a loss needs."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from skfed.nets import normalized

_BLOCK_BYTES = 2**20  # of the gradients of steps that are laid out together


class Target(NamedTuple):
    """The targets of one step, or those of some steps with a leading axis."""

    y: torch.Tensor  # (client, row)
    sizes: torch.Tensor | None  # of each client the rows used; None: all
    weights: torch.Tensor | None  # (client, row), 0 for rows not used; None: all alike

    def of(self, steps: int | slice) -> "Target":
        """Return those of some of the steps, or of one."""
        sizes = None if self.sizes is None else self.sizes[steps]
        weights = None if self.weights is None else self.weights[steps]
        return Target(self.y[steps], sizes, weights)


def plain_targets(steps: Target) -> Iterator[Target]:
    """Yield the targets of each step."""
    return map(steps.of, range(len(steps.y)))


def one_hot_targets(steps: Target, n_classes: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield the gradient of each client's mean loss by log p, of shape (client, class, row).

    It is minus the row's share in the mean at its class, else 0.
    """
    y = steps.y
    shape = (*y.shape[1:-1], n_classes, y.shape[-1])
    n_steps = max(1, _BLOCK_BYTES // (torch.Size(shape).numel() * dtype.itemsize))
    for start in range(0, len(y), n_steps):
        some = steps.of(slice(start, start + n_steps))
        zeros = torch.zeros((len(some.y), *shape), dtype=dtype, device=y.device)
        index = some.y.unsqueeze(-2)
        if some.sizes is None and some.weights is None:
            yield from zeros.scatter_(-2, index, -1 / y.shape[-1])
        else:
            yield from zeros.scatter_(-2, index, _shares(some, dtype).neg().unsqueeze(-2))


def _shares(steps: Target, dtype: torch.dtype) -> torch.Tensor:
    """Return the share of each row in the mean over its client's rows."""
    if steps.weights is not None:
        return normalized(steps.weights, dtype)
    assert steps.sizes is not None
    used = torch.arange(steps.y.shape[-1], device=steps.y.device) < steps.sizes.unsqueeze(-1)
    return used.to(dtype) / steps.sizes.unsqueeze(-1)

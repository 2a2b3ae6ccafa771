"""Targets of the local steps of some clients, in the form that a loss needs."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from skfed.nets import normalized

_BLOCK_BYTES = 2**20  # of the gradients of steps that are laid out together


class Target(NamedTuple):
    """The targets of one step."""

    y: torch.Tensor  # (client, row)
    sizes: torch.Tensor | None  # rows used of each client; None: all
    weights: torch.Tensor | None  # (client, row), 0 for rows not used; None: all alike


def plain_targets(
    y: torch.Tensor, sizes: torch.Tensor | None, weights: torch.Tensor | None
) -> Iterator[Target]:
    """Yield the targets of each step, given those of all with a leading axis."""
    for step in range(len(y)):
        yield Target(
            y[step],
            None if sizes is None else sizes[step],
            None if weights is None else weights[step],
        )


def one_hot_targets(
    y: torch.Tensor,
    sizes: torch.Tensor | None,
    weights: torch.Tensor | None,
    n_classes: int,
    dtype: torch.dtype,
) -> Iterator[torch.Tensor]:
    """Yield the gradient of each client's mean loss by log p, of shape (client, class, row).

    It is minus the row's share in the mean at its class, else 0.
    """
    shape = (*y.shape[1:-1], n_classes, y.shape[-1])
    n_steps = max(1, _BLOCK_BYTES // (torch.Size(shape).numel() * dtype.itemsize))
    for start in range(0, len(y), n_steps):
        steps = slice(start, start + n_steps)
        index = y[steps].unsqueeze(-2)
        zeros = torch.zeros((len(index), *shape), dtype=dtype, device=y.device)
        if sizes is None and weights is None:
            yield from zeros.scatter_(-2, index, -1 / y.shape[-1])
        else:
            own = None if weights is None else weights[steps]
            shares = _shares(y[steps], None if sizes is None else sizes[steps], own, dtype)
            yield from zeros.scatter_(-2, index, shares.neg().unsqueeze(-2))


def _shares(
    y: torch.Tensor,
    sizes: torch.Tensor | None,
    weights: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the share of each row in the mean over its client's rows."""
    if weights is not None:
        return normalized(weights, dtype)
    assert sizes is not None
    used = torch.arange(y.shape[-1], device=y.device) < sizes.unsqueeze(-1)
    return used.to(dtype) / sizes.unsqueeze(-1)

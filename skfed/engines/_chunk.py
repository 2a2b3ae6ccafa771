"""The minibatches of some members of a cohort, in the form that stacked steps need."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

from skfed.engines._data import Dataset
from skfed.engines.products._targets import Target
from skfed.nets import moved


@dataclass(frozen=True)
class Chunk:
    """The minibatches of some members of a cohort, those with most steps first.

    Parameters
    ----------
    dataset : Dataset
        The rows of all clients.
    rows : ndarray of shape (n_steps, n_members, batch_size)
        Row numbers of each step.
    sizes : ndarray of shape (n_steps, n_members)
        Rows of each step; 0 after a member's last. Beyond them ``rows`` repeats a row of the
        member, which is not used.
    iterations : ndarray of shape (n_steps,)
        The local iteration of each step of the first member.
    """

    dataset: Dataset
    rows: np.ndarray
    sizes: np.ndarray
    iterations: np.ndarray

    def blocks(self) -> Iterator[tuple[slice, "Block"]]:
        """Yield runs of steps with the same members and width, and which steps they are."""
        n_members = (self.sizes > 0).sum(axis=1)  # they come first
        widths = self.sizes.max(axis=1)
        full = self.sizes.sum(axis=1) == n_members * widths
        kinds = zip(n_members.tolist(), widths.tolist(), full.tolist(), strict=True)
        end = 0
        for kind, alike in groupby(kinds):
            start, end = end, end + len(list(alike))
            yield slice(start, end), self._block(slice(start, end), *kind)

    def _block(self, steps: slice, n_members: int, width: int, full: bool) -> "Block":
        sizes = self.sizes[steps, :n_members]
        own = self.rows[steps, :n_members, :width]
        rows, y = self.dataset.prepare(own)
        weights = self.dataset.weigh(own)
        if weights is not None:  # 0 for rows not used
            used = torch.from_numpy(np.arange(width) < sizes[..., None])
            weights = weights * moved(used, y.device)
        counts = None if full else moved(torch.from_numpy(sizes), y.device)
        return Block(self.dataset, rows, Target(y, counts, weights))


class Block(NamedTuple):
    """Steps of the same members, of as many rows each."""

    dataset: Dataset
    rows: np.ndarray | torch.Tensor  # prepared, of shape (n_steps, n_members, width)
    targets: Target  # of all steps

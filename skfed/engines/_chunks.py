"""Which clients are trained side by side, and on which rows.

Where a cohort is cut depends on it and on the memory budget alone: not on n_jobs, the backend or
free memory, since the rounding of a product depends on its shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from skfed.engines._data import Rows
from skfed.engines._minibatches import Minibatches


@dataclass(frozen=True)
class Chunk:
    """Some members of a cohort, those with most steps first, so that who is done is at the end.

    Parameters
    ----------
    names : tuple of hashable
        Their ids, for error messages.
    rows : Rows
        The data.
    numbers : ndarray of shape (n_steps, n_members, batch_size)
        Row numbers of each step.
    sizes : ndarray of shape (n_steps, n_members)
        Rows of each step; 0 after a member's last. Beyond them ``numbers`` repeats a row of the
        member, which is not meant.
    iterations : ndarray of shape (n_steps,)
        The local iteration of each step of the first member.
    layers_rng : numpy.random.Generator
        For random layers.
    """

    names: tuple
    rows: Rows
    numbers: np.ndarray
    sizes: np.ndarray
    iterations: np.ndarray
    layers_rng: np.random.Generator

    def weights(self) -> torch.Tensor | None:
        """Return the weights of the rows of all steps, if they have any: 0 where none is meant."""
        weights = self.rows.weigh(self.numbers)
        if weights is None:
            return None
        meant = np.arange(self.numbers.shape[2]) < self.sizes[..., None]
        return weights * torch.from_numpy(meant).to(weights.device)

    def subset(self, members: np.ndarray) -> "Chunk":
        """Return the chunk of some members alone, the first of whom has most steps."""
        steps = self.sizes[:, members[0]] > 0
        return replace(
            self,
            names=tuple(self.names[i] for i in members),
            numbers=self.numbers[steps][:, members],
            sizes=self.sizes[steps][:, members],
            iterations=self.iterations[steps],
        )


def cut(n_steps: np.ndarray, limit: int, alike: bool, max_steps: int) -> list[np.ndarray]:
    """Cut a cohort into chunks of at most ``limit`` members, of much the same size.

    Parameters
    ----------
    n_steps : ndarray of shape (n_members,)
        Local steps of each member.
    limit : int
        Largest chunk.
    alike : bool
        Whether all members of a chunk must have the same number of steps.
    max_steps : int
        Most steps of a chunk, those of the longest counted for each member; one member may have
        more.

    Returns
    -------
    list of ndarray of int
        Positions in the cohort, those with most steps first.
    """
    order = np.argsort(-n_steps, kind="stable")
    groups = [order]
    if alike:
        groups = np.split(order, np.flatnonzero(np.diff(n_steps[order])) + 1)
    parts = [
        part
        for group in groups
        if len(group)
        for part in np.array_split(group, -(-len(group) // limit))
    ]
    return [piece for part in parts for piece in _short_enough(part, n_steps, max_steps)]


def _short_enough(part: np.ndarray, n_steps: np.ndarray, max_steps: int) -> list[np.ndarray]:
    """Halve a chunk until the steps laid out for it are few enough."""
    if len(part) == 1 or len(part) * n_steps[part[0]] <= max_steps:
        return [part]
    halves = np.array_split(part, 2)
    return [piece for half in halves for piece in _short_enough(half, n_steps, max_steps)]


def make_chunk(
    names: tuple,
    draws: Sequence[Callable[[], Minibatches]],
    layers_rng: np.random.Generator,
    rows: Rows,
    held: Sequence[np.ndarray],
) -> Chunk:
    """Lay the minibatches of some members side by side; ``held`` are the rows that each holds."""
    batches = [draw() for draw in draws]
    n_steps = max(len(b.sizes) for b in batches)
    width = max(b.rows.shape[1] for b in batches)
    numbers = np.empty((n_steps, len(batches), width), dtype=np.intp)
    sizes = np.zeros((n_steps, len(batches)), dtype=np.intp)
    for i, (mine, b) in enumerate(zip(held, batches, strict=True)):
        numbers[:, i] = mine[0]
        numbers[: len(b.sizes), i, : b.rows.shape[1]] = mine[b.rows]
        sizes[: len(b.sizes), i] = b.sizes
    return Chunk(names, rows, numbers, sizes, batches[0].iterations, layers_rng)

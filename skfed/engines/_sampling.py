"""What all engines have in common: which rows a client uses, and its random streams."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed.engines._requests import LocalTraining
from skfed.nets import whole
from skfed.utils._seeding import Purpose, stream

#: Positions among a client's rows; a range where they are consecutive.
Positions = range | np.ndarray


@dataclass(frozen=True)
class Draws:
    """The random draws of all clients of a federation.

    Parameters
    ----------
    federation : Federation
        Which client holds which rows.
    seed : int
        Seed of all streams.
    batch_size : int
        b of the net's training; -1 means all rows.
    """

    federation: Federation
    seed: int
    batch_size: int

    def stream(self, purpose: Purpose, round: int, k: int, copy: int = 0) -> np.random.Generator:
        """Return the generator of one client's draws of one kind in a round."""
        return stream(self.seed, purpose, round, self.federation.digest(k), copy)

    def minibatches(
        self, training: LocalTraining, round: int, k: int, copy: int
    ) -> Callable[[], "Minibatches"]:
        """Return a function that draws a client's minibatches; it is small when it is sent."""
        key = self.seed, Purpose.MINIBATCHES, round, self.federation.digest(k), copy
        n_samples = self.federation.size(k)
        size = self.rows_a_step(n_samples)
        return partial(_draw, key, n_samples, size, training.epochs, training.steps)

    def rows_a_step(self, n_samples: int) -> int:
        """Return min(b, D_k); the last batch of an epoch may have less."""
        return min(whole(self.batch_size, n_samples), n_samples)

    def polled(self, round: int, k: int, max_samples: int | str | None) -> Positions:
        """Return which of its rows a client evaluates in a poll."""
        n_samples = self.federation.size(k)
        if max_samples is None:
            return range(n_samples)
        limit = self.batch_size if max_samples == "batch" else int(max_samples)
        limit = whole(limit, n_samples)
        if n_samples <= limit:
            return range(n_samples)
        return self.stream(Purpose.POLL, round, k).choice(n_samples, limit, replace=False)

    def name(self, k: int, round: int) -> str:
        """Name a client and a round in error messages."""
        return f"client {self.federation.names([k])[0]!r} in round {round}"


def take_positions(rows: np.ndarray, positions: Positions) -> np.ndarray:
    """Return the row numbers at some positions."""
    if isinstance(positions, range):
        return rows[positions.start : positions.stop]
    return rows[positions]


def enumerate_copies(clients: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield each drawn client, and how often it was drawn before."""
    copies: Counter[int] = Counter()
    for k in clients:
        yield k, copies[k]
        copies[k] += 1


@dataclass(frozen=True)
class Minibatches:
    """The rows of all local steps of one client.

    Parameters
    ----------
    rows : ndarray of shape (n_steps, batch_size)
        Positions among the client's rows; those beyond ``sizes`` are 0 and not used.
    sizes : ndarray of shape (n_steps,)
        Rows of each step.
    iterations : ndarray of shape (n_steps,)
        The local iteration that each step belongs to: an epoch, or itself with ``local_steps``.
    """

    rows: np.ndarray
    sizes: np.ndarray
    iterations: np.ndarray

    def __iter__(self):
        for iteration, rows, size in zip(self.iterations, self.rows, self.sizes, strict=True):
            yield int(iteration), rows[:size]


def minibatches(
    rng: np.random.Generator,
    n_samples: int,
    batch_size: int,
    local_epochs: int,
    local_steps: int | None,
) -> Minibatches:
    """Draw the minibatches of one client in one round.

    With ``local_steps``, each step is an iteration and draws min(b, D_k) rows without
    replacement, afresh. Otherwise each epoch is an iteration and a new permutation of the rows,
    its last partial batch kept.
    """
    size = min(batch_size, n_samples)
    if local_steps is not None:
        rows = np.stack([rng.choice(n_samples, size, replace=False) for _ in range(local_steps)])
        return Minibatches(rows, np.full(local_steps, size), np.arange(local_steps))
    per_epoch = count_steps(n_samples, batch_size, 1, None)
    rows = np.zeros((local_epochs, per_epoch * size), dtype=np.intp)
    for epoch in range(local_epochs):
        rows[epoch, :n_samples] = rng.permutation(n_samples)
    sizes = np.full(per_epoch, size)
    sizes[-1] = n_samples - (per_epoch - 1) * size
    return Minibatches(
        rows.reshape(-1, size),
        np.tile(sizes, local_epochs),
        np.arange(local_epochs).repeat(per_epoch),
    )


def _draw(key: tuple, *settings: Any) -> Minibatches:
    return minibatches(stream(*key), *settings)


def count_steps(n_samples: int, batch_size: int, local_epochs: int, local_steps: int | None) -> int:
    """Return the number of local steps of a client."""
    if local_steps is not None:
        return local_steps
    return local_epochs * -(-n_samples // batch_size)

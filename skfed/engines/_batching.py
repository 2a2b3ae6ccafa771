"""Minibatches, and which rows clients are polled on: the same in all engines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed.engines._requests import LocalTraining
from skfed.nets import whole
from skfed.utils._seeding import Purpose, StreamKey, stream, stream_states, streams

#: The purposes of draws in a trial.
_OF_TRIALS = {
    Purpose.MINIBATCHES: Purpose.TRIAL_MINIBATCHES,
    Purpose.RANDOM_LAYERS: Purpose.TRIAL_LAYERS,
}

#: Positions among a client's rows; a range where they are consecutive.
Positions = range | np.ndarray


@dataclass(frozen=True)
class Batching:
    """Which rows clients use in minibatches and polls, and the streams that they are drawn from.

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

    def key(self, purpose: Purpose, round: int, k: int, copy: int = 0) -> StreamKey:
        """Return the key of one client's draws of one kind in a round."""
        return self.seed, purpose, round, self.federation.digest(k), copy

    def training_key(
        self, purpose: Purpose, training: LocalTraining, round: int, k: int, copy: int
    ) -> StreamKey:
        """Return the key of a client's draws in a training, other ones in a trial."""
        purpose, first = _of_trial(purpose, training)
        return self.key(purpose, round, k, first + copy)

    def stream(self, purpose: Purpose, round: int, k: int, copy: int = 0) -> np.random.Generator:
        """Return the generator of these draws."""
        return stream(*self.key(purpose, round, k, copy))

    def streams(
        self, purpose: Purpose, round: int, clients: np.ndarray
    ) -> Iterator[np.random.Generator]:
        """Yield what ``stream`` returns for each of some clients; each is valid until the next."""
        digests = [self.federation.digest(k) for k in clients.tolist()]
        return streams(stream_states(self.seed, purpose, round, digests, [0] * len(digests)))

    def minibatches(
        self, training: LocalTraining, round: int, k: int, copy: int
    ) -> Callable[[], "Minibatches"]:
        """Return a function that draws a client's minibatches; it is small when it is sent."""
        key = self.training_key(Purpose.MINIBATCHES, training, round, k, copy)
        n_samples = self.federation.size(k)
        size = self.rows_a_step(n_samples)
        return partial(_draw, key, n_samples, size, training.epochs, training.steps)

    def minibatches_of_many(
        self, training: LocalTraining, round: int, copies: Sequence[tuple[int, int]]
    ) -> "MinibatchDraws":
        """Return what draws the minibatches of many (client, copy)."""
        clients = np.array([k for k, _ in copies], dtype=int)
        numbers = [copy for _, copy in copies]
        digests = [self.federation.digest(k) for k in clients.tolist()]
        purpose, first = _of_trial(Purpose.MINIBATCHES, training)
        copies_drawn = [first + copy for copy in numbers]
        return MinibatchDraws(
            states=stream_states(self.seed, purpose, round, digests, copies_drawn),
            sizes=self.federation.sizes[clients],
            batch_size=self.batch_size,
            epochs=training.epochs,
            steps=training.steps,
        )

    def rows_a_step(self, n_samples: Any) -> Any:
        """Return min(b, D_k) of one client or of each; the last batch of an epoch may have less."""
        return np.minimum(whole(self.batch_size, n_samples), n_samples)

    def n_steps(self, training: LocalTraining, clients: np.ndarray) -> np.ndarray:
        """Return the number of local steps of each client."""
        sizes = self.federation.sizes[clients]
        steps = count_steps(sizes, self.rows_a_step(sizes), training.epochs, training.steps)
        return np.broadcast_to(steps, len(clients))

    def n_trained(self, training: LocalTraining, clients: np.ndarray) -> np.ndarray:
        """Return the rows that clients use in their local steps, repeats counted."""
        sizes = self.federation.sizes[clients]
        if training.steps is None:
            return training.epochs * sizes
        return training.steps * self.rows_a_step(sizes)

    def n_polled(self, clients: np.ndarray, max_samples: int | str | None) -> np.ndarray:
        """Return how many rows each client evaluates in a poll."""
        sizes = self.federation.sizes[clients]
        if max_samples is None:
            return sizes
        if max_samples == "batch":
            return self.rows_a_step(sizes)
        return np.minimum(sizes, int(max_samples))

    def polled(
        self, round: int, clients: np.ndarray, max_samples: int | str | None
    ) -> list[Positions]:
        """Return which of its rows each client evaluates in a poll."""
        n_polled = self.n_polled(clients, max_samples)
        sizes = self.federation.sizes[clients]
        positions: list[Positions] = [range(n) for n in sizes.tolist()]
        drawing = np.flatnonzero(n_polled < sizes)
        if not len(drawing):
            return positions
        rngs = self.streams(Purpose.POLL, round, clients[drawing])
        for i, rng in zip(drawing.tolist(), rngs, strict=True):
            positions[i] = rng.choice(sizes[i], n_polled[i], replace=False)
        return positions

    def name(self, k: int, round: int) -> str:
        """Name a client and a round in error messages."""
        return f"client {self.federation.names([k])[0]!r} in round {round}"


def _of_trial(purpose: Purpose, training: LocalTraining) -> tuple[Purpose, int]:
    """Return the purpose of draws in a training, and the number of a client's first copy."""
    if training.trial is None:
        return purpose, 0
    return _OF_TRIALS[purpose], first_copy_of_trial(training.trial)


def first_copy_of_trial(trial: int) -> int:
    """Return the number of a client's first copy in the draws of a trial of a round."""
    if trial >= 2**12:
        raise ValueError(f"round.trial was called {trial + 1} times in a round: at most 4096.")
    return trial << 20


def take_positions(rows: np.ndarray, positions: Positions) -> np.ndarray:
    """Return the row numbers at some positions."""
    if isinstance(positions, range):
        return rows[positions.start : positions.stop]
    return rows[positions]


def enumerate_copies(clients: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield each drawn client, and how often it was drawn before."""
    copies: dict[int, int] = {}
    for k in clients:
        copy = copies.get(k, 0)
        yield k, copy
        copies[k] = copy + 1


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
    sizes = step_sizes(np.array([n_samples]), batch_size, local_epochs, local_steps)[:, 0]
    rows = np.zeros((len(sizes), min(batch_size, n_samples)), dtype=np.intp)
    draw_rows(rng, rows, np.arange(n_samples), local_epochs, local_steps)
    return Minibatches(rows, sizes, iterations(len(rows), local_epochs, local_steps))


def draw_rows(
    rng: np.random.Generator,
    rows: np.ndarray,
    own: np.ndarray,
    local_epochs: int,
    local_steps: int | None,
) -> None:
    """Draw the minibatches of a client; see ``minibatches``.

    Parameters
    ----------
    rng : numpy.random.Generator
        The client's stream.
    rows : ndarray of shape (n_steps, min(b, D_k))
        Changed in place, but for what the last batches of epochs do not use. Contiguous, unless an
        epoch has one step.
    own : ndarray of int of shape (D_k,)
        The rows that are drawn from.
    local_epochs, local_steps : int
        See ``LocalTraining``.
    """
    if local_steps is not None:
        for step in rows:
            step[:] = rng.choice(len(own), len(step), replace=False)
        rows[:] = own[rows]
        return
    for epoch in rows.reshape(local_epochs, -1):  # a view
        used = epoch[: len(own)]
        used[:] = own
        rng.shuffle(used)  # the draws of permutation, without a new array


def step_sizes(
    n_samples: np.ndarray, batch_size: int, local_epochs: int, local_steps: int | None
) -> np.ndarray:
    """Return the rows of each step of some clients, an array (n_steps, n_clients); 0 at no step."""
    n_samples = np.asarray(n_samples)
    size = np.minimum(batch_size, n_samples)
    if local_steps is not None:
        return np.tile(size, (local_steps, 1))
    per_epoch = -(-n_samples // size)
    step = np.arange(local_epochs * per_epoch.max())[:, None]
    left = n_samples - step % per_epoch * size  # rows of the epoch
    return np.where(step < local_epochs * per_epoch, np.minimum(size, left), 0)


def iterations(n_steps: int, local_epochs: int, local_steps: int | None = None) -> np.ndarray:
    """Return the local iteration of each step."""
    if local_steps is not None:
        return np.arange(n_steps)
    return np.arange(local_epochs).repeat(n_steps // local_epochs)


@dataclass(frozen=True)
class MinibatchDraws:
    """Draws the minibatches of many clients; small when it is sent to another process.

    Parameters
    ----------
    states : ndarray of shape (n_members, 4)
        States of the clients' streams.
    sizes : ndarray of shape (n_members,)
        D_k.
    batch_size : int
        b; -1 means all rows.
    epochs, steps : int
        See ``LocalTraining``.
    """

    states: np.ndarray
    sizes: np.ndarray
    batch_size: int
    epochs: int
    steps: int | None

    @property
    def n_rows_laid_out(self) -> int:
        """Rows of all steps, those of the longest counted for each member."""
        largest = int(self.sizes.max())
        size = min(whole(self.batch_size, largest), largest)
        return len(self.sizes) * count_steps(largest, size, self.epochs, self.steps) * size

    def subset(self, members: Sequence[int] | np.ndarray) -> "MinibatchDraws":
        """Return the draws of some members alone."""
        return replace(self, states=self.states[members], sizes=self.sizes[members])

    def side_by_side(self, rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw the minibatches of all members, the one with most steps first.

        Parameters
        ----------
        rows : sequence of ndarray of int
            Row numbers of each member.

        Returns
        -------
        numbers : ndarray of shape (n_steps, n_members, batch_size)
            Row numbers of each step. Those beyond ``sizes`` are not used.
        sizes : ndarray of shape (n_steps, n_members)
            Rows of each step; 0 after a member's last.
        iterations : ndarray of shape (n_steps,)
            The local iteration of each step of the first member.
        """
        b = whole(self.batch_size, int(self.sizes.max()))
        sizes = step_sizes(self.sizes, b, self.epochs, self.steps)
        drawn = np.empty((len(rows), len(sizes), sizes.max()), dtype=np.intp)
        drawn[:] = np.array([own[0] for own in rows])[:, None, None]
        members = zip(drawn, np.count_nonzero(sizes, axis=0).tolist(), rows, strict=True)
        for rng, (steps, n_steps, own) in zip(streams(self.states), members, strict=True):
            draw_rows(rng, steps[:n_steps, : len(own)], own, self.epochs, self.steps)
        numbers = np.ascontiguousarray(drawn.swapaxes(0, 1))
        return numbers, sizes, iterations(len(sizes), self.epochs, self.steps)


def _draw(key: StreamKey, *settings: Any) -> Minibatches:
    return minibatches(stream(*key), *settings)


def count_steps(n_samples: Any, batch_size: Any, local_epochs: int, local_steps: int | None) -> Any:
    """Return the number of local steps of one client or of each."""
    if local_steps is not None:
        return local_steps
    return local_epochs * -(-n_samples // batch_size)

"""What the engines have in common: which rows a client uses, and its random streams."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from skorch import NeuralNet

from skfed._federation import Federation
from skfed.engines._minibatches import Minibatches, minibatches
from skfed.engines._replies import LocalTraining
from skfed.utils._seeding import Purpose, stream

Polled = range | np.ndarray  # positions among a client's rows; a range may stand for them all


@dataclass(frozen=True)
class Draws:
    """The draws of all clients of a federation.

    Parameters
    ----------
    federation : Federation
        Who holds which rows.
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
    ) -> Callable[[], Minibatches]:
        """Return what draws the rows that a client trains on: small, as it may travel."""
        key = self.seed, Purpose.MINIBATCHES, round, self.federation.digest(k), copy
        n_samples = self.federation.size(k)
        size = self.rows_a_step(n_samples)
        return partial(_drawn, key, n_samples, size, training.epochs, training.steps)

    def rows_a_step(self, n_samples: int) -> int:
        """Return min(b, D_k); the last batch of an epoch may have less."""
        return min(whole(self.batch_size, n_samples), n_samples)

    def polled(self, round: int, k: int, max_samples: int | str | None) -> Polled:
        """Return which of its rows a client evaluates: all, or as many as a poll may use."""
        n_samples = self.federation.size(k)
        if max_samples is None:
            return range(n_samples)
        limit = self.batch_size if max_samples == "batch" else int(max_samples)
        limit = whole(limit, n_samples)
        if n_samples <= limit:
            return range(n_samples)
        return self.stream(Purpose.POLL, round, k).choice(n_samples, limit, replace=False)

    def name(self, k: int, round: int) -> str:
        """Name a client's work in error messages."""
        return f"client {self.federation.names([k])[0]!r} in round {round}"


def chosen(rows: np.ndarray, polled: Polled) -> np.ndarray:
    """Return the polled ones of a client's rows."""
    return rows[polled.start : polled.stop] if isinstance(polled, range) else rows[polled]


def _drawn(key: tuple, *settings: Any) -> Minibatches:
    return minibatches(stream(*key), *settings)


def batch_size(net: NeuralNet, iterator="iterator_train") -> int:
    """Return the batch size of skorch's own iterator; -1 means all rows."""
    return net.get_params_for(iterator).get("batch_size", net.batch_size)


def whole(size: int, n_samples: int) -> int:
    """Return a batch size in rows."""
    return n_samples if size == -1 else size


def enumerate_copies(clients: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield each drawn client and which of its copies this is."""
    copies: Counter[int] = Counter()
    for k in clients:
        yield k, copies[k]
        copies[k] += 1

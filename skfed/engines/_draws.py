"""What the engines have in common: which rows a client uses, and its random streams."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from skorch import NeuralNet

from skfed._federation import Federation
from skfed.engines._minibatches import Minibatches, minibatches
from skfed.engines._updates import LocalTraining
from skfed.utils._seeding import Purpose, stream


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

    def minibatches(self, training: LocalTraining, round: int, k: int, copy: int) -> Minibatches:
        """Draw what a client trains on."""
        n_samples = self.federation.size(k)
        rng = self.stream(Purpose.MINIBATCHES, round, k, copy)
        size = self.rows_a_step(n_samples)
        return minibatches(rng, n_samples, size, training.epochs, training.steps)

    def rows_a_step(self, n_samples: int) -> int:
        """Return min(b, D_k); the last batch of an epoch may have less."""
        return min(whole(self.batch_size, n_samples), n_samples)

    def polled_rows(self, round: int, k: int, max_samples: int | str | None) -> np.ndarray:
        """Return the rows of X that a client evaluates: all, or as many as a poll may use."""
        rows = self.federation.rows(k)
        if max_samples is None:
            return rows
        limit = self.batch_size if max_samples == "batch" else int(max_samples)
        limit = whole(limit, len(rows))
        if len(rows) <= limit:
            return rows
        return self.stream(Purpose.POLL, round, k).choice(rows, limit, replace=False)

    def name(self, k: int, round: int) -> str:
        """Name a client's work in error messages."""
        return f"client {self.federation.names([k])[0]!r} in round {round}"


def batch_size(net: NeuralNet, iterator="iterator_train") -> int:
    """Return the batch size of skorch's own iterator; -1 means all rows."""
    return net.get_params_for(iterator).get("batch_size", net.batch_size)


def whole(size: int, n_samples: int) -> int:
    """Return a batch size in rows."""
    return n_samples if size == -1 else size


def numbered(clients: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield each drawn client and which of its copies this is."""
    copies: Counter[int] = Counter()
    for k in clients:
        yield k, copies[k]
        copies[k] += 1

"""Which rows a client trains on, step by step: the same for every engine."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Minibatches:
    """The rows of all local steps of one client.

    Parameters
    ----------
    rows : ndarray of shape (n_steps, batch_size)
        Positions among the client's rows, those beyond ``sizes`` 0 and not meant.
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


def count_steps(n_samples: int, batch_size: int, local_epochs: int, local_steps: int | None) -> int:
    """Return the number of local steps of a client."""
    if local_steps is not None:
        return local_steps
    return local_epochs * -(-n_samples // batch_size)

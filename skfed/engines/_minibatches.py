"""Which rows a client trains on, step by step."""

from collections.abc import Iterator

import numpy as np


def minibatches(
    rng: np.random.Generator,
    n_samples: int,
    batch_size: int,
    local_epochs: int,
    local_steps: int | None,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each local step: the number of its local iteration, and its rows, drawn afresh.

    With ``local_steps``, each step is an iteration and draws min(b, D_k) rows without
    replacement. Otherwise each epoch is an iteration and a new permutation of the rows, its last
    partial batch kept.
    """
    if local_steps is not None:
        for step in range(local_steps):
            yield step, rng.choice(n_samples, size=min(batch_size, n_samples), replace=False)
        return
    for epoch in range(local_epochs):
        rows = rng.permutation(n_samples)
        for start in range(0, n_samples, batch_size):
            yield epoch, rows[start : start + batch_size]

"""Which rows a client trains on, step by step."""

from collections.abc import Iterator

import numpy as np


def minibatches(
    rng: np.random.Generator,
    n_samples: int,
    batch_size: int,
    local_epochs: int,
    local_steps: int | None,
) -> Iterator[np.ndarray]:
    """Yield the row numbers of each local step, drawn afresh.

    With ``local_steps``, each step draws min(b, D_k) rows without replacement. Otherwise each
    epoch is a new permutation of the rows, its last partial batch kept.
    """
    if local_steps is not None:
        for _ in range(local_steps):
            yield rng.choice(n_samples, size=min(batch_size, n_samples), replace=False)
        return
    for _ in range(local_epochs):
        rows = rng.permutation(n_samples)
        for start in range(0, n_samples, batch_size):
            yield rows[start : start + batch_size]

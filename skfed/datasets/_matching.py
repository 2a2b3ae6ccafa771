"""A partition of test rows that matches one of training rows."""

import numpy as np
from numpy.typing import ArrayLike

from skfed.utils._checks import labels_of


def match_partition(
    y: np.ndarray,
    clients: np.ndarray,
    n_clients: int,
    y_test: ArrayLike,
    rng: np.random.RandomState,
) -> np.ndarray:
    """Return the client of each test row.

    Of the test rows of a label each client gets the share that it has of the training rows of that
    label, rounded up or down.
    """
    tested = labels_of(y_test, "y_test")
    known = set(np.unique(y).tolist())
    if unknown := [label for label in np.unique(tested).tolist() if label not in known]:
        raise ValueError(
            f"y_test has the label {unknown[0]!r}, which y lacks, so no client holds it: leave "
            "these rows out."
        )
    matched = np.empty(len(tested), dtype=np.intp)
    for label in np.unique(tested):
        rows = rng.permutation(np.flatnonzero(tested == label))
        held = np.bincount(clients[y == label], minlength=n_clients).cumsum()
        cuts = (2 * held * len(rows) + held[-1]) // (2 * held[-1])  # rounded to the nearest
        matched[rows] = np.repeat(np.arange(n_clients), np.diff(cuts, prepend=0))
    return matched

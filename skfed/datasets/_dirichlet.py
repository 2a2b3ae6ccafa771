"""The Dirichlet partition, used by power-of-choice's experiments (its appendix F).

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019 (arXiv:1909.06335).
"""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state, check_scalar

from skfed.datasets._matching import match_partition
from skfed.utils._checks import Count, labels_of, validated

_MAX_DRAWS = 1000


@validated(n_clients=[Count()], min_size=[Count(0)])
def partition_dirichlet(
    y: ArrayLike,
    n_clients: int,
    *,
    alpha: float = 0.3,
    min_size: int = 10,
    y_test: ArrayLike | None = None,
    random_state=None,
) -> Any:
    """Assign the rows of each class to clients in proportions drawn from Dir(alpha).

    A client that already holds n_samples / n_clients rows gets no further class. The whole
    partition is drawn again until every client has ``min_size`` rows.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        Labels.
    n_clients : int
        K, number of clients.
    alpha : float, default=0.3
        Concentration; smaller values give more heterogeneous clients.
    min_size : int, default=10
        Rows that each client has at least.
    y_test : array-like of shape (n_test,), default=None
        Labels of test rows, to assign them to the same clients. Of the test rows of a label each
        client gets the share that it has of the training rows of that label, so its test rows have
        the labels of its training rows, in their proportions if y and ``y_test`` have the same. The
        partition of ``y`` does not depend on it.
    random_state : int, RandomState instance or None, default=None
        Seed of the proportions and of the order of the rows.

    Returns
    -------
    clients : ndarray of shape (n_samples,), dtype=int
        The client of each row, 0 to n_clients - 1.
    clients_test : ndarray of shape (n_test,), dtype=int
        The client of each test row; only with ``y_test``. A client may have none.

    Raises
    ------
    ValueError
        If a number is out of range, no such partition is found in 1000 draws, or ``y_test`` has a
        label that y lacks.

    See Also
    --------
    skfed.datasets.partition_by_shards : A few shards of one class each for every client.
    skfed.model_selection.WithinClientKFold : Splits the rows of a partition.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.datasets import partition_dirichlet
    >>> y, y_test = np.repeat([0, 1], 50), np.repeat([0, 1], 20)
    >>> clients, clients_test = partition_dirichlet(
    ...     y, 3, y_test=y_test, random_state=0
    ... )
    >>> np.bincount(clients[y == 0], minlength=3)
    array([ 1,  2, 47])
    >>> np.bincount(clients_test[y_test == 0], minlength=3)
    array([ 0,  1, 19])
    """
    labels = labels_of(y, "y")
    check_scalar(alpha, "alpha", Real, min_val=0, include_boundaries="neither")
    rows = f"min_size={min_size} rows for each of n_clients={n_clients} clients"
    if n_clients * min_size > len(labels):
        raise ValueError(f"{rows} are more than the {len(labels)} rows of y: lower one of them.")
    rng = check_random_state(random_state)
    rows_by_label = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(_MAX_DRAWS):
        clients = _draw(rows_by_label, n_clients, alpha, rng)
        if np.bincount(clients, minlength=n_clients).min() >= min_size:
            if y_test is None:
                return clients
            return clients, match_partition(labels, clients, n_clients, y_test, rng)
    raise ValueError(
        f"{rows} were not reached in {_MAX_DRAWS} draws with alpha={alpha}: raise alpha, or lower "
        "min_size or n_clients."
    )


def _draw(
    rows_by_label: Sequence[np.ndarray],
    n_clients: int,
    alpha: float,
    rng: np.random.RandomState,
) -> np.ndarray:
    """Return the client of each row, given the rows of each label."""
    n_samples = sum(map(len, rows_by_label))
    clients = np.empty(n_samples, dtype=np.intp)
    sizes = np.zeros(n_clients, dtype=int)
    for rows in map(rng.permutation, rows_by_label):
        has_room = sizes < n_samples / n_clients
        shares = rng.dirichlet(np.full(n_clients, alpha)) * has_room
        if not shares.sum() > 0:  # a tiny alpha gave the whole class to clients without room
            shares = has_room.astype(float)
        cuts = (np.cumsum(shares / shares.sum()) * len(rows)).astype(int)[:-1]
        counts = np.diff(cuts, prepend=0, append=len(rows))
        clients[rows] = np.repeat(np.arange(n_clients), counts)
        sizes += counts
    return clients

"""The Dirichlet partition, used by power-of-choice's experiments (its appendix F).

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019 (arXiv:1909.06335).
"""

from numbers import Real

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state, check_scalar

from skfed.utils._checks import Count, labels_of, validated

_MAX_DRAWS = 1000


@validated(n_clients=[Count()], min_size=[Count(0)])
def partition_dirichlet(
    y: ArrayLike, n_clients: int, *, alpha: float = 0.3, min_size: int = 10, random_state=None
) -> np.ndarray:
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
    random_state : int, RandomState instance or None, default=None
        Seed of the proportions and of the order of the rows.

    Returns
    -------
    ndarray of shape (n_samples,), dtype=int
        The client of each row, 0 to n_clients - 1.

    Raises
    ------
    ValueError
        If a number is out of range, or no such partition is found in 1000 draws.
    """
    labels = labels_of(y, "y")
    check_scalar(alpha, "alpha", Real, min_val=0, include_boundaries="neither")
    rows = f"min_size={min_size} rows for each of n_clients={n_clients} clients"
    if n_clients * min_size > len(labels):
        raise ValueError(f"{rows} are more than the {len(labels)} rows of y: lower one of them.")
    rng = check_random_state(random_state)
    for _ in range(_MAX_DRAWS):
        clients = _draw(labels, n_clients, alpha, rng)
        if np.bincount(clients, minlength=n_clients).min() >= min_size:
            return clients
    raise ValueError(
        f"{rows} were not reached in {_MAX_DRAWS} draws with alpha={alpha}: raise alpha, or lower "
        "min_size or n_clients."
    )


def _draw(y: np.ndarray, n_clients: int, alpha: float, rng: np.random.RandomState) -> np.ndarray:
    clients = np.empty(len(y), dtype=np.intp)
    sizes = np.zeros(n_clients, dtype=int)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        has_room = sizes < len(y) / n_clients
        shares = rng.dirichlet(np.full(n_clients, alpha)) * has_room
        if not shares.sum() > 0:  # a tiny alpha gave the whole class to clients without room
            shares = has_room.astype(float)
        cuts = (np.cumsum(shares / shares.sum()) * len(rows)).astype(int)[:-1]
        for k, part in enumerate(np.split(rows, cuts)):
            clients[part] = k
            sizes[k] += len(part)
    return clients

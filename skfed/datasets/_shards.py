"""The shard partition of FedAvg (McMahan et al. 2017), used by FedALIGN's experiments."""

from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state, check_scalar, column_or_1d


def partition_by_shards(
    y: ArrayLike, n_clients: int, *, shards_per_client: int = 2, random_state=None
) -> np.ndarray:
    """Sort the rows by label, cut them into equal shards, and deal the shards out to clients.

    With few shards a client holds few classes: 2 shards of Fashion-MNIST for each of 60 clients
    are 120 shards of 500 rows of one class each.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        Labels.
    n_clients : int
        K, number of clients.
    shards_per_client : int, default=2
        Shards that each client gets; each shard goes to one client.
    random_state : int, RandomState instance or None, default=None
        Seed of the order of the rows within a class and of the deal.

    Returns
    -------
    ndarray of shape (n_samples,), dtype=int
        The client of each row, 0 to n_clients - 1.

    Raises
    ------
    ValueError
        If there are more shards than rows, or a number is below 1.
    """
    labels = np.asarray(column_or_1d(y))
    check_scalar(n_clients, "n_clients", Integral, min_val=1)
    check_scalar(shards_per_client, "shards_per_client", Integral, min_val=1)
    n_shards = n_clients * shards_per_client
    if n_shards > len(labels):
        raise ValueError(
            f"n_clients={n_clients} with shards_per_client={shards_per_client} needs {n_shards} "
            f"rows at least, but y has {len(labels)}: lower one of them."
        )
    rng = check_random_state(random_state)
    rows = rng.permutation(len(labels))
    rows = rows[np.argsort(labels[rows], kind="stable")]
    owner = rng.permutation(np.repeat(np.arange(n_clients), shards_per_client))
    clients = np.empty(len(labels), dtype=np.intp)
    for k, shard in zip(owner, np.array_split(rows, n_shards), strict=True):
        clients[shard] = k
    return clients

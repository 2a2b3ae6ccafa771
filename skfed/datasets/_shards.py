"""The shard partition of FedAvg (McMahan et al. 2017), used by FedALIGN's experiments."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from skfed.datasets._matching import match_partition
from skfed.utils._checks import Count, labels_of, validated


@validated(n_clients=[Count()], shards_per_client=[Count()])
def partition_by_shards(
    y: ArrayLike,
    n_clients: int,
    *,
    shards_per_client: int = 2,
    y_test: ArrayLike | None = None,
    random_state=None,
) -> Any:
    """Sort the rows by label, cut them into equal shards, and assign the shards to clients.

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
    y_test : array-like of shape (n_test,), default=None
        Labels of test rows, to assign them to the same clients. Of the test rows of a label each
        client gets the share that it has of the training rows of that label, so its test rows have
        the labels of its training rows, in their proportions if y and ``y_test`` have the same. The
        partition of ``y`` does not depend on it.
    random_state : int, RandomState instance or None, default=None
        Seed of the order of the rows within a class and of the assignment.

    Returns
    -------
    clients : ndarray of shape (n_samples,), dtype=int
        The client of each row, 0 to n_clients - 1.
    clients_test : ndarray of shape (n_test,), dtype=int
        The client of each test row; only with ``y_test``. A client may have none.

    Raises
    ------
    ValueError
        If there are more shards than rows, a number is below 1, or ``y_test`` has a label that y
        lacks.

    See Also
    --------
    skfed.datasets.partition_dirichlet : Class proportions drawn for each client.
    skfed.model_selection.WithinClientKFold : Splits the rows of a partition.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.datasets import partition_by_shards
    >>> y, y_test = np.repeat([0, 1], 50), np.repeat([0, 1], 20)
    >>> clients, clients_test = partition_by_shards(
    ...     y, 3, y_test=y_test, random_state=0
    ... )
    >>> np.bincount(clients[y == 0], minlength=3)
    array([ 0, 17, 33])
    >>> np.bincount(clients_test[y_test == 0], minlength=3)
    array([ 0,  7, 13])
    """
    labels = labels_of(y, "y")
    n_shards = n_clients * shards_per_client
    if n_shards > len(labels):
        raise ValueError(
            f"n_clients={n_clients} with shards_per_client={shards_per_client} needs {n_shards} "
            f"rows at least, but y has {len(labels)}: lower one of them."
        )
    rng = check_random_state(random_state)
    shards = _cut(labels, n_shards, rng)
    owner = rng.permutation(np.repeat(np.arange(n_clients), shards_per_client))
    clients = np.empty(len(labels), dtype=np.intp)
    for k, shard in zip(owner, shards, strict=True):
        clients[shard] = k
    if y_test is None:
        return clients
    return clients, match_partition(labels, clients, n_clients, y_test, rng)


@validated(n_clients=[Count()], n_shards=[Count()], shards_per_client=[Count()])
def draw_shards(
    y: ArrayLike, n_clients: int, n_shards: int, *, shards_per_client: int = 24, random_state=None
) -> tuple[np.ndarray, np.ndarray]:
    """Let each client draw shards without replacement; clients may share shards.

    In FedALIGN's EMNIST experiments, each of 60 clients draws 24 of 600 shards of 180 rows of one
    class.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        Labels.
    n_clients : int
        K, number of clients.
    n_shards : int
        Number of shards that the rows, sorted by label, are cut into.
    shards_per_client : int, default=24
        Shards that each client draws.
    random_state : int, RandomState instance or None, default=None
        Seed of the order of the rows within a class and of the draws.

    Returns
    -------
    rows : ndarray of int
        Row numbers, client by client; a row that two clients hold is listed twice. Federate
        ``X[rows]`` and ``y[rows]``.
    clients : ndarray of shape (len(rows),), dtype=int
        The client of each of ``rows``, 0 to n_clients - 1.

    Raises
    ------
    ValueError
        If a client is to hold more shards than there are, there are more shards than rows, or a
        number is below 1.
    """
    labels = labels_of(y, "y")
    if not shards_per_client <= n_shards <= len(labels):
        raise ValueError(
            f"n_shards={n_shards} must be at least shards_per_client={shards_per_client}, and at "
            f"most the {len(labels)} rows of y."
        )
    rng = check_random_state(random_state)
    shards = _cut(labels, n_shards, rng)
    held = [
        np.concatenate([shards[i] for i in rng.choice(n_shards, shards_per_client, replace=False)])
        for _ in range(n_clients)
    ]
    return np.concatenate(held), np.arange(n_clients).repeat([len(rows) for rows in held])


def _cut(labels: np.ndarray, n_shards: int, rng: np.random.RandomState) -> list[np.ndarray]:
    """Cut the rows, sorted by label, into shards of equal size."""
    rows = rng.permutation(len(labels))
    return np.array_split(rows[np.argsort(labels[rows], kind="stable")], n_shards)

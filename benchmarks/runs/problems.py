"""The data that the papers' experiments train on, partitioned among clients."""

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from skfed.datasets import (
    draw_shards,
    has_priority_label,
    load_cifar10,
    load_fashion_mnist,
    load_mnist,
    make_prioritized_synthetic,
    make_quadratic,
    make_synthetic,
    partition_by_shards,
    partition_dirichlet,
)

N_CLIENTS = 60  # of FedALIGN
LOADERS = {"fashion-mnist": load_fashion_mnist, "mnist": load_mnist, "cifar-10": load_cifar10}


@dataclass(frozen=True)
class Problem:
    """Rows with their clients, the test rows, and the priority clients; None means all clients."""

    X: np.ndarray
    y: np.ndarray
    clients: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    priority: np.ndarray | None = None

    @property
    def in_objective(self) -> np.ndarray:
        """Mask of the rows whose mean loss is F(w)."""
        if self.priority is None:
            return np.ones(len(self.y), dtype=bool)
        return np.isin(self.clients, self.priority)

    def thinned(self, step: int) -> "Problem":
        """Keep each client's first row and every ``step``-th after it; the same for test rows."""
        kept = pd.Series(self.clients).groupby(self.clients).cumcount().to_numpy() % step == 0
        return Problem(
            self.X[kept],
            self.y[kept],
            self.clients[kept],
            self.X_test[::step],
            self.y_test[::step],
            self.priority,
        )


@cache
def images(name: str, subset: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images, normalised as in both papers' code, and labels; grey images are flattened."""
    data = LOADERS[name](subset=subset)
    X = (data.X.astype(np.float32) / 255 - 0.1307) / 0.3081
    return X if name == "cifar-10" else X.reshape(len(X), -1), data.y.astype(np.int64)


def has_cifar10() -> bool:
    """Return whether CIFAR-10 is on disk."""
    try:
        load_cifar10(subset="test")
    except FileNotFoundError:
        return False
    return True


def dirichlet(seed: int, *, name: str, n_clients: int, alpha: float) -> Problem:
    """Return images with a Dirichlet partition, the same for all seeds, as in the paper's code."""
    return redrawn_dirichlet(0, name=name, n_clients=n_clients, alpha=alpha)


def redrawn_dirichlet(seed: int, *, name: str, n_clients: int, alpha: float) -> Problem:
    """Return images with a Dirichlet partition for each seed, as in the paper's text."""
    X, y = images(name, "train")
    return Problem(X, y, _dirichlet_clients(name, n_clients, alpha, seed), *images(name, "test"))


@lru_cache(maxsize=1)
def _dirichlet_clients(name: str, n_clients: int, alpha: float, seed: int) -> np.ndarray:
    """Return the client of each image; cached, as with few images many draws are rejected."""
    y = images(name, "train")[1]
    return partition_dirichlet(y, n_clients, alpha=alpha, random_state=seed)


@lru_cache(maxsize=1)
def shards(
    seed: int,
    *,
    name: str,
    n_priority: int,
    n_shards: int = 120,
    shards_per_client: int = 2,
    rows_per_client: int | None = None,
    tested: str = "priority",
) -> Problem:
    """Return 60 clients with one-class shards, ``n_priority`` of them drawn to have priority.

    ``tested="priority"`` tests on the rows with a label that a priority client holds, "all" on all
    test rows. With ``rows_per_client`` each client keeps that number of its rows.
    """
    X, y = images(name, "train")
    if n_shards == N_CLIENTS * shards_per_client:
        clients = partition_by_shards(
            y, N_CLIENTS, shards_per_client=shards_per_client, random_state=seed
        )
    else:
        rows, clients = draw_shards(
            y,
            N_CLIENTS,
            n_shards,
            shards_per_client=shards_per_client,
            random_state=seed,
        )
        X, y = X[rows], y[rows]
    rng = np.random.default_rng(seed)
    priority = rng.choice(N_CLIENTS, n_priority, replace=False)
    if rows_per_client is not None:
        kept = np.concatenate(
            [
                rng.choice(np.flatnonzero(clients == k), rows_per_client, replace=False)
                for k in range(N_CLIENTS)
            ]
        )
        X, y, clients = X[kept], y[kept], clients[kept]
    X_test, y_test = images(name, "test")
    if tested == "priority":
        known = has_priority_label(y_test, y, clients, priority)
        X_test, y_test = X_test[known], y_test[known]
    return Problem(X, y, clients, X_test, y_test, priority)


@lru_cache(maxsize=1)
def synthetic(seed: int, *, largest: float = 1.0) -> Problem:
    """Return Synthetic(1, 1), a data set for each seed, tested on its training rows.

    Draws in which a client holds more than a share ``largest`` of all rows are left out.
    """
    found = -1
    for draw in count():
        data = make_synthetic(1, 1, n_clients=30, random_state=draw)
        found += np.bincount(data.clients).max() <= largest * len(data.y)
        if found == seed:
            return Problem(data.X, data.y, data.clients, data.X, data.y)
    raise AssertionError  # count() has no end


def noisy_synthetic(seed: int, *, skew: float, **factors: float) -> Problem:
    """Return Synthetic(1, 1) with 10 priority clients and 10 with noisy copies of their data.

    A fifth of the priority clients' rows are test rows; copies of these are removed from the free
    clients too. ``factors`` are factors of the noise; the defaults are the paper's.
    """
    data = make_prioritized_synthetic(1, 1, skew=skew, **factors, random_state=seed)
    rng = np.random.default_rng(seed)
    own = np.isin(data.clients, data.priority)
    tested = own & (rng.random(len(own)) < 0.2)
    rows = np.ascontiguousarray(data.X).view(f"V{data.X.itemsize * data.X.shape[1]}").ravel()
    kept = ~np.isin(rows, rows[tested])
    return Problem(
        data.X[kept],
        data.y[kept],
        data.clients[kept],
        data.X[tested],
        data.y[tested],
        data.priority,
    )


def quadratic_data(n_clients: int) -> Bunch:
    """Return the quadratic objectives, the same for all seeds."""
    return make_quadratic(n_clients, 5, random_state=0)


def quadratic(seed: int, *, n_clients: int) -> Problem:
    """Return quadratic objectives, tested on their training rows."""
    data = quadratic_data(n_clients)
    return Problem(data.X, data.y, data.clients, data.X, data.y)

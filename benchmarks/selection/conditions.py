"""The conditions under which rules are compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.stats import norm

from benchmarks.selection.data import Data
from benchmarks.selection.splits import Split
from skfed.availability import AlternatingHalves
from skfed.devices import LognormalDevices

DEVICES = LognormalDevices()  # the speeds of measured phones
LATE = 0.25  # share of devices that are late with their training
WRONG = 0.2  # share of clients with wrong labels
PRIORITY = 0.1  # share of priority clients


@dataclass(frozen=True)
class Condition:
    """Who can be reached, how fast clients are, what their labels are worth, who has priority.

    Parameters
    ----------
    title : str
        What it is.
    training : callable, default=None
        Takes the data; returns parameters of FederatedClassifier. None: there are none.
    change : callable, default=None
        Takes a split and a generator; returns the split as it then is. None: it stays.
    has_devices, has_priority : bool, default=False
        Whether there are simulated seconds, and priority clients.
    """

    title: str
    training: Callable[[Data], Mapping[str, Any]] = field(default=lambda data: {})
    change: Callable[[Split, np.random.Generator], Split] | None = None
    has_devices: bool = False
    has_priority: bool = False

    @property
    def counts(self) -> str:
        """The accuracy by which rules are tuned and compared: of all clients, or of priority."""
        return "priority_accuracy" if self.has_priority else "mean_accuracy"

    def apply(self, split: Split, seed: int) -> Split:
        """Return the split under this condition."""
        return (
            split if self.change is None else self.change(split, np.random.default_rng((seed, 1)))
        )


def deadline(data: Data) -> float:
    """Return the seconds in which three quarters of all devices compute a round's steps.

    Polls have the same deadline, and clients of many rows may miss it.
    """
    rows = data.local_steps * data.batch_size
    slowness = np.exp(DEVICES.rows_sigma * norm.ppf(1 - LATE))
    return round(float(rows / DEVICES.rows_per_second * slowness), 1)


def wrong_labels(split: Split, rng: np.random.Generator) -> Split:
    """Draw the labels of some clients anew, for training and validation, not for test."""
    clients, labels = np.unique(split.clients), np.unique(split.y)
    wrong = rng.choice(clients, max(1, round(WRONG * len(clients))), replace=False)

    def drawn(y: np.ndarray, owners: np.ndarray) -> np.ndarray:
        return np.where(np.isin(owners, wrong), rng.choice(labels, len(y)), y)

    return replace(
        split, y=drawn(split.y, split.clients), y_val=drawn(split.y_val, split.clients_val)
    )


def random_priority(split: Split, rng: np.random.Generator) -> Split:
    """Give priority to clients at random."""
    clients = np.unique(split.clients)
    return replace(split, priority=rng.choice(clients, _n_priority(clients), replace=False))


def priority_of_one_kind(split: Split, rng: np.random.Generator) -> Split:
    """Give priority to the clients of the largest shares of one label, which is drawn."""
    clients, owners = np.unique(split.clients, return_inverse=True)
    label = rng.choice(np.unique(split.y))
    shares = np.bincount(owners, split.y == label) / np.bincount(owners)
    order = np.argsort(-shares, kind="stable")
    return replace(split, priority=clients[order[: _n_priority(clients)]])


def _n_priority(clients: np.ndarray) -> int:
    return max(2, round(PRIORITY * len(clients)))


CONDITIONS = {
    "always": Condition("always available"),
    "intermittent": Condition(
        "two halves of the clients in turn, a tenth of each away",
        lambda data: {"availability": AlternatingHalves()},
    ),
    "devices": Condition("lognormal devices", lambda data: {"devices": DEVICES}, has_devices=True),
    "deadline": Condition(
        "lognormal devices, a quarter of which trains too slowly for the deadline",
        lambda data: {"devices": DEVICES, "deadline": deadline(data)},
        has_devices=True,
    ),
    "wrong-labels": Condition("a fifth of the clients with wrong labels", change=wrong_labels),
    "priority-random": Condition(
        "a tenth of the clients, drawn, with priority", change=random_priority, has_priority=True
    ),
    "priority-kind": Condition(
        "a tenth of the clients, of one kind, with priority",
        change=priority_of_one_kind,
        has_priority=True,
    ),
}

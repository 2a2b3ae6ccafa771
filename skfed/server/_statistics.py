"""What clients compute of their rows before the first round of a fit, and rates that are safe."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Protocol

import numpy as np
from skorch import NeuralNet

from skfed._federation import Federation
from skfed.engines import ReplyTimes
from skfed.nets import batch_size, standardize_layers, whole
from skfed.server._moments import (
    Moments,
    Norms,
    class_shares,
    client_moments,
    client_norms,
    safe_rate,
)

ClientMoments = Mapping[str, Moments]  # by name, as in ``Wanted.names``


class StatisticsSource(Protocol):
    """Asks priority clients for statistics; an exception is of a client that failed."""

    @property
    def n_values(self) -> Mapping[str, int]:
        """The numbers of columns, of targets and of classes."""

    def moments(
        self, names: list[str]
    ) -> tuple[Iterable[ClientMoments | Exception], ReplyTimes | None]:
        """Ask for the moments of "columns", "targets" and "classes"."""

    def norms(self, net: NeuralNet) -> tuple[Iterable[Norms | Exception], ReplyTimes | None]:
        """Ask for the norms of rows as the net's linear layer takes them."""


@dataclass(frozen=True)
class LocalStatistics:
    """The statistics of clients in this process (a ``StatisticsSource``)."""

    X: np.ndarray  # as it was given to fit
    y: np.ndarray  # encoded
    weights: np.ndarray | None
    federation: Federation
    n_classes: int = 0

    @property
    def n_values(self) -> dict[str, int]:
        """The numbers of columns, of targets and of classes."""
        shapes = {"columns": self.X.shape[1:], "targets": self.y.shape[1:]}
        return {name: prod(shape) for name, shape in shapes.items()} | {"classes": self.n_classes}

    def moments(self, names: list[str]) -> tuple[Iterable[ClientMoments], None]:
        """Return the moments of each priority client."""
        # The losses that targets are to be compared with are weighted; the columns' scale is not.
        find = {
            "columns": partial(client_moments, self.X),
            "targets": partial(client_moments, self.y, weights=self.weights),
            "classes": partial(class_shares, self.y, self.n_classes, weights=self.weights),
        }
        priority = np.flatnonzero(self.federation.priority)
        clients = (self.federation.rows(int(k)) for k in priority)
        return ({name: find[name](rows=rows) for name in names} for rows in clients), None

    def norms(self, net: NeuralNet) -> tuple[Iterable[Norms], None]:
        """Return the norms of each priority client."""
        clients = np.flatnonzero(self.federation.priority)
        return (self.norms_of(net, int(k)) for k in clients), None

    def norms_of(self, net: NeuralNet, k: int) -> Norms:
        """Return the norms of a client's rows."""
        rows = self.federation.rows(k)
        return client_norms(self.X, rows, *mean_and_scale(net), self.weights)


class RateLimits:
    """Learning rates at which the rows of each free client do not make its training diverge.

    A client knows its own; nothing is sent. Those of priority clients are not below the rate of
    all; but with ``for_all`` they have a limit too, for rows that are not those of the fit.
    """

    def __init__(self, statistics: LocalStatistics, net: NeuralNet, *, for_all: bool = False):
        self.statistics, self.net, self.for_all = statistics, net, for_all
        self._rates: dict[int, float] = {}

    def factors(self, clients: np.ndarray, rate: float) -> np.ndarray | None:
        """Return by what the rate of each client is multiplied, at most 1; None: all by 1."""
        limits = np.array([self._limit(k) for k in clients.tolist()])
        return np.minimum(1.0, limits / rate) if rate and (limits < rate).any() else None

    def _limit(self, k: int) -> float:
        federation = self.statistics.federation
        if federation.priority[k] and not self.for_all:
            return np.inf
        if k not in self._rates:
            norms = self.statistics.norms_of(self.net, k)
            self._rates[k] = safe_rate(norms, rows_a_step(self.net, federation.size(k)))
        return self._rates[k]


def mean_and_scale(net: NeuralNet) -> tuple[np.ndarray, np.ndarray]:
    """Return what a net's layer subtracts from columns of X, and by what it divides them."""
    (layer,) = standardize_layers(net)
    mean, scale = layer.in_units()
    return mean.cpu().numpy(), scale.cpu().numpy()


def rows_a_step(net: NeuralNet, n_samples: int) -> int:
    """Return the rows of a local step of a client with so many."""
    return min(whole(batch_size(net), n_samples), n_samples)

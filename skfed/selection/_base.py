"""The interface of selectors.

A selector takes a :class:`Round` and returns a :class:`Cohort`. It has no access to data or models,
so the same object can choose among arrays in this process or among machines on a network.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from numbers import Integral
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator

from skfed.selection._poll_metrics import POLL_METRICS
from skfed.selection._sampling import draw_by_size
from skfed.utils._checks import check_params


@dataclass(frozen=True)
class Cohort:
    """The clients whose updates are aggregated this round, with their weights.

    Parameters
    ----------
    clients : ndarray of shape (n_chosen,), dtype=int
        Client indices; a client drawn twice is listed twice and trains twice.
    weights : ndarray of shape (n_chosen,)
        The weight of each update, summing to 1 unless ``unbiased``.
    unbiased : bool, default=False
        Aggregate as w + sum of q_k (w_k - w) (power-of-choice, appendix E), with the weights as
        the q_k, which need not sum to 1.
    objective : float, default=nan
        F(w_t) over the priority clients reached, if the rule polled them for it.
    """

    clients: np.ndarray
    weights: np.ndarray
    unbiased: bool = False
    objective: float = float("nan")

    def keep(self, mask: np.ndarray) -> "Cohort":
        """Return the cohort of the clients in ``mask``; weights sum to 1 again unless unbiased.

        It is empty if all weights in the mask are 0: they define no mean.
        """
        clients, weights = self.clients[mask], self.weights[mask]
        if not self.unbiased and not mask.all():
            if not weights.any():
                clients, weights = clients[:0], weights[:0]
            weights = weights / max(weights.sum(), np.finfo(float).tiny)
        return Cohort(clients, weights, self.unbiased, self.objective)

    @classmethod
    def mean(cls, clients: np.ndarray) -> "Cohort":
        """Return a cohort of equal weights, 1/m (power-of-choice, equation 3)."""
        return cls(clients, np.full(len(clients), 1 / max(len(clients), 1)))

    @classmethod
    def by_size(cls, clients: np.ndarray, sizes: np.ndarray) -> "Cohort":
        """Return a cohort of weights D_k / sum of D over the cohort (FedALIGN, Algorithm 1)."""
        chosen = sizes[clients]
        return cls(clients, chosen / max(chosen.sum(), 1))


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a selector knows when it chooses.

    Parameters
    ----------
    index : int
        t, the number of rounds before this one.
    n_rounds : int
        The number of rounds that the fit is planned for.
    rng : numpy.random.Generator
        The source of all random draws of a selector, keyed by (seed, round).
    sizes : ndarray of shape (n_clients,), dtype=int
        D_k, in samples.
    fractions : ndarray of shape (n_clients,)
        p_k; they sum to 1 over the priority clients.
    priority, available : ndarray of shape (n_clients,), dtype=bool
        Whether a client has priority (wholly or in part), and can be reached in this round.
    priority_weights : ndarray of shape (n_clients,)
        s_k in [0, 1]: 1 for priority clients, 0 for free ones, unless ``priority`` is a mapping.
    reported : ndarray of shape (n_clients,)
        The last training loss that each client sent along with its update; +inf before the first,
        NaN after its training failed.
    seconds : ndarray of shape (n_clients,)
        The simulated seconds that the last training of each client took, or that it was waited for
        if it was late; NaN before the first, and without devices.
    ends : ndarray of shape (n_clients,), dtype=int
        Cumulative sums of the sizes, used by :meth:`draw`.
    ask : callable
        Sends a poll to the clients and records its cost; use :meth:`poll`.
    expect : callable, default=None
        Returns the seconds that clients are expected to take; use :meth:`expected_seconds`.
    """

    index: int
    n_rounds: int
    rng: np.random.Generator
    sizes: np.ndarray
    fractions: np.ndarray
    priority: np.ndarray
    priority_weights: np.ndarray
    available: np.ndarray
    reported: np.ndarray
    seconds: np.ndarray
    ends: np.ndarray
    ask: Callable[..., np.ndarray] = field(repr=False)
    expect: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)

    def __post_init__(self):
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                view = value.view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)

    def draw(self, n: int, by_size: bool = True, replace: bool = False) -> np.ndarray:
        """Draw available clients; while all are, the cost does not grow with their number.

        Parameters
        ----------
        n : int
            Number of draws; without replacement, capped by the number of available clients.
        by_size : bool, default=True
            With probabilities in proportion to D_k; else with equal probabilities.
        replace : bool, default=False
            With replacement.

        Returns
        -------
        ndarray of int
            Client indices in the order drawn.
        """
        n_available = int(np.count_nonzero(self.available))
        n = n if replace else min(n, n_available)
        if by_size:
            return draw_by_size(self.rng, self.ends, self.available, n, replace)
        if n_available == len(self.available):
            return self.rng.choice(n_available, size=n, replace=replace)
        return self.rng.choice(np.flatnonzero(self.available), size=n, replace=replace)

    def poll(
        self,
        clients: Any,
        metric: str = "loss",
        max_samples: int | str | None = None,
        at_most: float | None = None,
    ) -> np.ndarray:
        """Ask clients for the loss or error of the current global model; the ledger is charged.

        Parameters
        ----------
        clients : array-like of int
            Indices of available clients.
        metric : {"loss", "error"}, default="loss"
            The mean loss F_k(w_t), or 1 - accuracy.
        max_samples : int, "batch" or None, default=None
            Evaluate on at most so many rows, drawn afresh each round without replacement; "batch"
            is min(b, D_k) for the net's batch size b; None is all D_k.
        at_most : float, default=None
            Ask only for values up to this bound; a client above it stays silent.

        Returns
        -------
        ndarray of shape (len(clients),)
            The values in the order of ``clients``, NaN for a client that stayed silent or failed.

        Raises
        ------
        ValueError
            If a client does not exist or is not available, or an option is unknown.
        """
        polled = _client_indices(clients, self.available, "poll")
        if metric not in POLL_METRICS:
            names = " or ".join(f'"{name}"' for name in POLL_METRICS)
            raise ValueError(f"metric must be {names}, got {metric!r}.")
        whole_number = isinstance(max_samples, Integral) and max_samples >= 1
        if max_samples not in (None, "batch") and not whole_number:
            raise ValueError(f'max_samples must be None, "batch" or >= 1, got {max_samples!r}.')
        return self.ask(polled, metric=metric, max_samples=max_samples, at_most=at_most)

    def expected_seconds(self, clients: Any) -> np.ndarray:
        """Return the seconds that a training of each client is expected to take, if begun now.

        It is computed for these clients alone, and costs them nothing: devices are known by their
        type. A client that has been polled has the model already.

        Parameters
        ----------
        clients : array-like of int
            Indices of available clients.

        Returns
        -------
        ndarray of shape (len(clients),)
            Simulated seconds in the order of ``clients``, for one training of each; without what
            is drawn in each round.

        Raises
        ------
        ValueError
            If a client does not exist or is not available, or the devices do not tell.
        """
        if self.expect is None:
            raise ValueError(
                "expected_seconds needs devices that tell their speeds: pass devices of "
                "skfed.devices with public=True."
            )
        asked = _client_indices(clients, self.available, "expected_seconds")
        distinct, position = np.unique(asked, return_inverse=True)
        return self.expect(distinct)[position]


class BaseSelector(BaseEstimator, metaclass=ABCMeta):
    """Base class of selectors.

    A subclass implements ``_select(round)``, which returns a :class:`Cohort`, keeps no state, and
    lists the allowed values of its ``__init__`` parameters in ``_parameter_constraints``.
    """

    _parameter_constraints: dict = {}

    #: Whether the choice depends on priority. If it does not, a fit with ``priority`` warns,
    #: unless the selector's attribute ``ignore_priority`` is True.
    uses_priority = True

    def select(self, round: Round) -> Cohort:
        """Choose this round's cohort and check it.

        Parameters
        ----------
        round : Round
            The view of the round.

        Returns
        -------
        Cohort
            Sorted by client index, so that sums over it do not depend on the order in which a rule
            lists clients.

        Raises
        ------
        ValueError
            If a parameter is out of range, or the rule returned clients that do not exist or are
            not available, or invalid weights.
        """
        if not get_config()["skip_parameter_validation"]:
            check_params(self)
        if not round.available.any():  # the round keeps the model
            return Cohort.mean(np.empty(0, dtype=np.intp))
        return self._check(self._select(round), round)

    def scheduled(self, round: Round) -> dict[str, float]:
        """Return the values of scheduled parameters in a round, as columns of the history."""
        return {}

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return the expected numbers of polls and choices of each client, where they are known.

        Parameters
        ----------
        round : Round
            A round in which all clients are available and have equal losses, polled or reported,
            and equal seconds if they have been timed.

        Returns
        -------
        dict of str to ndarray of shape (n_clients,)
            Expected numbers under "polled" and "chosen"; a key may be left out.
            :mod:`skfed.utils.selector_checks` compares them with observed frequencies.
        """
        return {}

    def warning_after(
        self, rows: Sequence[Mapping[str, Any]], free: Collection[Hashable], n_rounds: int
    ) -> str | None:
        """Return a warning about the parameters after a finished fit, if there is one.

        Parameters
        ----------
        rows : sequence of mapping
            The rows of ``history_``.
        free : collection of client ids
            The clients without priority.
        n_rounds : int
            The number of rounds that the fit was planned for.

        Returns
        -------
        str or None
            What is wrong and what to do about it; None if nothing is.
        """
        return None

    @abstractmethod
    def _select(self, round: Round) -> Cohort:
        """Choose a cohort; the parameters are valid and at least one client is available."""

    def _check(self, cohort: Cohort, round: Round) -> Cohort:
        name = type(self).__name__
        clients = _client_indices(cohort.clients, round.available, name)
        weights = np.asarray(cohort.weights, dtype=float)
        if weights.shape != clients.shape:
            raise ValueError(f"{name} chose {len(clients)} clients with {weights.size} weights.")
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError(f"{name} gave weights that are negative or not finite: {weights}.")
        if len(weights) and not cohort.unbiased and not isclose(weights.sum(), 1, rel_tol=1e-5):
            raise ValueError(
                f"{name} gave weights that sum to {weights.sum()}, not to 1: divide them by their "
                "sum, or use Cohort.mean or Cohort.by_size."
            )
        order = np.argsort(clients, kind="stable")
        return Cohort(clients[order], weights[order], cohort.unbiased, cohort.objective)


def _client_indices(clients: Any, available: np.ndarray, caller: str) -> np.ndarray:
    """Check that all are indices of available clients."""
    clients = np.asarray(clients)
    if clients.size == 0:
        return np.empty(0, dtype=np.intp)
    if clients.ndim != 1 or not np.issubdtype(clients.dtype, np.integer):
        raise ValueError(f"{caller} needs a list of client indices, got {clients!r}.")
    outside = clients[(clients < 0) | (clients >= len(available))]
    if len(outside):
        raise ValueError(f"{caller} names client {outside[0]}; indices go to {len(available) - 1}.")
    away = clients[~available[clients]]
    if len(away):
        raise ValueError(f"{caller} names client {away[0]}, which is not available in this round.")
    return clients.astype(np.intp)

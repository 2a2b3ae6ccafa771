"""The view of a round that a selector chooses from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from types import MappingProxyType
from typing import Any

import numpy as np

from skfed.selection._cohort import Cohort, checked_cohort, client_indices, copied_memory
from skfed.selection._past import Past
from skfed.selection._poll_metrics import POLL_METRICS
from skfed.selection._sampling import draw_by_size
from skfed.utils._arrays import freeze_arrays


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
        The seconds that the last training of each client took, or that it was waited for if it was
        late: those of simulated devices, or over Flower real ones. NaN before the first, and in a
        simulation without devices.
    ends : ndarray of shape (n_clients,), dtype=int
        Cumulative sums of the sizes, used by :meth:`draw`.
    ask : callable
        Sends a poll to the clients and records its cost; use :meth:`poll`.
    train : callable
        Trains a cohort on trial; use :meth:`trial`.
    project : callable
        Asks for projections of gradients; use :meth:`sketch`.
    expect : callable, default=None
        Returns the seconds that clients are expected to take; use :meth:`expected_seconds`.
    past : Past
        What the server has seen of clients in earlier rounds.
    memory : mapping of str to object
        What the rule gave as ``Cohort(memory=...)`` when it last gave any; read-only, empty at
        first.
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
    train: Callable[[Cohort], Callable[..., np.ndarray]] = field(repr=False)
    project: Callable[[np.ndarray], np.ndarray] = field(repr=False)
    past: Past = field(repr=False)
    expect: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)
    memory: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        freeze_arrays(self)
        object.__setattr__(self, "memory", MappingProxyType(copied_memory(self.memory, "memory")))

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
        return _poll(self.ask, self.available, clients, metric, max_samples, at_most)

    def trial(self, cohort: Cohort) -> "Trial":
        """Train a cohort from a copy of the current global model; the ledger is charged.

        It is trained as the round's cohort would be, and aggregated by the same aggregator, without
        a server optimizer; its draws are its own, but who drops out or is slow is drawn once a
        round. A client that fails or is late in it is left out of the round's cohort. If none comes
        back, the trial's model is the current one.

        Parameters
        ----------
        cohort : Cohort
            Available clients and their weights.

        Returns
        -------
        Trial
            Its ``poll`` asks clients for losses of the trial's model, as :meth:`poll` does for the
            current one, which clients keep.

        Raises
        ------
        ValueError
            If a client does not exist or is not available, or weights are not valid.
        """
        cohort = checked_cohort(cohort, self.available, "trial")
        return Trial(self.available, self.train(cohort))

    def sketch(self, clients: Any, of: str = "gradient") -> np.ndarray:
        """Ask clients for a random projection of their gradient; the ledger is charged.

        It is the gradient of F_k, on all rows of a client, at the current global model in
        evaluation mode. The projection is the same in all rounds of a fit, so that inner products
        and distances are kept in expectation, also between rounds.

        Parameters
        ----------
        clients : array-like of int
            Indices of available clients.
        of : {"gradient"}, default="gradient"
            What is projected.

        Returns
        -------
        ndarray of shape (len(clients), 64)
            The projections in the order of ``clients``; rows of NaN for clients that failed.

        Raises
        ------
        ValueError
            If a client does not exist or is not available, ``of`` is unknown, or the fit has
            privacy, which does not cover gradients.
        """
        asked = client_indices(clients, self.available, "sketch")
        if of != "gradient":
            raise ValueError(f'of must be "gradient", got {of!r}.')
        return self.project(asked)

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
        asked = client_indices(clients, self.available, "expected_seconds")
        distinct, position = np.unique(asked, return_inverse=True)
        return self.expect(distinct)[position]


@dataclass(frozen=True)
class Reports:
    """What the cohort of a rule with two phases reports before anything is uploaded.

    Parameters
    ----------
    clients : ndarray of shape (n_members,), dtype=int
        The cohort that was asked, a client that was drawn twice listed twice.
    norms : ndarray of shape (n_members,)
        The weight of each times the L2 norm of its update; NaN of those that failed, were late or
        did not reply.
    losses : ndarray of shape (n_members,)
        Their training losses; NaN likewise.
    """

    clients: np.ndarray
    norms: np.ndarray
    losses: np.ndarray


class Trial:
    """A model that a cohort has trained from a copy of the global one.

    See :meth:`~skfed.selection.Round.trial`.

    Parameters
    ----------
    available : ndarray of shape (n_clients,), dtype=bool
        Who can be reached in this round.
    ask : callable
        Sends a poll; use :meth:`poll`.
    """

    def __init__(self, available: np.ndarray, ask: Callable[..., np.ndarray]):
        self._available, self._ask = available, ask

    def poll(
        self,
        clients: Any,
        metric: str = "loss",
        max_samples: int | str | None = None,
        at_most: float | None = None,
    ) -> np.ndarray:
        """Ask for losses or errors of this model, as :meth:`~skfed.selection.Round.poll`."""
        return _poll(self._ask, self._available, clients, metric, max_samples, at_most)


def _poll(
    ask: Callable[..., np.ndarray],
    available: np.ndarray,
    clients: Any,
    metric: str,
    max_samples: int | str | None,
    at_most: float | None,
) -> np.ndarray:
    """Check the arguments of a poll, and send it."""
    polled = client_indices(clients, available, "poll")
    if metric not in POLL_METRICS:
        names = " or ".join(f'"{name}"' for name in POLL_METRICS)
        raise ValueError(f"metric must be {names}, got {metric!r}.")
    whole_number = isinstance(max_samples, Integral) and max_samples >= 1
    if max_samples not in (None, "batch") and not whole_number:
        raise ValueError(f'max_samples must be None, "batch" or >= 1, got {max_samples!r}.')
    return ask(polled, metric=metric, max_samples=max_samples, at_most=at_most)

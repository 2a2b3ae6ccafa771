"""Which clients are available in a round, and which chosen clients do not reply.

Works with any selector: a selector chooses among the available clients. To add an availability,
subclass :class:`BaseAvailability` here and name the class in ``__all__``.
"""

from abc import ABCMeta
from collections.abc import Mapping
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator

from skfed._federation import Federation, distinct_names
from skfed.utils._checks import check_params, column_names
from skfed.utils._ids import missing_clients
from skfed.utils._sklearn import Interval

__all__ = [
    "AlternatingHalves",
    "Always",
    "BackOff",
    "BaseAvailability",
    "Dropout",
    "IndependentAvailability",
    "LateJoin",
    "TraceAvailability",
]

_SHARE = Interval(Real, 0, 1, closed="both")


class BaseAvailability(BaseEstimator, metaclass=ABCMeta):
    """Base class of availabilities.

    A subclass overrides ``_reachable``, ``_answers`` or ``_joined``, or several of them. All random
    draws are from the generators in their arguments.
    """

    _parameter_constraints: dict = {}

    @property
    def backs_off(self) -> bool:
        """Whether clients that do not answer are left alone for some rounds: :class:`BackOff`."""
        return False

    def joined(self, federation: Federation, round: int) -> np.ndarray | None:
        """Return which clients have joined until a round.

        Parameters
        ----------
        federation : Federation
            The clients, in index order.
        round : int
            t, from 0.

        Returns
        -------
        ndarray of shape (n_clients,), dtype=bool, or None
            False of a client that has no part in the federation yet. None: all have joined.

        Raises
        ------
        ValueError
            If a parameter is out of range or does not fit the clients.
        """
        check_params(self)
        return self._joined(federation, round)

    def reachable(
        self,
        federation: Federation,
        round: int,
        rng: np.random.Generator,
        fixed_rng: np.random.Generator,
    ) -> np.ndarray:
        """Return the clients that can be reached in a round.

        Parameters
        ----------
        federation : Federation
            The clients, in index order.
        round : int
            t, from 0.
        rng, fixed_rng : numpy.random.Generator
            Generators that are keyed by the round, and the same in every round.

        Returns
        -------
        ndarray of shape (n_clients,), dtype=bool
            True where the client can be reached.

        Raises
        ------
        ValueError
            If a parameter is out of range or does not fit the clients.
        """
        check_params(self)
        return self._reachable(federation, round, rng, fixed_rng)

    def answers(
        self, federation: Federation, chosen: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return which of the chosen clients answer after their training.

        Parameters
        ----------
        federation : Federation
            The clients, in index order.
        chosen : ndarray of int
            Indices of the distinct clients in the cohort; where a rule trains some on trial before,
            of those that were not asked yet in the round.
        rng : numpy.random.Generator
            A generator that is keyed by the round.

        Returns
        -------
        ndarray of shape (len(chosen),), dtype=bool
            True where the client answers.
        """
        return self._answers(federation, chosen, rng)

    def _joined(self, federation, round) -> np.ndarray | None:
        return None

    def _reachable(self, federation, round, rng, fixed_rng) -> np.ndarray:
        return np.ones(len(federation), bool)

    def _answers(self, federation, chosen, rng) -> np.ndarray:
        return np.ones(len(chosen), bool)


class Always(BaseAvailability):
    """All clients can be reached in every round."""


class AlternatingHalves(BaseAvailability):
    """Two fixed halves of the clients alternate; a random share of the half is not available.

    Power-of-choice, appendix G.3.

    Parameters
    ----------
    removed : float, default=0.1
        Share of the half that cannot be reached, drawn each round; 0.1 in the paper, 0.2 in its
        code.
    """

    _parameter_constraints = {"removed": [_SHARE]}

    def __init__(self, removed=0.1):
        self.removed = removed

    def _reachable(self, federation, round, rng, fixed_rng):
        halves = np.array_split(fixed_rng.permutation(len(federation)), 2)
        half = halves[round % 2]
        n_away = int(self.removed * len(half) + 1e-9)
        mask = np.zeros(len(federation), bool)
        mask[rng.permutation(half)[n_away:]] = True
        return mask


class IndependentAvailability(BaseAvailability):
    """Each client is available with a given probability, independently of the others.

    Parameters
    ----------
    probability : float or mapping of client id to float, default=0.9
        The probability; a mapping has to name every client.
    """

    _parameter_constraints = {"probability": [_SHARE, Mapping]}

    def __init__(self, probability=0.9):
        self.probability = probability

    def _reachable(self, federation, round, rng, fixed_rng):
        return rng.random(len(federation)) < self._probabilities(federation)

    def _probabilities(self, federation: Federation) -> np.ndarray:
        if not isinstance(self.probability, Mapping):
            return np.full(len(federation), self.probability, float)
        names = distinct_names(federation, "probability")
        missing = [name for name in names if name not in self.probability]
        if missing:
            lacking = missing_clients(missing, self.probability)
            raise ValueError(f"probability lacks {lacking}: name all.")
        values = np.array([self.probability[name] for name in names], float)
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"probability must be in [0, 1] for every client, got {values}.")
        return values


class TraceAvailability(BaseAvailability):
    """Recorded availability, one row a round.

    Parameters
    ----------
    trace : DataFrame or array-like of bool, of shape (n_recorded, n_clients)
        One row a round; after the last row comes the first. The columns of a DataFrame, of pandas
        or another library, are client ids, in any order, and may name other clients too; those of
        an array are the clients in the order of ``clients_``.
    """

    _parameter_constraints = {"trace": ["array-like"]}

    def __init__(self, trace):
        self.trace = trace

    def _reachable(self, federation, round, rng, fixed_rng):
        trace = self._mask(federation)
        return trace[round % len(trace)]

    def _mask(self, federation: Federation) -> np.ndarray:
        columns = column_names(self.trace)
        mask = np.asarray(self.trace if columns is None else self._in_order(federation, columns))
        if mask.ndim != 2 or mask.shape[1] != len(federation) or not len(mask):
            raise ValueError(
                f"trace has shape {mask.shape}, but there are {len(federation)} clients: pass one "
                "row a round and one column a client."
            )
        if not np.isin(mask, (0, 1)).all():
            raise ValueError(
                "trace must hold True and False (or 1 and 0) only: fill missing values, and turn "
                "text into bool."
            )
        return mask.astype(bool)

    def _in_order(self, federation: Federation, columns: list) -> np.ndarray:
        """Return the clients' columns of a frame, in the order of the clients."""
        names = distinct_names(federation, "trace")
        missing = [name for name in names if name not in columns]
        if missing:
            raise ValueError(
                f"trace has no column for {missing_clients(missing, columns)}: its columns must be "
                "client ids."
            )
        return np.column_stack([np.asarray(self.trace[name]) for name in names])


class _OfAnother(BaseAvailability):
    """Changes another availability, its parameter ``availability``; None is that of all, always."""

    _parameter_constraints = {"availability": [BaseAvailability, None]}

    @property
    def backs_off(self):
        return self._base().backs_off

    def _joined(self, federation, round):
        return self._base().joined(federation, round)

    def _reachable(self, federation, round, rng, fixed_rng):
        return self._base().reachable(federation, round, rng, fixed_rng)

    def _answers(self, federation, chosen, rng):
        return self._base().answers(federation, chosen, rng)

    def _base(self) -> BaseAvailability:
        return Always() if self.availability is None else self.availability


class Dropout(_OfAnother):
    """Chosen clients do not answer, at random.

    What was sent to them is charged, and they are left out of the aggregate.

    Parameters
    ----------
    probability : float, default=0.1
        Probability that a chosen client does not answer, independently of the others.
    availability : BaseAvailability, default=None
        Which clients can be reached; None is all.
    """

    _parameter_constraints = {"probability": [_SHARE], **_OfAnother._parameter_constraints}

    def __init__(self, probability=0.1, availability=None):
        self.probability = probability
        self.availability = availability

    def _answers(self, federation, chosen, rng):
        answering = rng.random(len(chosen)) >= self.probability
        return answering & super()._answers(federation, chosen, rng)


class LateJoin(_OfAnother):
    """Some clients join in a later round, as ``FederatedStrategy(join=True)`` lets sites do.

    Before, a client has no size and no part in p_k, sends nothing before round 0, and cannot be
    reached; ``not_joined`` in ``history_`` has it.

    Parameters
    ----------
    rounds : mapping of client id to int
        The first round, from 0, of each client that is not there from the start.
    availability : BaseAvailability, default=None
        Which of those that have joined can be reached; None is all.
    """

    _parameter_constraints = {"rounds": [Mapping], **_OfAnother._parameter_constraints}

    def __init__(self, rounds, availability=None):
        self.rounds = rounds
        self.availability = availability

    def _joined(self, federation, round):
        names = distinct_names(federation, "rounds")
        known = set(names)
        unknown = [name for name in self.rounds if name not in known]
        if unknown:
            raise ValueError(f"rounds names {unknown[0]!r}, which is none of the clients.")
        for name, first in self.rounds.items():
            if not isinstance(first, Integral) or first < 0:
                raise ValueError(
                    f"rounds has {first!r} for client {name!r}: the first round of a client is 0, "
                    "1, 2 and so on."
                )
        joined = np.array([self.rounds.get(name, 0) <= round for name in names], dtype=bool)
        before = super()._joined(federation, round)
        return joined if before is None else joined & before


class BackOff(_OfAnother):
    """A client that does not answer is left alone for 1 round, then for 2, 4 and 8.

    It counts as one that cannot be reached in these rounds; after an answer it begins anew. It has
    not answered if it was later than the ``deadline``, dropped out or, over Flower, did not reply
    within ``timeout``; who is late because the ``report_goal`` was reached is asked as before.

    Parameters
    ----------
    availability : BaseAvailability, default=None
        Which of the others can be reached, and which do not answer; None is all, always.
    """

    def __init__(self, availability=None):
        self.availability = availability

    @property
    def backs_off(self):
        """True."""
        return True

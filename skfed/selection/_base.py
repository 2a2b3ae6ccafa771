"""The interface of selectors.

A selector takes a :class:`Round` and returns a :class:`Cohort`. It has no access to data or models,
so the same object can choose among arrays in this process or among machines on a network.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator

from skfed.selection._cohort import Cohort, checked_cohort
from skfed.selection._round import Reports, Round
from skfed.utils._checks import check_params


class BaseSelector(BaseEstimator, metaclass=ABCMeta):
    """Base class of selectors.

    A subclass implements ``_select(round)``, which returns a :class:`Cohort`, keeps no state, and
    lists the allowed values of its ``__init__`` parameters in ``_parameter_constraints``.

    A rule with two phases has a method ``admit(round, reports)`` too. Its cohort trains and sends
    :class:`Reports`; ``admit`` returns a :class:`Cohort` of some of ``reports.clients``, maybe of
    none, which send their updates and are aggregated.
    """

    _parameter_constraints: dict = {}

    #: Whether the choice depends on priority. If it does not, a fit with ``priority`` warns,
    #: unless the selector's attribute ``ignore_priority`` is True.
    uses_priority = True

    #: What the rule needs of ``round.past`` that clients do not send anyway, or that is not kept
    #: for all rules: "spread", "updates" or "last_layer". A property if a parameter decides it.
    needs: tuple[str, ...] = ()

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
        TypeError
            If the rule returned a memory that cannot be kept.
        """
        if not get_config()["skip_parameter_validation"]:
            check_params(self)
        if not round.available.any():  # the round keeps the model
            return Cohort.mean(np.empty(0, dtype=np.intp))
        return checked_cohort(self._select(round), round.available, type(self).__name__)

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


def admission_of(selector: Any) -> Callable[[Round, Reports], Cohort] | None:
    """Return the method by which a rule with two phases admits updates; else None."""
    return getattr(selector, "admit", None)

"""The contract of aggregation rules."""

from abc import ABCMeta, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from skfed.aggregation._tensors import changed_names, settled
from skfed.nets import State
from skfed.selection import Cohort
from skfed.utils._checks import check_params


class BaseAggregator(BaseEstimator, metaclass=ABCMeta):
    """Base class of aggregation rules; a subclass implements ``_aggregate`` and keeps no state.

    Updates come in stacks of some clients: a rule that needs no more than a sum of them also
    overrides ``collect``, ``accumulate`` and ``combine``, so that a stack is dropped as soon as it
    is summed.
    """

    _parameter_constraints: dict = {}

    #: Whether clients correct their steps by control variates (SCAFFOLD).
    uses_variates = False

    def aggregate(
        self, model: State, updates: Sequence[State], cohort: Cohort, parameters: Collection[str]
    ) -> State:
        """Return what a cohort's models make of the global model.

        Parameters
        ----------
        model : dict of str to Tensor
            w, the current global model.
        updates : sequence of dict of str to Tensor
            w_k, one a member of the cohort, in its order.
        cohort : Cohort
            The weights q_k. An empty cohort keeps the model.
        parameters : collection of str
            Names of the trained parameters; the other tensors of a model are buffers.

        Returns
        -------
        dict of str to Tensor
            The aggregate, in the dtypes of ``model``. A tensor that no update has changed is the
            model's own.

        Raises
        ------
        ValueError
            If a parameter of the rule is out of range.
        """
        check_params(self)
        if not updates:
            return model
        stack = {name: torch.stack([update[name] for update in updates]) for name in model}
        aggregate = self._aggregate(model, stack, cohort, parameters)
        return settled(model, aggregate, changed_names(model, stack))

    def collect(
        self, model: State, stack: State, weights: np.ndarray, parameters: Collection[str]
    ) -> Any:
        """Return what is kept of some members' models; here, all of it.

        Parameters
        ----------
        model : dict of str to Tensor
            w, the current global model.
        stack : dict of str to Tensor
            w_k along a leading axis, one a member. Not to be changed.
        weights : ndarray of shape (n_members,)
            Their q_k.
        parameters : collection of str
            Names of the trained parameters.

        Returns
        -------
        object
            For ``combine``, from another process maybe: a dict of tensors (views of ``stack`` are
            copied), or anything without a view of it. Where a model is not finite, neither is
            this; then it is collected again without that model.
        """
        return stack

    def accumulate(self, parts: list[tuple[np.ndarray, Any]], members: np.ndarray, part: Any):
        """Add what was collected of some members to what was collected before; here, keep both.

        Each job accumulates what it has collected, then the results of the jobs are accumulated, in
        an order that depends on the cohort and the memory budget alone. Threads may call it at the
        same time on lists of their own.

        Parameters
        ----------
        parts : list of (ndarray of int, object)
            What was collected so far. Changed in place; empty at first.
        members : ndarray of int
            Positions in the cohort of the members of ``part``; none failed.
        part : object
            What ``collect`` returned for them, or a part of a list that was accumulated before.
        """
        parts.append((members, part))

    def combine(
        self,
        model: State,
        parts: Iterable[tuple[np.ndarray, Any]],
        cohort: Cohort,
        parameters: Collection[str],
    ) -> State:
        """Make the aggregate from what was collected.

        Parameters
        ----------
        model : dict of str to Tensor
            w, the current global model.
        parts : iterable of (ndarray of int, object)
            Positions in the cohort, and what was collected of these members. Members that failed
            are in no part.
        cohort : Cohort
            The weights q_k.
        parameters : collection of str
            Names of the trained parameters.

        Returns
        -------
        dict of str to Tensor
            The aggregate over those that arrived; the model itself if none with a weight did.
            What none of them has changed is put back by the caller.
        """
        arrived = list(parts)
        if not arrived:
            return model
        members = np.concatenate([members for members, _ in arrived])
        there = np.zeros(len(cohort.clients), dtype=bool)
        there[members] = True
        survivors = cohort.keep(there)
        if not len(survivors.clients):
            return model
        order = torch.from_numpy(np.argsort(members))
        updates = {name: torch.cat([part[name] for _, part in arrived])[order] for name in model}
        return self._aggregate(model, updates, survivors, parameters)

    def coefficients(self, cohort: Cohort) -> np.ndarray | None:
        """Return by what trained parameters are multiplied and added up in the aggregate.

        Parameters
        ----------
        cohort : Cohort
            The weights q_k of those that arrived.

        Returns
        -------
        ndarray of shape (1 + n_members,) or None
            Of w, then of each w_k. None, as here, if the aggregate is no such sum.
        """
        return None

    @abstractmethod
    def _aggregate(self, model, updates, cohort, parameters):
        """Aggregate ``updates``, stacked along a leading axis in the cohort's order."""

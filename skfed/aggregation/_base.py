"""The contract of aggregation rules."""

from abc import ABCMeta, abstractmethod
from collections.abc import Collection, Sequence

from sklearn.base import BaseEstimator

from skfed._nets import Model
from skfed.selection import Cohort


class BaseAggregator(BaseEstimator, metaclass=ABCMeta):
    """Base class of aggregation rules; a subclass implements ``_aggregate`` and keeps no state."""

    _parameter_constraints: dict = {}

    #: Whether clients correct their steps by control variates (SCAFFOLD).
    uses_variates = False

    def aggregate(
        self, model: Model, updates: Sequence[Model], cohort: Cohort, parameters: Collection[str]
    ) -> Model:
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
            The aggregate, in the dtypes of ``model``.

        Raises
        ------
        ValueError
            If a parameter of the rule is out of range.
        """
        self._validate_params()
        return self._aggregate(model, updates, cohort, parameters) if updates else model

    @abstractmethod
    def _aggregate(self, model, updates, cohort, parameters):
        """Aggregate at least one update; the rule's parameters have been checked."""

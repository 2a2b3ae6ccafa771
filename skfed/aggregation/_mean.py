"""The weighted mean of a cohort's models (FedAvg; McMahan et al. 2017)."""

from collections.abc import Sequence

import torch

from skfed._nets import Model
from skfed.aggregation._base import BaseAggregator
from skfed.selection import Cohort


class WeightedMean(BaseAggregator):
    """sum of q_k w_k by the cohort's weights; w + sum of q_k (w_k - w) for an unbiased cohort.

    Buffers are averaged as weights are; integer buffers (a batch normalisation's counter) are
    rounded.
    """

    def _aggregate(self, model, updates, cohort, parameters):
        return weighted_mean(model, updates, cohort)


def weighted_mean(model: Model, updates: Sequence[Model], cohort: Cohort) -> Model:
    """Return the weighted mean of at least one update."""
    # In float64, so that the sum's rounding does not grow with the cohort.
    rest = 1.0 - cohort.weights.sum() if cohort.unbiased else 0.0
    result = {}
    for name, current in model.items():
        total = rest * current.double() if rest else torch.zeros_like(current, dtype=torch.double)
        for weight, update in zip(cohort.weights, updates, strict=True):
            total.add_(update[name].double(), alpha=float(weight))
        if not current.is_floating_point():
            total.round_()
        result[name] = total.to(current.dtype)
    return result

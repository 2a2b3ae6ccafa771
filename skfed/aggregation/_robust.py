"""Rules that a few hostile or broken clients cannot bend.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates, ICML 2018 (median and trimmed mean). Sun, Kairouz, Suresh, McMahan: Can You
Really Backdoor Federated Learning?, 2019 (norm clipping).
"""

from collections.abc import Sequence
from numbers import Real

import torch

from skfed._nets import Model
from skfed.aggregation._base import BaseAggregator
from skfed.aggregation._mean import weighted_mean
from skfed.utils._sklearn import Interval


class CoordinateMedian(BaseAggregator):
    """The median of each coordinate over the cohort (the mean of the middle two if even).

    The cohort's weights play no part: a hostile client could claim to have much data.
    """

    def _aggregate(self, model, updates, cohort, parameters):
        return _trimmed_mean(model, updates, (len(updates) - 1) // 2)


class TrimmedMean(BaseAggregator):
    """The mean of each coordinate without its smallest and largest values.

    The cohort's weights play no part: a hostile client could claim to have much data.

    Parameters
    ----------
    trim : float, default=0.1
        Share of the updates, in [0, 0.5), that is left out at either end, rounded down.
    """

    _parameter_constraints = {"trim": [Interval(Real, 0, 0.5, closed="left")]}

    def __init__(self, trim=0.1):
        self.trim = trim

    def _aggregate(self, model, updates, cohort, parameters):
        return _trimmed_mean(model, updates, int(self.trim * len(updates) + 1e-9))


class NormClipping(BaseAggregator):
    """The cohort's weighted mean, of updates scaled down to a largest L2 norm.

    Parameters
    ----------
    max_norm : float, default=1.0
        Largest norm of w_k - w over all parameters; buffers are neither measured nor scaled.
    """

    _parameter_constraints = {"max_norm": [Interval(Real, 0, None, closed="neither")]}

    def __init__(self, max_norm=1.0):
        self.max_norm = max_norm

    def _aggregate(self, model, updates, cohort, parameters):
        return weighted_mean(model, [self._clip(model, u, parameters) for u in updates], cohort)

    def _clip(self, model: Model, update: Model, parameters) -> Model:
        steps = {name: update[name].double() - model[name].double() for name in parameters}
        norm = torch.stack([step.norm() for step in steps.values()]).norm()
        if norm <= self.max_norm:
            return update
        scale = self.max_norm / norm
        return update | {name: model[name] + scale * step for name, step in steps.items()}


def _trimmed_mean(model: Model, updates: Sequence[Model], n_trimmed: int) -> Model:
    result = {}
    for name, current in model.items():
        values = torch.stack([update[name].double() for update in updates]).sort(dim=0).values
        mean = values[n_trimmed : len(updates) - n_trimmed].mean(dim=0)
        result[name] = (mean if current.is_floating_point() else mean.round()).to(current.dtype)
    return result

"""Rules that are robust to a few malicious or faulty clients.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates, ICML 2018 (median and trimmed mean). Sun, Kairouz, Suresh, McMahan: Can You
Really Backdoor Federated Learning?, 2019 (norm clipping).
"""

from collections.abc import Collection
from numbers import Real

import torch

from skfed.aggregation._base import BaseAggregator
from skfed.aggregation._mean import WeightedMean
from skfed.aggregation._tensors import added, difference, like, real, step_from
from skfed.nets import State, by_member
from skfed.utils._sklearn import Interval


class CoordinateMedian(BaseAggregator):
    """The median of each coordinate over the cohort (the mean of the middle two if even).

    The cohort's weights are not used, since a malicious client could report too many samples. Real
    and imaginary parts of complex buffers are separate coordinates.
    """

    def _aggregate(self, model, updates, cohort, parameters):
        return _trimmed_mean(model, updates, (len(cohort.clients) - 1) // 2)


class TrimmedMean(BaseAggregator):
    """The mean of each coordinate without its smallest and largest values.

    The cohort's weights are not used, since a malicious client could report too many samples.

    Parameters
    ----------
    trim : float, default=0.1
        Share of the updates, in [0, 0.5), that is left out at either end, rounded down.
    """

    _parameter_constraints = {"trim": [Interval(Real, 0, 0.5, closed="left")]}

    def __init__(self, trim=0.1):
        self.trim = trim

    def _aggregate(self, model, updates, cohort, parameters):
        return _trimmed_mean(model, updates, int(self.trim * len(cohort.clients) + 1e-9))


class NormClipping(WeightedMean):
    """The cohort's weighted mean of updates that are scaled down to a maximum L2 norm.

    Parameters
    ----------
    max_norm : float, default=1.0
        Maximum norm of w_k - w over all parameters; buffers are neither measured nor scaled.
    """

    _parameter_constraints = {"max_norm": [Interval(Real, 0, None, closed="neither")]}

    def __init__(self, max_norm=1.0):
        self.max_norm = max_norm

    def collect(self, model, stack, weights, parameters):
        """Return the weighted sum of the clipped models of some members."""
        stack = clipped(model, stack, parameters, self.max_norm)
        return super().collect(model, stack, weights, parameters)


def clipped(state: State, stack: State, parameters: Collection[str], max_norm: float) -> State:
    """Return a stack of states, each at a distance of at most ``max_norm`` from ``state``."""
    steps = {n: step_from(state[n].double(), stack[n].double()) for n in parameters}
    norms = torch.stack([by_member(step).norm(dim=1) for step in steps.values()]).norm(dim=0)
    scales = (max_norm / norms).clamp(max=1.0)  # 1 for a step of norm 0
    result = dict(stack)
    for name, step in steps.items():
        scale = scales.view(-1, *[1] * (step.dim() - 1))
        scaled = (state[name] + step * scale).to(stack[name].dtype)
        result[name] = torch.where(scale == 1, stack[name], scaled)
    return result


def _trimmed_mean(state: State, stack: State, n_trimmed: int) -> State:
    result = {}
    for name, w in state.items():
        # Integers may be too large for float64, in which case only their differences are exact.
        is_integer = not real(w).is_floating_point()
        values = difference(stack[name], w) if is_integer else real(stack[name]).double()
        mean = values.sort(dim=0).values[n_trimmed : len(values) - n_trimmed].mean(dim=0)
        result[name] = added(w, mean) if is_integer else like(mean, w)
    return result

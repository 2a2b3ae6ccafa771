"""The weighted mean of a cohort's models (FedAvg; McMahan et al. 2017)."""

from collections.abc import Iterable

import numpy as np
import torch

from skfed.aggregation._base import BaseAggregator
from skfed.aggregation._tensors import added, difference, like, real
from skfed.nets import State, by_member


class WeightedMean(BaseAggregator):
    """sum of q_k w_k by the cohort's weights; w + sum of q_k (w_k - w) for an unbiased cohort.

    Buffers are averaged by weights that sum to 1, also those of an unbiased cohort: q_k over the
    sum of all q_k. Integer buffers (a batch normalisation's counter) are rounded. What no client
    has changed stays as it is. Models are summed and not kept; sums of stacks add up in float64, so
    that rounding does not grow with the cohort.
    """

    def collect(self, model, stack, weights, parameters):
        """Return the weighted sum of some members' models, for buffers that of their changes."""
        total = {}
        q = _Weights(weights)
        for name, tensor in stack.items():
            # Of buffers the sum of their changes, since large integers have no sum.
            values = real(tensor) if name in parameters else difference(tensor, model[name])
            total[name] = q.sum_of(values)
        return total

    def accumulate(self, parts, members, part):
        """Add up the sums; a subclass with a ``combine`` of its own gets them all."""
        if not parts or type(self).combine is not WeightedMean.combine:
            parts.append((members, part))
            return
        parts[0] = _sum_of_parts([*parts, (members, part)])

    def combine(self, model, parts, cohort, parameters):
        """Make up for the weights of members that failed."""
        members, total = _sum_of_parts(parts)
        there = np.zeros(len(cohort.clients), dtype=bool)
        there[members] = True
        arrived = cohort.weights[there].sum()
        if not total or not (arrived or cohort.unbiased):
            return model
        sums_to_1 = there.all() and not cohort.unbiased
        result = {}
        for name, w in model.items():
            if name in parameters and cohort.unbiased:
                result[name] = like(total[name] + (1.0 - arrived) * real(w), w)
            elif arrived:
                mean = total[name] if sums_to_1 else total[name] / arrived
                result[name] = like(mean, w) if name in parameters else added(w, mean)
            else:
                result[name] = w
        return result

    def coefficients(self, cohort):
        """Return 0 and the weights; 1 less their sum and them, of an unbiased cohort."""
        own = type(self)
        for name in ("collect", "combine", "_aggregate"):
            if getattr(own, name) is not getattr(WeightedMean, name):
                return None  # a subclass makes another sum
        of_model = 1.0 - cohort.weights.sum() if cohort.unbiased else 0.0
        return np.array([of_model, *cohort.weights])

    def _aggregate(self, model, updates, cohort, parameters):
        total = self.collect(model, updates, cohort.weights, parameters)
        return self.combine(model, [(np.arange(len(cohort.clients)), total)], cohort, parameters)


def _sum_of_parts(parts: Iterable[tuple[np.ndarray, State]]) -> tuple[np.ndarray, State]:
    """Return all members of some parts, and the sum of their tensors by name."""
    all_members = [np.zeros(0, dtype=int)]
    total: State = {}
    for members, part in parts:
        all_members.append(members)
        for name, tensor in part.items():
            total[name] = total[name] + tensor if name in total else tensor
    return np.concatenate(all_members), total


class _Weights:
    """The weights of some members, in the dtypes and on the devices of their tensors."""

    def __init__(self, weights: np.ndarray):
        self._weights = weights
        self._tensors: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def sum_of(self, stack: torch.Tensor) -> torch.Tensor:
        """Sum over the leading axis, in float32 or float64 (in float64 it takes 4x as long)."""
        values = by_member(stack.float() if stack.dtype in (torch.half, torch.bfloat16) else stack)
        key = values.dtype, values.device
        if key not in self._tensors:
            # A copy, since what comes to a worker of Ray is read-only.
            self._tensors[key] = torch.tensor(self._weights[None], dtype=key[0], device=key[1])
        return self._tensors[key].mm(values).double().view(stack.shape[1:])

"""The weighted mean of a cohort's models (FedAvg; McMahan et al. 2017)."""

from collections.abc import Sequence

import torch

from skfed.selection import Cohort

Model = dict[str, torch.Tensor]


def aggregate_mean(model: Model, updates: Sequence[Model], cohort: Cohort) -> Model:
    """Return sum of q_k w_k, or w + sum of q_k (w_k - w) for an unbiased cohort.

    Parameters
    ----------
    model : dict of str to Tensor
        w, the current global model.
    updates : sequence of dict of str to Tensor
        w_k, one a member of the cohort, in its order.
    cohort : Cohort
        The weights q_k. An empty cohort keeps the model.

    Returns
    -------
    dict of str to Tensor
        The next global model, in the dtypes of ``model``. Buffers are averaged as weights are;
        integer buffers (a batch normalisation's counter) are rounded.
    """
    if not updates:
        return model
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

"""Rows with weights: the loss of a batch is the sum of w_i l_i over the sum of w_i.

torch's criteria average the losses of rows; here they return each, and these are averaged.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from skorch import NeuralNet, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skfed._federation import Federation
from skfed.utils._checks import naming
from skfed.utils._seeding import torch_seeded
from skfed.utils._sklearn import check_sample_weight

_STEP = "train_step", "train_step_single", "validation_step", "infer", "get_loss"


def row_weights(
    sample_weight, X: np.ndarray, federation: Federation, name: str = "sample_weight"
) -> np.ndarray:
    """Check the weights of rows; return them as fractions of their client's largest.

    A batch is of one client, so that its loss does not depend on their scale.

    Raises
    ------
    ValueError
        If there is not one a row, one is negative or not finite, or all of a client's are 0.
    """
    with naming(name):
        weights = check_sample_weight(
            sample_weight,
            X,
            dtype=np.float64,
            ensure_non_negative=True,
            allow_all_zero_weights=True,
        )
    grouped = weights[federation.order]
    largest = np.maximum.reduceat(grouped, federation.offsets[:-1])
    if not largest.all():
        (client,) = federation.names(np.flatnonzero(largest == 0)[:1])
        raise ValueError(
            f"{name} is zero in all rows of client {client!r}, so it has no loss: leave its "
            "rows out of fit, or give one of them a weight."
        )
    scaled = np.empty_like(weights)
    scaled[federation.order] = grouped / np.repeat(largest, federation.sizes)
    return scaled


def check_gives_row_losses(net: NeuralNet, X: torch.Tensor, y: torch.Tensor) -> None:
    """Check that a net's loss is the mean of losses of rows, by its settings and on a few rows.

    Raises
    ------
    ValueError
        If it is not, so that rows cannot have weights.
    """
    reason = _obstacle(net) or _difference(net, X, y)
    if reason:
        raise ValueError(
            f"sample_weight needs a loss that is the mean of the losses of the rows, but {reason}. "
            "Use one of torch's criteria with reduction='mean', or fit without weights."
        )


def _obstacle(net: NeuralNet) -> str | None:
    base = NeuralNetClassifier if isinstance(net, NeuralNetClassifier) else NeuralNetRegressor
    own = [name for name in _STEP if getattr(type(net), name) is not getattr(base, name)]
    if own:
        return f"estimator overrides {', '.join(own)}"
    if net._criteria != ["criterion"]:
        return "estimator has more than one criterion"
    criterion = net.criterion_
    if not isinstance(criterion, nn.Module) or getattr(criterion, "reduction", None) != "mean":
        return f"the criterion {criterion} has no reduction='mean'"
    if getattr(criterion, "weight", None) is not None:
        return f"the criterion {criterion} has weights of its own: put them into sample_weight"
    if getattr(criterion, "ignore_index", -1) >= 0:
        return f"the criterion {criterion} leaves out rows: give them weight 0"
    return None


def _difference(net: NeuralNet, X: torch.Tensor, y: torch.Tensor) -> str | None:
    with torch_seeded(np.random.default_rng(0), net.device):
        output = net.evaluation_step((X, None))
        mean = net.get_loss(output, y, X=X, training=False)
        ones = torch.ones(len(y), device=y.device)
        try:
            with weighed(net, ones):
                by_row = net.get_loss(output, y, X=X, training=False)
        except ValueError as error:
            return str(error)
    same = torch.allclose(mean, by_row, rtol=1e-3, equal_nan=True)
    return None if same else f"that of the criterion {net.criterion_} is another"


@contextmanager
def weighed(net: NeuralNet, weights: torch.Tensor | None) -> Iterator[None]:
    """Let the net's loss of a batch be the mean by the weights of its rows; None: the plain one."""
    if weights is None:
        yield
        return
    criterion = net.criterion_

    def average(criterion: nn.Module, arguments: tuple, losses: torch.Tensor) -> torch.Tensor:
        if losses.shape[:1] != weights.shape:
            raise ValueError(f"the criterion {criterion} returns no loss of each row")
        return weighted_mean(losses, weights)

    before, criterion.reduction = criterion.reduction, "none"
    hook = criterion.register_forward_hook(average)
    try:
        yield
    finally:
        hook.remove()
        criterion.reduction = before


def weighted_mean(losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Average losses of rows (n_rows, ...) by weights (n_rows,); 0 where these are all 0."""
    rows = losses.flatten(1).mean(1) if losses.dim() > 1 else losses
    return (rows * shares(weights, rows.dtype)).sum()


def shares(weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return weights over their sum along the last axis; 0 where these are all 0."""
    total = weights.sum(-1, keepdim=True)
    return (weights / torch.where(total > 0, total, 1)).to(dtype)

"""The loss of a net on rows, which may have weights, and its outputs.

With weights the loss of a batch is the sum of w_i l_i over the sum of w_i: torch's criteria average
the losses of rows; here they return each, and these are averaged.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn

from skfed.nets._criteria import averages_rows, batch_weight
from skfed.nets._dict_rows import call_module
from skfed.nets._inputs import Samples, batch_size, to_tensors, whole
from skfed.nets._logits import as_inferred
from skfed.nets._own_code import overridden
from skfed.utils._products import PRODUCTS

_EVALUATION_METHODS = "validation_step", "infer", "_set_training"


def evaluate_net(
    net: NeuralNet,
    X: Samples,
    y: np.ndarray,
    weights: torch.Tensor | None = None,
    n_rows: int | None = None,
) -> tuple[float, torch.Tensor]:
    """Return the loss of all rows, by their weights if they have any, and the net's outputs.

    Batches have ``n_rows``; None: as many as those of the net's iterator for validation. Where the
    loss is not known to be a mean over rows, the criterion gets the outputs of all at once.
    """
    size = n_rows or whole(batch_size(net, "iterator_valid"), len(y))
    if weights is None and not averages_rows(net):
        return _evaluate_at_once(net, X, y, size)
    step = net.validation_step if overridden(net, _EVALUATION_METHODS) else _plain_step(net, size)
    loss, total, outputs = 0.0, 0.0, []
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        batch = to_tensors(net, X[rows], y[rows])
        own = None if weights is None else weights[rows]
        with weighed(net, own):
            found = step(batch)
        share = batch_weight(net.criterion_, batch[1]) if own is None else own.sum().item()
        if share:  # of a batch in which no row counts the loss is NaN
            loss, total = loss + found["loss"].item() * share, total + share
        output = found["y_pred"]
        outputs.append(output[0] if isinstance(output, tuple) else output)
    mean = loss / total if total else (np.nan if weights is None else 0.0)
    return mean, torch.cat(outputs)


def _evaluate_at_once(
    net: NeuralNet, X: Samples, y: np.ndarray, n_rows: int
) -> tuple[float, torch.Tensor]:
    """Return the loss of all rows at once, and the outputs, of which batches have ``n_rows``."""
    if overridden(net, _EVALUATION_METHODS):
        found = net.validation_step(to_tensors(net, X[:], y))
        loss, output = found["loss"], found["y_pred"]
    else:
        net._set_training(False)
        (target,) = to_tensors(net, y)
        with torch.no_grad():
            output = as_inferred(net, _output_of_all(net, X, n_rows))
            # Only code of the user's looks at X.
            rows = to_tensors(net, X[:])[0] if overridden(net, ["get_loss"]) else None
            loss = net.get_loss(output, target, X=rows, training=False)
    return loss.item(), output[0] if isinstance(output, tuple) else output


def _output_of_all(net: NeuralNet, X: Samples, n_rows: int) -> Any:
    """Return the module's output for all rows, in batches if it is one tensor."""
    parts = [slice(start, start + n_rows) for start in range(0, len(X), n_rows)]
    with PRODUCTS.evaluating(net.module_, n_rows):
        first = call_module(net.module_, *to_tensors(net, X[parts[0]]))
        if len(parts) == 1:
            return first
        if not torch.is_tensor(first):  # what else it has may not be by row
            return call_module(net.module_, *to_tensors(net, X[:]))
        others = [call_module(net.module_, *to_tensors(net, X[part])) for part in parts[1:]]
        return torch.cat([first, *others])


def _plain_step(net: NeuralNet, n_rows: int) -> Callable[[Sequence[torch.Tensor]], dict[str, Any]]:
    """Return skorch's own validation_step, without what is the same for all batches."""
    net._set_training(False)
    evaluating = PRODUCTS.evaluating(net.module_, n_rows)

    @torch.no_grad()
    def step(batch: Sequence[torch.Tensor]) -> dict[str, Any]:
        X, y = batch
        with evaluating:
            output = as_inferred(net, call_module(net.module_, X))
        return {"loss": net.get_loss(output, y, X=X, training=False), "y_pred": output}

    return step


@contextmanager
def weighed(net: NeuralNet, weights: torch.Tensor | None) -> Iterator[None]:
    """Make the net's loss of a batch the mean by the weights of its rows; None: the plain mean."""
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
    return (rows * normalized(weights.to(rows.device), rows.dtype)).sum()


def normalized(weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return weights over their sum along the last axis; 0 where these are all 0."""
    total = weights.sum(-1, keepdim=True)
    return (weights / torch.where(total > 0, total, 1)).to(dtype)

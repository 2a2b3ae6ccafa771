"""How criteria average rows: F_k is the criterion on all rows of a client, however they are cut."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn

from skfed.nets._own_code import STEP_METHODS, overridden

#: Whose mean is over rows alike, whatever their targets.
_ROW_MEANS = (
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.HingeEmbeddingLoss,
    nn.HuberLoss,
    nn.KLDivLoss,
    nn.L1Loss,
    nn.MSELoss,
    nn.MultiLabelMarginLoss,
    nn.MultiLabelSoftMarginLoss,
    nn.MultiMarginLoss,
    nn.PoissonNLLLoss,
    nn.SmoothL1Loss,
    nn.SoftMarginLoss,
)
_BY_CLASS = nn.CrossEntropyLoss, nn.NLLLoss  # whose rows have weights, or are left out


class StepMeans:
    """The training losses of some clients: the means of those of their steps.

    Where rows count differently, a step has the weight of its rows; where the criterion is a sum,
    losses are scaled to all rows of the client. Else all steps count alike, also with a criterion
    that is not one of torch's, as the weights of its rows are not known.

    Parameters
    ----------
    net : NeuralNet
        Whose criterion gives the loss of a step.
    n_rows : sequence of int
        D_k, the number of rows of each client.

    Attributes
    ----------
    alike : bool
        Whether all steps count alike.
    """

    def __init__(self, net: NeuralNet, n_rows: Sequence[int]):
        self.criterion, self.n_rows = getattr(net, "criterion_", None), torch.tensor(n_rows)
        self.is_sum = _has_torch_loss(net) and net.criterion_.reduction == "sum"
        self.alike = not self.is_sum and not (averages_rows(net) and weighs_rows(self.criterion))
        self.numerators, self.totals = torch.zeros(2, len(n_rows), dtype=torch.double)

    def add(self, losses: torch.Tensor, y: torch.Tensor, sizes: torch.Tensor | None = None) -> None:
        """Add steps of the first clients.

        Parameters
        ----------
        losses : Tensor of shape (n_steps, n_clients)
            NaN where no row of a step counts.
        y : Tensor of shape (n_steps, n_clients, batch_size, ...)
            Targets of the rows.
        sizes : Tensor of shape (n_steps, n_clients), default=None
            How many of the rows a step has; None: all.
        """
        n_clients, losses = losses.shape[1], losses.double().cpu()
        totals = torch.ones_like(losses)
        if self.is_sum:
            rows = torch.full(losses.shape, y.shape[2]) if sizes is None else sizes.cpu()
            totals = rows.double() / self.n_rows[:n_clients]
        elif not self.alike:
            totals = batch_weights(self.criterion, y, 2, sizes).cpu()
            losses = torch.where(totals > 0, losses * totals, 0.0)
        self.numerators[:n_clients] += losses.sum(0)
        self.totals[:n_clients] += totals.sum(0)

    def result(self) -> np.ndarray:
        """Return the loss of each client; NaN where no row of any step counts."""
        return (self.numerators / self.totals).numpy()


def averages_rows(net: NeuralNet) -> bool:
    """Tell whether a net's loss is known to be a mean of losses of rows, by weights of classes.

    Of criteria that are not torch's, and of nets with a get_loss of their own, it is not.
    """
    return _has_torch_loss(net) and net.criterion_.reduction in ("mean", "batchmean")


def is_cross_entropy(net: NeuralNet) -> bool:
    """Tell whether a net's loss is the mean of -log p of the labels, all rows alike."""
    is_plain = averages_rows(net) and not overridden(net, STEP_METHODS)
    criterion = net.criterion_ if is_plain else None
    if type(criterion) is nn.BCEWithLogitsLoss:
        return criterion.weight is None and criterion.pos_weight is None
    smoothing = getattr(criterion, "label_smoothing", 0.0)
    return type(criterion) in _BY_CLASS and not weighs_rows(criterion) and smoothing == 0.0


def _has_torch_loss(net: NeuralNet) -> bool:
    own_loss = overridden(net, ["get_loss", "validation_step"]) or net._criteria != ["criterion"]
    return not own_loss and type(getattr(net, "criterion_", None)) in (*_ROW_MEANS, *_BY_CLASS)


def tells_rows(net: NeuralNet) -> bool:
    """Tell whether a net's criterion returns the loss of each row, where it is asked to."""
    return _has_torch_loss(net)


class RowSquares:
    """Mean squared losses of the rows of local steps, of some clients.

    Parameters
    ----------
    n_clients : int
        Their number.
    """

    def __init__(self, n_clients: int):
        self._sums, self._counts = torch.zeros(2, n_clients, dtype=torch.double)

    def add(self, losses: torch.Tensor, used: torch.Tensor) -> None:
        """Add the losses (n_clients, n_rows) of a step of the first clients; ``used`` is a mask."""
        squares = torch.where(used, losses.double().square(), 0.0)
        self._sums[: len(losses)] += squares.sum(1).cpu()
        self._counts[: len(losses)] += used.double().sum(1).cpu()

    def root(self) -> np.ndarray:
        """Return the root of the mean of each client."""
        return (self._sums / self._counts).sqrt().numpy()


@contextmanager
def rows_recorded(
    net: NeuralNet, squares: RowSquares | None, weights: torch.Tensor | None
) -> Iterator[None]:
    """Context manager in which the losses of the rows of one client's step are added.

    They are those of the criterion, without the weights (n_rows,) that rows are given, but for
    those of weight 0, which do not count; of rows that have several values their mean.
    """
    if squares is None:
        yield
        return

    def record(criterion: Any, arguments: tuple, loss: torch.Tensor) -> None:
        rows, (_, y) = loss.detach(), arguments
        if criterion.reduction != "none":
            before, criterion.reduction = criterion.reduction, "none"
            with torch.no_grad():
                rows = criterion.forward(*arguments)
            criterion.reduction = before
        rows = rows.flatten(1).mean(1) if rows.dim() > 1 else rows
        used = torch.ones_like(rows, dtype=torch.bool) if weights is None else weights > 0
        if weighs_rows(criterion) and y.shape == rows.shape:
            used = used & (y != criterion.ignore_index)
        squares.add(rows[None], used[None])

    hook = net.criterion_.register_forward_hook(record, prepend=True)
    try:
        yield
    finally:
        hook.remove()


def weighs_rows(criterion: Any) -> bool:
    """Tell whether rows may count differently in the mean of one of torch's criteria, or not."""
    if type(criterion) not in _BY_CLASS or criterion.reduction != "mean":
        return False
    return criterion.weight is not None or criterion.ignore_index >= 0


def batch_weight(criterion: Any, y: torch.Tensor) -> float:
    """Return the weight of the rows of a batch in a mean over more rows."""
    return batch_weights(criterion, y, 0).item() if weighs_rows(criterion) else float(len(y))


def batch_weights(
    criterion: Any, y: torch.Tensor, n_axes: int, sizes: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sum of the weights of rows in each batch; where it is 0, the loss is NaN.

    Parameters
    ----------
    criterion : Module
        One that ``weighs_rows``.
    y : Tensor of shape (..., batch_size, *target_shape)
        Targets of the batches, which are along the first ``n_axes`` axes.
    n_axes : int
        Their number.
    sizes : Tensor of shape (...), default=None
        How many of the rows a batch has; None: all.
    """
    used = torch.ones(y.shape[: n_axes + 1], dtype=torch.bool, device=y.device)
    if sizes is not None:
        used = torch.arange(y.shape[n_axes], device=y.device) < sizes.unsqueeze(-1)
    if y.is_floating_point():  # of targets that are probabilities it is 1 / n
        return used.double().sum(-1)
    used = used.view(used.shape + (1,) * (y.dim() - used.dim())) & (y != criterion.ignore_index)
    weights = used.double()
    if criterion.weight is not None:
        by_class = criterion.weight.to(y.device, torch.double)  # y may not have been moved
        weights = weights * by_class[torch.where(used, y, 0)]
    return weights.flatten(n_axes).sum(-1)


def clear_idle(
    criterion: nn.Module,
    gradients: Iterable[torch.Tensor],
    y: torch.Tensor,
    sizes: torch.Tensor | None,
) -> None:
    """Set gradients (n_clients, ...) of clients to 0, in place, where no row of a step counts.

    They are NaN by torch.func, and also by autograd where the weights are 0.
    """
    if weighs_rows(criterion):
        idle = batch_weights(criterion, y, 1, sizes) == 0
        for gradient in gradients:
            # Not by index: to find which are idle a CUDA graph would have to wait for the GPU.
            gradient.masked_fill_(idle.view(-1, *[1] * (gradient.dim() - 1)), 0)


@contextmanager
def without_idle_steps(criterion: Any) -> Iterator[None]:
    """Context manager in which the loss of a batch in which no row counts has gradient 0."""
    if not weighs_rows(criterion):
        yield
        return

    def loss(criterion: nn.Module, arguments: tuple, loss: torch.Tensor) -> torch.Tensor:
        output, y = arguments
        counts = batch_weights(criterion, y, 0) > 0
        return loss if counts else output.sum() * 0.0

    hook = criterion.register_forward_hook(loss)
    try:
        yield
    finally:
        hook.remove()

"""Stacks of linear layers and elementwise functions, with their gradient written out.

Weights are kept as (client, out, in) and activations as (client, features, rows): so every
product reads and writes memory in order, and is the fastest of the layouts measured.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from skorch import NeuralNetClassifier
from torch.nn import functional as F

from skfed._nets import Model

#: What a net's loss makes of logits (client, class, row), targets and batch sizes: the loss of
#: each client, and its gradient by the logits.
LogitLoss = Callable[
    [NeuralNetClassifier, torch.Tensor, torch.Tensor, torch.Tensor | None],
    tuple[torch.Tensor, torch.Tensor],
]
Tape = list[tuple["Linear | Callable", tuple[torch.Tensor, ...]]]


@dataclass(frozen=True)
class Linear:
    """A linear layer, by the names of its parameters in the model."""

    weight: str
    bias: str | None


@dataclass(frozen=True)
class LinearStack:
    """The losses and gradients of some clients' models, all at once.

    Parameters
    ----------
    layers : sequence of Linear or callable
        From the rows of X to logits; a callable acts on each element.
    loss : callable
        See ``LogitLoss``.
    """

    layers: Sequence[Linear | Callable[[torch.Tensor], torch.Tensor]]
    loss: LogitLoss

    #: Bytes of models and rows that are worth stacking on a CPU: what stays near a core.
    cache_bytes: ClassVar[int] = 5 * 2**20

    def gradients(
        self,
        net: NeuralNetClassifier,
        params: Model,
        buffers: Model,
        X: torch.Tensor,
        y: torch.Tensor,
        sizes: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Model]:
        """Return each client's mean loss over its rows, and the gradients of its parameters.

        Parameters
        ----------
        net : NeuralNetClassifier
            Whose criterion it is.
        params : dict of str to Tensor of shape (n_clients, ...)
            The clients' parameters.
        buffers : dict of str to Tensor
            Empty: such a stack has none.
        X : Tensor of shape (n_clients, batch_size, ...)
            Rows of each client.
        y : Tensor of shape (n_clients, batch_size)
            Targets.
        sizes : Tensor of shape (n_clients,) or None
            How many of the rows are meant; None: all.
        """
        logits, tape = self._forward(params, X)
        losses, slope = self.loss(net, logits, y, sizes)
        grads = {}
        for layer, g, h in self._back(params, tape, slope):
            grads[layer.weight] = torch.bmm(g, h.mT)
            if layer.bias is not None:
                grads[layer.bias] = g.sum(2)
        return losses, grads

    def descend(
        self,
        net: NeuralNetClassifier,
        params: Model,
        X: torch.Tensor,
        y: torch.Tensor,
        sizes: torch.Tensor | None,
        rate: float,
    ) -> torch.Tensor:
        """Take a step of plain SGD, each product written into the weights; return the losses."""
        logits, tape = self._forward(params, X)
        losses, slope = self.loss(net, logits, y, sizes)
        for layer, g, h in self._back(params, tape, slope):
            params[layer.weight].baddbmm_(g, h.mT, alpha=-rate)
            if layer.bias is not None:
                params[layer.bias].sub_(g.sum(2), alpha=rate)
        return losses

    def _forward(self, params: Model, X: torch.Tensor) -> tuple[torch.Tensor, Tape]:
        """Return logits, and what each layer needs for the way back."""
        h = X.flatten(2).mT
        tape: Tape = []
        for layer in self.layers:
            if isinstance(layer, Linear):
                tape.append((layer, (h,)))
                bias = None if layer.bias is None else params[layer.bias].unsqueeze(2)
                h = _product(params[layer.weight], h, bias)
            elif layer is F.relu:
                h = h.relu()
                tape.append((layer, (h,)))
            else:
                with torch.enable_grad():
                    z = h.detach().requires_grad_()
                    h = layer(z)
                tape.append((layer, (z, h)))
                h = h.detach()
        return h, tape

    def _back(
        self, params: Model, tape: Tape, slope: torch.Tensor
    ) -> Iterator[tuple[Linear, torch.Tensor, torch.Tensor]]:
        """Yield each linear layer with the slope of its output and its input, the last first.

        Nothing more is read of a layer once it has been yielded, so its weights may change.
        """
        first = next(i for i, (layer, _) in enumerate(tape) if isinstance(layer, Linear))
        for i in range(len(tape) - 1, first - 1, -1):
            layer, kept = tape[i]
            if isinstance(layer, Linear):
                below = _product(params[layer.weight].mT, slope) if i > first else slope
                yield layer, slope, kept[0]
                slope = below
            elif layer is F.relu:
                slope = torch.ops.aten.threshold_backward(slope, kept[0], 0)
            else:
                (slope,) = torch.autograd.grad(kept[1], kept[0], slope)


def _product(a: torch.Tensor, b: torch.Tensor, plus: torch.Tensor | None = None) -> torch.Tensor:
    """Return a @ b + plus, laid out so that the axis that fills vector registers is contiguous."""
    if _waste(b.shape[2]) > _waste(a.shape[1]):
        return _product_in_order(b.mT, a.mT, None if plus is None else plus.mT).mT
    return _product_in_order(a, b, plus)


def _product_in_order(a: torch.Tensor, b: torch.Tensor, plus: torch.Tensor | None) -> torch.Tensor:
    return torch.bmm(a, b) if plus is None else torch.baddbmm(plus, a, b)


def _waste(length: int) -> float:
    """Return the share of a vector register's 16 floats that an axis leaves empty."""
    return -length % 16 / length


def cross_entropy(
    net: NeuralNetClassifier, logits: torch.Tensor, y: torch.Tensor, sizes: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax cross-entropy, averaged over each client's rows (a ``LogitLoss``)."""
    share = _shares(y, sizes, logits.dtype)
    slope = torch.log_softmax(logits, 1)
    index = y.unsqueeze(1)
    losses = -(slope.gather(1, index) * share).sum((1, 2))
    slope.exp_().scatter_add_(1, index, slope.new_full((), -1.0).expand(index.shape))
    return losses, slope.mul_(share)


def _shares(
    y: torch.Tensor, sizes: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor | float:
    """Return each row's share in its client's mean, to be multiplied with (client, class, row)."""
    if sizes is None:
        return 1 / y.shape[1]
    meant = torch.arange(y.shape[1], device=y.device) < sizes.unsqueeze(1)
    return (meant.to(dtype) / sizes.unsqueeze(1)).unsqueeze(1)


@dataclass(frozen=True)
class CriterionLoss:
    """Any criterion, through the net's own get_loss; ``head`` is the module's last function.

    Clients with as many rows are one batch: a criterion may do more than average its rows.
    """

    head: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __call__(
        self,
        net: NeuralNetClassifier,
        logits: torch.Tensor,
        y: torch.Tensor,
        sizes: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return losses and slopes (a ``LogitLoss``)."""

        def loss(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            output = z if self.head is None else self.head(z)
            return net.get_loss(output, target, X=None, training=True)

        batched = torch.func.vmap(torch.func.grad_and_value(loss))
        if sizes is None:
            slopes, losses = batched(logits.mT, y)
            return losses, slopes.mT
        losses, slope = logits.new_empty(len(y)), torch.zeros_like(logits)
        for size in sizes.unique().tolist():
            who = (sizes == size).nonzero().flatten()
            slopes, losses[who] = batched(logits[who, :, :size].mT, y[who, :size])
            slope[who, :, :size] = slopes.mT
        return losses, slope

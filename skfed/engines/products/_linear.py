"""Linear layers and elementwise functions, with their gradient written out.

Weights are kept as (client, out, in) and activations as (client, features, rows): so every
product reads and writes memory in order, and is the fastest of the layouts measured.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from skorch import NeuralNet
from torch.nn import functional as F

from skfed.engines.products._targets import Target, one_hot_targets, plain_targets
from skfed.nets import RowSquares, State, as_inferred, clear_idle, weighed
from skfed.utils._products import PRODUCTS

# Overloads, since it takes time to choose one by a name that has several.
_threshold_backward = torch.ops.aten.threshold_backward.default
_log_softmax_backward = torch.ops.aten._log_softmax_backward_data.default


class LogitLoss(Protocol):
    """A net's loss as a function of logits (client, class, row) and targets."""

    #: Whether the net is called, which is then to be in training mode.
    runs_net: ClassVar[bool]

    def targets(self, steps: Target, n_outputs: int, dtype: torch.dtype) -> Iterator[Any]:
        """Yield the targets of each step, given those of all with a leading axis."""

    def __call__(
        self, net: NeuralNet, logits: torch.Tensor, target: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each client, and its gradient by the logits."""


@dataclass(frozen=True)
class Linear:
    """A linear layer, by the names of its parameters in the module."""

    weight: str
    bias: str | None

    @property
    def names(self) -> list[str]:
        """The names of its parameters."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]


@dataclass(frozen=True)
class WithBuffer:
    """A function of the activations and a buffer with one value a feature."""

    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    buffer: str  # its name in the module


#: From the rows of X to the outputs; a callable acts on each element.
Layers = Sequence[Linear | WithBuffer | Callable[[torch.Tensor], torch.Tensor]]


@dataclass(frozen=True)
class LinearLayers:
    """A module that is a sequence of linear layers and elementwise functions.

    Parameters
    ----------
    layers : Layers
        From the rows of X to logits.
    loss : LogitLoss
        The criterion, and a function before it.
    """

    layers: Layers
    loss: LogitLoss

    #: Bytes of models and rows that are worth stacking on a CPU: what fits a core's cache.
    cache_bytes: ClassVar[int] = 8 * 2**20

    def bind(self, net: NeuralNet, params: State, buffers: State) -> "BoundLayers":
        """Return the layers with the parameters and buffers of some clients, for training."""
        if self.loss.runs_net:
            net._set_training(True)
        layers = [_bound(layer, params, buffers) for layer in self.layers]
        return BoundLayers(self.loss, net, layers)


class BoundLinear:
    """A linear layer of some clients."""

    def __init__(self, layer: Linear, params: State):
        self.layer = layer
        self.bias = None if layer.bias is None else params[layer.bias]
        self.products = PRODUCTS.of_layer(params[layer.weight], self.bias)

    def descend(self, slope: torch.Tensor, h_t: torch.Tensor, rate: float) -> None:
        """Take a step of plain SGD."""
        self.products.descend(slope, h_t, rate)
        if self.bias is not None:
            self.bias.sub_(slope.sum(2), alpha=rate)


class BoundLayers:
    """The losses and gradients of some clients' models, all at once.

    Parameters
    ----------
    loss : LogitLoss
        The criterion, and a function before it.
    net : NeuralNet
        Its criterion is used.
    layers : sequence of BoundLinear or callable
        With the clients' parameters and buffers.
    """

    def __init__(self, loss: LogitLoss, net: NeuralNet, layers: Sequence[Any]):
        self.loss, self.net, self.layers = loss, net, layers
        linear = [layer for layer in self.layers if isinstance(layer, BoundLinear)]
        self.first = self.layers.index(linear[0])
        self.last_weight = linear[-1].products.weight

    def targets(self, steps: Target) -> Iterator[Any]:
        """Yield what ``gradients`` and ``descend`` need of each step.

        ``steps`` has the targets of all, with a leading axis.
        """
        n_outputs, dtype = self.last_weight.shape[1], self.last_weight.dtype
        return self.loss.targets(steps, n_outputs, dtype)

    def gradients(self, X: torch.Tensor, target: Any) -> tuple[torch.Tensor, State]:
        """Return each client's mean loss over its rows, and the gradients of its parameters.

        ``X`` has shape (n_clients, batch_size, ...). Gradients are valid until the next call.
        """
        losses, backwards = self._pass(X, target)
        grads = {}
        for bound, slope, h_t in backwards:
            grads[bound.layer.weight] = bound.products.gradient(slope, h_t)
            if bound.layer.bias is not None:
                grads[bound.layer.bias] = slope.sum(2)
        return losses, grads

    def descend(self, X: torch.Tensor, target: Any, rate: float | torch.Tensor) -> torch.Tensor:
        """Take a step of plain SGD in place; return the losses.

        The rate may be a tensor, since a CUDA graph would always take the same number.
        """
        if isinstance(rate, torch.Tensor):
            losses, backwards = self._pass(X, target, rate)
            rate = 1.0
        else:
            losses, backwards = self._pass(X, target)
        for bound, slope, h_t in backwards:
            bound.descend(slope, h_t, rate)
        return losses

    def _pass(
        self, X: torch.Tensor, target: Any, scale: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Iterator[tuple[BoundLinear, torch.Tensor, torch.Tensor]]]:
        """Return the losses, and each linear layer with its output's slope and its input.

        The last layer comes first; a layer is not read after it was yielded, so that its weights
        may change then.
        """
        tape: list[tuple[torch.Tensor, ...]] = []  # what the gradient of each layer needs
        h_t = X.flatten(2) if X.dim() > 3 else X
        h = h_t.mT
        for i, layer in enumerate(self.layers):
            if isinstance(layer, BoundLinear):
                tape.append((h_t,))
                h = layer.products.output(h, h_t)
            elif i < self.first:  # no weight before it needs a gradient
                tape.append(())
                h = layer(h)
            else:
                h, kept = _activate(layer, h)
                tape.append(kept)
            h_t = h.mT
        losses, slope = self.loss(self.net, h, target)
        return losses, self._back(tape, slope if scale is None else slope * scale)

    def _back(
        self, tape: list[tuple[torch.Tensor, ...]], slope: torch.Tensor
    ) -> Iterator[tuple[BoundLinear, torch.Tensor, torch.Tensor]]:
        for i in range(len(tape) - 1, self.first - 1, -1):
            layer, kept = self.layers[i], tape[i]
            if isinstance(layer, BoundLinear):
                below = layer.products.backward(slope, kept[0]) if i > self.first else slope
                yield layer, slope, kept[0]
                slope = below
            elif layer is F.relu:
                slope = _threshold_backward(slope, kept[0], 0)
            else:
                (slope,) = torch.autograd.grad(kept[1], kept[0], slope)


def _bound(layer: Any, params: State, buffers: State) -> Any:
    """Return a layer with the tensors of some clients, for activations (client, in, row)."""
    if isinstance(layer, Linear):
        return BoundLinear(layer, params)
    if isinstance(layer, WithBuffer):
        column = buffers[layer.buffer].unsqueeze(2)
        return lambda h: layer.function(h, column)
    return layer


def _activate(layer: Any, h: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return the output of an elementwise layer, and what its gradient needs."""
    if layer is F.relu:
        h = h.relu()
        return h, (h,)
    with torch.enable_grad():
        z = h.detach().requires_grad_()
        output = layer(z)
    return output.detach(), (z, output)


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax cross-entropy, averaged over each client's rows (a ``LogitLoss``)."""

    runs_net: ClassVar[bool] = False

    def targets(self, steps: Target, n_outputs: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
        """Yield the gradient of each client's loss by log p, which does not depend on p."""
        return one_hot_targets(steps, n_outputs, dtype)

    def __call__(
        self, net: NeuralNet, logits: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return losses and slopes."""
        log_p = torch.log_softmax(logits, 1)
        slope = _log_softmax_backward(target, log_p, 1, log_p.dtype)
        return (log_p * target).sum((1, 2)), slope


@dataclass(frozen=True)
class RecordedCrossEntropy(CrossEntropy):
    """Cross-entropy that records the losses of rows."""

    squares: RowSquares

    def __call__(
        self, net: NeuralNet, logits: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return losses and slopes."""
        # The target has minus the row's share in the mean.
        log_p, shares = torch.log_softmax(logits, 1), -target.sum(1)
        losses = (log_p * target).sum(1) / torch.where(shares > 0, shares, 1.0)
        self.squares.add(losses, shares > 0)
        return super().__call__(net, logits, target)


@dataclass(frozen=True)
class CriterionLoss:
    """Any criterion, through the net's own get_loss; ``head`` is the module's last function.

    Clients of equal batch sizes are computed together: a criterion may do more than average rows.
    """

    head: Callable[[torch.Tensor], torch.Tensor] | None = None

    runs_net: ClassVar[bool] = True

    def targets(self, steps: Target, n_outputs: int, dtype: torch.dtype) -> Iterator[Target]:
        """Yield the targets of each step."""
        return plain_targets(steps)

    def __call__(
        self, net: NeuralNet, logits: torch.Tensor, target: Target
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return losses and slopes (a ``LogitLoss``)."""
        losses, slopes = self._of_target(net, logits, target)
        clear_idle(net.criterion_, [slopes], target.y, target.sizes)
        return losses, slopes

    def _of_target(
        self, net: NeuralNet, logits: torch.Tensor, target: Target
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y, sizes, weights = target

        def loss(
            z: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | None = None
        ) -> torch.Tensor:
            output = as_inferred(net, z if self.head is None else self.head(z))
            with weighed(net, weights):
                return net.get_loss(output, y, X=None, training=True)

        batched = torch.func.vmap(torch.func.grad_and_value(loss))
        if weights is not None:  # which are 0 beyond a client's rows
            slopes, losses = batched(logits.mT, y, weights)
            return losses, slopes.mT
        if sizes is None:
            slopes, losses = batched(logits.mT, y)
            return losses, slopes.mT
        losses, slope = logits.new_empty(len(y)), torch.zeros_like(logits)
        for size in sizes.unique().tolist():
            members = (sizes == size).nonzero().flatten()
            slopes, losses[members] = batched(logits[members, :, :size].mT, y[members, :size])
            slope[members, :, :size] = slopes.mT
        return losses, slope

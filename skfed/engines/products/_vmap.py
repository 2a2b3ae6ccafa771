"""Any module that torch.func can batch: the gradients of many clients at once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from skorch import NeuralNet

from skfed.engines.products._recurrent import StackedRecurrence
from skfed.engines.products._targets import Target, plain_targets
from skfed.nets import State, as_inferred, by_array, clear_idle, weighed

Rows = torch.Tensor | dict[str, torch.Tensor]  # X of some clients


@dataclass(frozen=True)
class BatchedModule:
    """A module that torch.func batches.

    Parameters
    ----------
    ignored : int, default=None
        The criterion's ignore_index: the target of rows beyond a client's batch. None where the
        criterion has none, or rows influence each other: then only clients of equal batch sizes are
        computed together.
    by_autograd : bool, default=False
        Whether autograd differentiates the batched losses, for modules with recurrent layers:
        ``RecurrentLayer`` has gradients for autograd alone. Else torch.func differentiates the loss
        of each client, which is faster for linear layers: their gradients are contiguous.
    """

    ignored: int | None = None
    by_autograd: bool = False

    #: Bytes of models and rows that are worth stacking on a CPU: more than a core's cache holds,
    #: since much of the cost of a step does not depend on the number of clients.
    cache_bytes: ClassVar[int] = 32 * 2**20

    def bind(self, net: NeuralNet, params: State, buffers: State) -> "BoundModule":
        """Return the module with the parameters and buffers of some clients, for training."""
        net._set_training(True)
        return BoundModule(self, net, params, buffers)


@dataclass(frozen=True)
class BoundModule:
    """The losses and gradients of some clients, through torch.func.

    Parameters
    ----------
    method : BatchedModule
        How they are computed.
    net : NeuralNet
        Its module and criterion are used.
    params, buffers : dict of str to Tensor of shape (n_clients, ...)
        The clients' parameters and buffers.
    """

    method: BatchedModule
    net: NeuralNet
    params: State
    buffers: State

    def targets(self, steps: Target) -> Iterator[Target]:
        """Yield what ``gradients`` needs of each step; see ``BoundLayers.targets``."""
        return plain_targets(steps)

    def gradients(self, X: Rows, target: Target) -> tuple[torch.Tensor, State]:
        """Return each client's loss and gradients, and update the buffers.

        See ``BoundLayers.gradients``.
        """
        losses, grads = self._of_target(X, target)
        clear_idle(self.net.criterion_, grads.values(), target.y, target.sizes)
        return losses, grads

    def _of_target(self, X: Rows, target: Target) -> tuple[torch.Tensor, State]:
        y, sizes, weights = target
        if sizes is None:
            return self._of_equal_sizes(self.params, self.buffers, X, y, weights)
        if self.method.ignored is not None:
            beyond = torch.arange(y.shape[1], device=y.device) >= sizes.unsqueeze(1)
            y = y.masked_fill(beyond, self.method.ignored)
            return self._of_equal_sizes(self.params, self.buffers, X, y, weights)
        losses = next(iter(self.params.values())).new_empty(len(y))
        grads = {name: torch.empty_like(tensor) for name, tensor in self.params.items()}
        for size in sizes.unique().tolist():
            members = (sizes == size).nonzero().flatten()
            buffers = {name: tensor[members] for name, tensor in self.buffers.items()}
            params = {name: tensor[members] for name, tensor in self.params.items()}
            own = None if weights is None else weights[members, :size]
            losses[members], slopes = self._of_equal_sizes(
                params, buffers, _rows_of(X, members, size), y[members, :size], own
            )
            for name, slope in slopes.items():
                grads[name][members] = slope
            for name, tensor in buffers.items():
                self.buffers[name][members] = tensor
        return losses, grads

    def _of_equal_sizes(
        self,
        params: State,
        buffers: State,
        X: Rows,
        y: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> tuple[torch.Tensor, State]:
        def loss(params, buffers, X, y, weights=None):
            buffers = {name: tensor.clone() for name, tensor in buffers.items()}
            given = ((), X) if isinstance(X, dict) else ((X,),)
            output = torch.func.functional_call(self.net.module_, {**params, **buffers}, *given)
            output = as_inferred(self.net, output)
            with weighed(self.net, weights):
                return self.net.get_loss(output, y, X=X, training=True), buffers

        arguments = (buffers, X, y) if weights is None else (buffers, X, y, weights)
        differentiate = _by_autograd if self.method.by_autograd else _by_client
        losses, grads, updated = differentiate(loss, params, *arguments)
        for name, tensor in updated.items():
            buffers[name].copy_(tensor)
        # As .backward() gives them: fused optimizers read memory in order, whatever the strides.
        return losses, {name: grad.contiguous() for name, grad in grads.items()}


def _rows_of(X: Rows, members: torch.Tensor, size: int) -> Rows:
    """Return the first rows of some members."""
    return by_array(lambda one: one[members, :size], X)


Loss = Callable[..., tuple[torch.Tensor, State]]


def _by_client(loss: Loss, params: State, *arguments: Rows) -> tuple[torch.Tensor, State, State]:
    """Return each client's loss, gradients, and what else ``loss`` returns."""
    step = torch.func.grad_and_value(loss, has_aux=True)
    grads, (losses, others) = torch.func.vmap(step, randomness="different")(params, *arguments)
    return losses, grads, others


def _by_autograd(loss: Loss, params: State, *arguments: Rows) -> tuple[torch.Tensor, State, State]:
    """Return the same as ``_by_client``."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    with torch.enable_grad(), StackedRecurrence():
        losses, others = torch.func.vmap(loss, randomness="different")(leaves, *arguments)
        total = losses.sum()  # no client's loss depends on another's parameters
    grads = torch.autograd.grad(total, [*leaves.values()])
    return losses.detach(), dict(zip(leaves, grads, strict=True)), others

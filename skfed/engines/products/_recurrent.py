"""Layers ``nn.GRU`` and ``nn.RNN`` of many clients at once, inside ``torch.func.vmap``.

torch.func has no batching rule for them. Here each is applied to the stacks of all clients. The
loop trains ``nn.LSTM``: on a CPU it takes no longer, since torch computes a layer at once.
"""

from collections.abc import Sequence

import torch
from torch.overrides import TorchFunctionMode

from skfed.engines.products._recurrent_layer import CELLS, Cell, RecurrentLayer


class StackedRecurrence(TorchFunctionMode):
    """Computes the recurrent layers of a module that ``torch.func.vmap`` runs.

    Packed sequences and dropout between layers are left to torch, which cannot batch them.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.data_ptr and torch._C._functorch.is_batchedtensor(args[0]):
            # It has no address. nn.RNNBase asks for those of weights before it lays them out for
            # cuDNN, and leaves weights that share one as they are.
            return 0
        if function not in CELLS or kwargs or not _is_plain(*args):
            return function(*args, **(kwargs or {}))
        X, h, weights, _, n_layers, _, _, bidirectional, batch_first = args
        inputs = X if batch_first else X.transpose(0, 1)
        output, last = _Unbatched.apply(
            CELLS[function], n_layers, 1 + bidirectional, inputs, h, *weights
        )
        return output if batch_first else output.transpose(0, 1).contiguous(), last


def _is_plain(
    X, h, weights, has_biases, n_layers, dropout, training, bidirectional, batch_first
) -> bool:
    """Tell whether ``_all_layers`` computes a layer with these arguments."""
    is_packed = not isinstance(has_biases, bool)  # then the weights are the fourth
    return not is_packed and not (dropout and training and n_layers > 1)


class _Unbatched(torch.autograd.Function):
    """Gets the stacks behind batched tensors; autograd records what is done with them."""

    @staticmethod
    def forward(*args):
        """Raise an error: without a batched tensor there are no stacks."""
        raise RuntimeError("a recurrent layer whose inputs and weights are not batched")

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Do nothing; torch.func requires it beside ``vmap``."""

    @staticmethod
    def vmap(info, in_dims, cell, n_layers, n_directions, *tensors):
        """Return the outputs and last states of ``_all_layers``, and their axes of clients."""
        inputs, h, *weights = (
            tensor.expand(info.batch_size, *tensor.shape)
            if axis is None
            else tensor.movedim(axis, 0)
            for tensor, axis in zip(tensors, in_dims[3:], strict=True)
        )
        return _all_layers(cell, inputs, h, weights, n_layers, n_directions), (0, 0)


def _all_layers(
    cell: Cell,
    inputs: torch.Tensor,
    h: torch.Tensor,
    weights: Sequence[torch.Tensor],
    n_layers: int,
    n_directions: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of the last layer, and the last h as (client, layer, row, feature).

    h and weights are in torch's order: by layer, forward before backward.
    """
    initial = iter(h.unbind(1))
    n_weights = len(weights) // (n_layers * n_directions)
    own = (weights[i : i + n_weights] for i in range(0, len(weights), n_weights))
    last = []
    for _ in range(n_layers):
        outputs = []
        for direction in range(n_directions):
            reverse = direction == 1
            output = _one_layer(cell, inputs, next(initial), next(own), reverse)
            outputs.append(output)
            last.append(output.select(2, 0 if reverse else -1))
        inputs = torch.cat(outputs, 3) if n_directions > 1 else outputs[0]
    return inputs, torch.stack(last, 1)


def _one_layer(
    cell: Cell,
    inputs: torch.Tensor,
    h: torch.Tensor,
    weights: Sequence[torch.Tensor],
    reverse: bool,
) -> torch.Tensor:
    """Return the outputs of a layer in one direction of time."""
    weight_ih, weight_hh, *biases = weights
    return RecurrentLayer.apply(
        cell, reverse, inputs, weight_ih, weight_hh, *(biases or (None, None)), h
    )

"""Recurrent layers of many clients at once, inside ``torch.func.vmap``.

torch.func has no batching rule for them. Here each is applied to the stacks of all clients.
"""

from collections.abc import Sequence

import torch
from torch.overrides import TorchFunctionMode

from skfed.engines._recurrent_layer import CELLS, Cell, RecurrentLayer, Tensors


class StackedRecurrence(TorchFunctionMode):
    """Computes the recurrent layers of a module that ``torch.func.vmap`` runs.

    Packed sequences, projections and dropout between layers are left to torch, which cannot batch
    them.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.data_ptr and torch._C._functorch.is_batchedtensor(args[0]):
            # It has no address. nn.RNNBase asks for those of weights before it lays them out for
            # cuDNN, and leaves weights that share one as they are.
            return 0
        if function not in CELLS or kwargs or not _is_plain(*args):
            return function(*args, **(kwargs or {}))
        X, state, weights, _, n_layers, _, _, bidirectional, batch_first = args
        states = (state,) if torch.is_tensor(state) else tuple(state)
        numbers = n_layers, 1 + bidirectional, len(states)
        inputs = X if batch_first else X.transpose(0, 1)
        output, *last = _Stacks.apply(CELLS[function], *numbers, inputs, *states, *weights)
        return output if batch_first else output.transpose(0, 1).contiguous(), *last


def _is_plain(
    X, state, weights, has_biases, n_layers, dropout, training, bidirectional, batch_first
) -> bool:
    """Tell whether the arguments of a recurrent layer are those of a layer that is written here."""
    if not isinstance(has_biases, bool):  # the weights, as they are the fourth for a packed batch
        return False
    n_weights = n_layers * (1 + bidirectional) * (4 if has_biases else 2)
    return len(weights) == n_weights and not (dropout and training and n_layers > 1)


class _Stacks(torch.autograd.Function):
    """Gets the stacks behind batched tensors; autograd records what is done with them."""

    @staticmethod
    def forward(*args):
        """Raise an error: without a batched tensor there are no stacks."""
        raise RuntimeError("a recurrent layer whose inputs and weights are not batched")

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Do nothing; torch.func requires it beside ``vmap``."""

    @staticmethod
    def vmap(info, in_dims, cell, n_layers, n_directions, n_states, *tensors):
        """Return the outputs and last states of ``_all_layers``, and their axes of clients."""
        inputs, *others = (
            tensor.expand(info.batch_size, *tensor.shape)
            if axis is None
            else tensor.movedim(axis, 0)
            for tensor, axis in zip(tensors, in_dims[4:], strict=True)
        )
        states, weights = others[:n_states], others[n_states:]
        results = _all_layers(cell, inputs, states, weights, n_layers, n_directions)
        return results, (0,) * len(results)


def _all_layers(
    cell: Cell,
    inputs: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    n_layers: int,
    n_directions: int,
) -> Tensors:
    """Return the outputs of the last layer, and the last states as (client, layer, row, feature).

    States and weights are in torch's order: by layer, forward before backward.
    """
    initial = iter(zip(*(stack.unbind(1) for stack in states), strict=True))
    n_weights = len(weights) // (n_layers * n_directions)
    own = (weights[i : i + n_weights] for i in range(0, len(weights), n_weights))
    last = []
    for _ in range(n_layers):
        outputs = []
        for direction in range(n_directions):
            output, state = _one_layer(cell, inputs, next(initial), next(own), direction == 1)
            outputs.append(output)
            last.append(state)
        inputs = torch.cat(outputs, 3) if n_directions > 1 else outputs[0]
    return inputs, *(torch.stack(of_layers, 1) for of_layers in zip(*last, strict=True))


def _one_layer(
    cell: Cell,
    inputs: torch.Tensor,
    state: Tensors,
    weights: Sequence[torch.Tensor],
    reverse: bool,
) -> tuple[torch.Tensor, Tensors]:
    """Return the outputs of a layer in one direction of time, and its last state."""
    weight_ih, weight_hh, *biases = weights
    outputs, *cell_state = RecurrentLayer.apply(
        cell, reverse, inputs, weight_ih, weight_hh, *(biases or (None, None)), *state
    )
    return outputs, (outputs.select(2, 0 if reverse else -1), *cell_state)

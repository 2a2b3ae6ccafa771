"""Recurrent layers of many clients at once, inside ``torch.func.vmap``.

torch.func has no batching rule for them. Each step in time is here a few operations on the stacks
of all clients. Tensors are (client, row, feature); those of all steps (client, row, time, feature).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Tensors = tuple[torch.Tensor, ...]

#: Multiplies vectors by the gates' weights, and adds the bias if there is one.
Product = Callable[[torch.Tensor], torch.Tensor]

#: Takes the initial state, the products of the gates' weights with the input at each time, and what
#: multiplies h; yields the state after each time. A state is the hidden state h and, in an LSTM,
#: the cell state c. Cells are generators: CPython keeps the frames of functions, but not those of
#: generators, in blocks of memory, and may take a block and give it back with each call.
Cell = Callable[[Tensors, Tensors, Product], Iterator[Tensors]]


def _gru(state: Tensors, from_inputs: Tensors, product: Product) -> Iterator[Tensors]:
    (h,) = state
    sizes = [2 * h.shape[2], h.shape[2]]
    for from_input in from_inputs:
        gates_of_input, new_of_input = from_input.split_with_sizes(sizes, 2)
        gates_of_hidden, new_of_hidden = product(h).split_with_sizes(sizes, 2)
        reset_gate, update_gate = (gates_of_input + gates_of_hidden).sigmoid().chunk(2, 2)
        new = torch.addcmul(new_of_input, reset_gate, new_of_hidden).tanh()
        h = torch.lerp(new, h, update_gate)
        yield (h,)


def _lstm(state: Tensors, from_inputs: Tensors, product: Product) -> Iterator[Tensors]:
    h, c = state
    sizes = [2 * c.shape[2], c.shape[2], c.shape[2]]
    for from_input in from_inputs:
        gates, new, output_gate = (from_input + product(h)).split_with_sizes(sizes, 2)
        input_gate, forget_gate = gates.sigmoid().chunk(2, 2)
        c = torch.addcmul(forget_gate * c, input_gate, new.tanh())
        h = output_gate.sigmoid() * c.tanh()
        yield h, c


def _rnn(
    activation: Callable[[torch.Tensor], torch.Tensor],
    state: Tensors,
    from_inputs: Tensors,
    product: Product,
) -> Iterator[Tensors]:
    (h,) = state
    for from_input in from_inputs:
        h = activation(from_input + product(h))
        yield (h,)


_CELLS: dict[Any, Cell] = {
    torch.gru: _gru,
    torch.lstm: _lstm,
    torch.rnn_tanh: partial(_rnn, torch.tanh),
    torch.rnn_relu: partial(_rnn, torch.relu),
}


class StackedRecurrence(TorchFunctionMode):
    """Computes the recurrent layers of a module that ``torch.func.vmap`` runs.

    Packed sequences, projections and dropout between layers are left to torch, which cannot batch
    them.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function not in _CELLS or kwargs or not _is_plain(*args):
            return function(*args, **(kwargs or {}))
        X, state, weights, _, n_layers, _, _, bidirectional, batch_first = args
        states = (state,) if torch.is_tensor(state) else tuple(state)
        numbers = n_layers, 1 + bidirectional, len(states)
        inputs = X if batch_first else X.transpose(0, 1)
        output, *last = _Stacks.apply(_CELLS[function], *numbers, inputs, *states, *weights)
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
    backward: bool,
) -> tuple[torch.Tensor, Tensors]:
    """Return the outputs of a layer in one direction of time, and its last state."""
    weight_ih, weight_hh, *biases = weights
    bias_ih, bias_hh = (bias.unsqueeze(1) for bias in biases) if biases else (None, None)
    products = _product(weight_ih, bias_ih)(inputs.flatten(1, 2))
    steps = products.unflatten(1, inputs.shape[1:3]).unbind(2)
    if backward:
        steps = steps[::-1]
    states = list(cell(state, steps, _product(weight_hh, bias_hh)))
    outputs = [h for h, *_ in (states[::-1] if backward else states)]
    return torch.stack(outputs, 2), states[-1]


def _product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """Return the function that multiplies vectors by weights, and adds the bias."""
    if bias is None:
        return partial(torch.bmm, mat2=weight.mT)
    return partial(torch.baddbmm, bias, batch2=weight.mT)

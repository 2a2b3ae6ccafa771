"""Recurrent layers of many clients at once, inside ``torch.func.vmap``.

torch.func has no batching rule for them. Each step in time is here a few operations on the stacks
of all clients. Tensors are (client, row, feature); those of all steps (client, row, time, feature).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Tensors = tuple[torch.Tensor, ...]

#: Takes a state, and the products of the gates' weights with a row and with h; returns the next
#: state. A state is the output h and, in an LSTM, the memory c.
Cell = Callable[[Tensors, torch.Tensor, torch.Tensor], Tensors]


def _gru(state: Tensors, of_row: torch.Tensor, of_h: torch.Tensor) -> Tensors:
    (h,) = state
    sizes = [2 * h.shape[2], h.shape[2]]
    (row_gates, row_new), (h_gates, h_new) = of_row.split(sizes, 2), of_h.split(sizes, 2)
    reset, update = (row_gates + h_gates).sigmoid().chunk(2, 2)
    new = torch.addcmul(row_new, reset, h_new).tanh()
    return (torch.lerp(new, h, update),)


def _lstm(state: Tensors, of_row: torch.Tensor, of_h: torch.Tensor) -> Tensors:
    _, c = state
    size = c.shape[2]
    gates, new, output = (of_row + of_h).split([2 * size, size, size], 2)
    take, keep = gates.sigmoid().chunk(2, 2)
    c = torch.addcmul(keep * c, take, new.tanh())
    return output.sigmoid() * c.tanh(), c


def _rnn_tanh(state: Tensors, of_row: torch.Tensor, of_h: torch.Tensor) -> Tensors:
    return ((of_row + of_h).tanh(),)


def _rnn_relu(state: Tensors, of_row: torch.Tensor, of_h: torch.Tensor) -> Tensors:
    return ((of_row + of_h).relu(),)


_CELLS: dict[Any, Cell] = {
    torch.gru: _gru,
    torch.lstm: _lstm,
    torch.rnn_tanh: _rnn_tanh,
    torch.rnn_relu: _rnn_relu,
}


class StackedRecurrence(TorchFunctionMode):
    """Computes the recurrent layers of a module that ``torch.func.vmap`` runs.

    Packed sequences, projections and dropout between layers are left to torch.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function not in _CELLS or kwargs or not _is_plain(*args):
            return function(*args, **(kwargs or {}))
        X, state, weights, _, n_layers, _, _, both_ways, batch_first = args
        states = state if isinstance(state, tuple) else (state,)
        rows = X if batch_first else X.transpose(0, 1)
        cell, n_ways = _CELLS[function], 1 + both_ways
        output, *last = _Stacks.apply(cell, n_layers, n_ways, len(states), rows, *states, *weights)
        return output if batch_first else output.transpose(0, 1), *last


def _is_plain(
    X, state, weights, has_biases, n_layers, dropout, training, both_ways, batch_first
) -> bool:
    """Tell whether the arguments of a recurrent layer are those of a layer that is written here."""
    if not isinstance(has_biases, bool):  # it is the weights: a packed batch has lengths before
        return False
    n_weights = n_layers * (1 + both_ways) * (4 if has_biases else 2)
    return len(weights) == n_weights and not (dropout and training and n_layers > 1)


class _Stacks(torch.autograd.Function):
    """Gets the stacks behind batched tensors; autograd records what is done with them."""

    @staticmethod
    def forward(*args):
        """Raise an error: without a batched tensor there are no stacks."""
        raise NotImplementedError("a recurrent layer whose inputs and weights are not batched")

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Do nothing; torch.func requires it beside ``vmap``."""

    @staticmethod
    def vmap(info, in_dims, cell, n_layers, n_ways, n_states, *tensors):
        """Return the outputs and last states of ``_all_layers``, and their axes of clients."""
        rows, *others = (
            tensor.expand(info.batch_size, *tensor.shape)
            if axis is None
            else tensor.movedim(axis, 0)
            for tensor, axis in zip(tensors, in_dims[4:], strict=True)
        )
        states, weights = others[:n_states], others[n_states:]
        results = _all_layers(cell, rows, states, weights, n_layers, n_ways)
        return results, (0,) * len(results)


def _all_layers(
    cell: Cell,
    rows: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    n_layers: int,
    n_ways: int,
) -> Tensors:
    """Return the outputs of the last layer, and the last states as (client, layer, row, feature).

    Each layer reads the rows in ``n_ways`` directions.
    """
    first = iter(zip(*(stack.unbind(1) for stack in states), strict=True))
    n_weights = len(weights) // (n_layers * n_ways)
    own = (weights[i : i + n_weights] for i in range(0, len(weights), n_weights))
    last = []
    for _ in range(n_layers):
        outputs = []
        for way in range(n_ways):
            output, state = _read(cell, rows, next(first), next(own), backwards=way == 1)
            outputs.append(output)
            last.append(state)
        rows = torch.cat(outputs, 3) if n_ways > 1 else outputs[0]
    return rows, *(torch.stack(of_layers, 1) for of_layers in zip(*last, strict=True))


def _read(
    cell: Cell, rows: torch.Tensor, state: Tensors, weights: Sequence[torch.Tensor], backwards: bool
) -> tuple[torch.Tensor, Tensors]:
    """Return the outputs of a layer that reads rows in one direction, and its last state."""
    of_row, of_h = weights[0].mT, weights[1].mT
    row_bias, h_bias = (bias.unsqueeze(1) for bias in weights[2:]) if weights[2:] else (None, None)
    steps = _product(rows.flatten(1, 2), of_row, row_bias).unflatten(1, rows.shape[1:3]).unbind(2)
    outputs = []
    for step in reversed(steps) if backwards else steps:
        state = cell(state, step, _product(state[0], of_h, h_bias))
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs, 2), state


def _product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias, rows, weight)

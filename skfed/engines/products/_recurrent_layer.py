"""A recurrent layer of many clients at once, in one direction of time, with its gradients.

The gradients are written here: a step in time is so little to compute that recording it takes
autograd much of the time. Tensors of a step are (client, row, feature); those of all steps (client,
row, time, feature).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

Tensors = tuple[torch.Tensor, ...]

#: Multiplies vectors by the gates' weights, and adds the bias if there is one.
Product = Callable[[torch.Tensor], torch.Tensor]

#: The hidden state h after each time, and what the backward pass needs of the step.
Forward = Iterator[tuple[torch.Tensor, Tensors]]

#: The gradients with respect to the product with the input, to that with h, and to h before each
#: step. The next step may overwrite the first two.
Backward = Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


class Cell(NamedTuple):
    """The steps in time of one kind of layer.

    Both members are generators: CPython keeps the frames of functions, but not those of generators,
    in blocks of memory, and may take a block and give it back with each call.

    Parameters
    ----------
    forward : callable
        Takes the initial h, the products of the gates' weights with the input at each time, and
        what multiplies h. Of what it yields for the backward pass, h before the step comes first.
    backward : callable
        Takes what ``forward`` has yielded for it, the last first; the gradients with respect to the
        outputs, the last first, then zeros, since the initial h is no output; and the weights that
        multiply h.
    """

    forward: Callable[[torch.Tensor, Tensors, Product], Forward]
    backward: Callable[[Sequence[Tensors], Tensors, torch.Tensor], Backward]


def _gru(h: torch.Tensor, from_inputs: Tensors, product: Product) -> Forward:
    sizes = [2 * h.shape[2], h.shape[2]]
    for from_input in from_inputs:
        gates_of_input, new_of_input = from_input.split_with_sizes(sizes, 2)
        gates_of_hidden, new_of_hidden = product(h).split_with_sizes(sizes, 2)
        gates = (gates_of_input + gates_of_hidden).sigmoid_()
        reset_gate, update_gate = gates.chunk(2, 2)
        new = torch.addcmul(new_of_input, reset_gate, new_of_hidden).tanh_()
        kept = h, new_of_hidden, gates, new
        h = torch.lerp(new, h, update_gate)
        yield h, kept


def _gru_backward(kept: Sequence[Tensors], grad_outputs: Tensors, weight: torch.Tensor) -> Backward:
    grad, *others = grad_outputs
    shape = *grad.shape[:2], weight.shape[1]
    grad_input, grad_hidden = weight.new_empty(shape), weight.new_empty(shape)
    sizes = [2 * grad.shape[2], grad.shape[2]]
    grad_gates_of_input, grad_new_of_input = grad_input.split_with_sizes(sizes, 2)
    grad_gates_of_hidden, grad_new_of_hidden = grad_hidden.split_with_sizes(sizes, 2)
    grad_reset, grad_update = grad_gates_of_hidden.chunk(2, 2)
    for (h, new_of_hidden, gates, new), grad_output in zip(kept, others, strict=True):
        reset_gate, update_gate = gates.chunk(2, 2)
        grad_new = torch.addcmul(grad, grad, update_gate, value=-1)
        torch.addcmul(grad_new, grad_new * new, new, value=-1, out=grad_new_of_input)
        torch.mul(grad_new_of_input, reset_gate, out=grad_new_of_hidden)
        torch.mul(grad_new_of_input, new_of_hidden, out=grad_reset)
        torch.sub(h, new, out=grad_update).mul_(grad)
        grad_gates_of_hidden.addcmul_(grad_gates_of_hidden, gates, value=-1).mul_(gates)
        grad_gates_of_input.copy_(grad_gates_of_hidden)
        grad = torch.addcmul(grad_output, grad, update_gate).baddbmm_(grad_hidden, weight)
        yield grad_input, grad_hidden, grad


def _rnn(activation: Callable, h: torch.Tensor, from_inputs: Tensors, product: Product) -> Forward:
    for from_input in from_inputs:
        before, h = h, activation(from_input + product(h))
        yield h, (before, h)


def _tanh_backward(
    kept: Sequence[Tensors], grad_outputs: Tensors, weight: torch.Tensor
) -> Backward:
    grad, *others = grad_outputs
    for (_, h), grad_output in zip(kept, others, strict=True):
        grad_product = torch.addcmul(grad, grad * h, h, value=-1)
        grad = torch.baddbmm(grad_output, grad_product, weight)
        yield grad_product, grad_product, grad


def _relu_backward(
    kept: Sequence[Tensors], grad_outputs: Tensors, weight: torch.Tensor
) -> Backward:
    grad, *others = grad_outputs
    for (_, h), grad_output in zip(kept, others, strict=True):
        grad_product = grad.masked_fill(h <= 0, 0)
        grad = torch.baddbmm(grad_output, grad_product, weight)
        yield grad_product, grad_product, grad


CELLS: dict[Any, Cell] = {
    torch.gru: Cell(_gru, _gru_backward),
    torch.rnn_tanh: Cell(partial(_rnn, torch.tanh), _tanh_backward),
    torch.rnn_relu: Cell(partial(_rnn, torch.relu), _relu_backward),
}


class RecurrentLayer(torch.autograd.Function):
    """A layer in one direction of time.

    It takes the cell, whether it reads the last input first, the inputs, both weights and biases
    (or None) and the initial h; it returns the outputs.
    """

    @staticmethod
    def forward(ctx, cell, reverse, inputs, weight_ih, weight_hh, bias_ih, bias_hh, h):
        """Take the steps in time."""
        products = _product(weight_ih, bias_ih)(inputs.flatten(1, 2))
        steps = products.unflatten(1, inputs.shape[1:3]).unbind(2)
        found = cell.forward(h, steps[::-1] if reverse else steps, _product(weight_hh, bias_hh))
        outputs, kept = zip(*found, strict=True)
        ctx.cell, ctx.reverse, ctx.has_biases = cell, reverse, bias_ih is not None
        ctx.save_for_backward(inputs, weight_ih, weight_hh, *chain.from_iterable(kept))
        return torch.stack(outputs[::-1] if reverse else outputs, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_outputs):
        """Return the gradients with respect to the arguments of ``forward``."""
        inputs, weight_ih, weight_hh, *kept = ctx.saved_tensors
        xs, grads, kept = _last_first(ctx.reverse, inputs, grad_outputs, kept)
        grad_ih, grad_hh = torch.zeros_like(weight_ih), torch.zeros_like(weight_hh)
        shape = *grads[0].shape[:2], weight_ih.shape[1]
        rows_ih, rows_hh = weight_ih.new_zeros(shape), weight_hh.new_zeros(shape)  # of the biases
        grad_inputs = []
        steps = ctx.cell.backward(kept, grads, weight_hh)
        for x, (h, *_), step in zip(xs, kept, steps, strict=True):
            grad_input, grad_hidden, grad_h = step
            grad_ih.baddbmm_(grad_input.mT, x)
            grad_hh.baddbmm_(grad_hidden.mT, h)
            if ctx.has_biases:
                rows_ih.add_(grad_input)
                rows_hh.add_(grad_hidden)
            if ctx.needs_input_grad[2]:
                grad_inputs.append(torch.bmm(grad_input, weight_ih))
        order = slice(None, None, 1 if ctx.reverse else -1)
        by_inputs = torch.stack(grad_inputs[order], 2) if grad_inputs else None
        biases = (rows_ih.sum(1), rows_hh.sum(1)) if ctx.has_biases else (None, None)
        return None, None, by_inputs, grad_ih, grad_hh, *biases, grad_h


def _last_first(
    reverse: bool, inputs: torch.Tensor, grad_outputs: torch.Tensor, kept: Sequence[torch.Tensor]
) -> tuple[Tensors, Tensors, list[Sequence[torch.Tensor]]]:
    """Return the inputs, the gradients and what was kept of each step, the last step first.

    After the gradients with respect to the outputs there are zeros.
    """
    xs, grads = inputs.unbind(2), grad_outputs.unbind(2)
    if not reverse:
        xs, grads = xs[::-1], grads[::-1]
    size = len(kept) // len(xs)
    of_steps = [kept[i : i + size] for i in range(0, len(kept), size)]
    return xs, (*grads, torch.zeros_like(grads[0])), of_steps[::-1]


def _product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """Return the function that multiplies vectors by weights, and adds the bias."""
    if bias is None:
        return partial(torch.bmm, mat2=weight.mT)
    return partial(torch.baddbmm, bias.unsqueeze(1), batch2=weight.mT)

"""A recurrent layer of many clients at once, in one direction of time, with its gradients.

The gradients are written here: a step in time is so little to compute that autograd's own work, and
the operations that are not needed, take much of the time. Tensors of a step are (client, row,
feature); those of all steps (client, row, time, feature).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

Tensors = tuple[torch.Tensor, ...]

#: Multiplies vectors by the gates' weights, and adds the bias if there is one.
Product = Callable[[torch.Tensor], torch.Tensor]


class Cell(NamedTuple):
    """The steps in time of one kind of layer.

    A state is the hidden state h and, in an LSTM, the cell state c. Both members are generators:
    CPython keeps the frames of functions, but not those of generators, in blocks of memory, and may
    take a block and give it back with each call.

    Parameters
    ----------
    forward : callable
        Takes the initial state, the products of the gates' weights with the input at each time, and
        what multiplies h; yields the state after each time, and what ``backward`` needs of it, of
        which h before it comes first.
    backward : callable
        Takes what ``forward`` has yielded for it, the last first; the gradient with respect to each
        output, the last first, and zeros at the end; those of the last state other than h; and the
        weights that multiply h. Yields the gradients with respect to the product with the input,
        to that with h, and to the state before. The next step may overwrite the first two.
    """

    forward: Callable[[Tensors, Tensors, Product], Iterator[tuple[Tensors, Tensors]]]
    backward: Callable[[Sequence[Tensors], Tensors, Tensors, torch.Tensor], Iterator[Tensors]]


def _gru(state, from_inputs, product):
    (h,) = state
    sizes = [2 * h.shape[2], h.shape[2]]
    for from_input in from_inputs:
        gates_of_input, new_of_input = from_input.split_with_sizes(sizes, 2)
        gates_of_hidden, new_of_hidden = product(h).split_with_sizes(sizes, 2)
        gates = (gates_of_input + gates_of_hidden).sigmoid_()
        reset_gate, update_gate = gates.chunk(2, 2)
        new = torch.addcmul(new_of_input, reset_gate, new_of_hidden).tanh_()
        kept = h, new_of_hidden, gates, new
        h = torch.lerp(new, h, update_gate)
        yield (h,), kept


def _gru_backward(kept, grad_outputs, grad_state, weight):
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


def _lstm(state, from_inputs, product):
    h, c = state
    sizes = [2 * c.shape[2], c.shape[2], c.shape[2]]
    for from_input in from_inputs:
        gates = from_input + product(h)
        of_state, new, output_gate = gates.split_with_sizes(sizes, 2)
        input_gate, forget_gate = of_state.sigmoid_().chunk(2, 2)
        before = h, c
        c = torch.addcmul(forget_gate * c, input_gate, new.tanh_())
        squashed = c.tanh()
        h = output_gate.sigmoid_() * squashed
        yield (h, c), (*before, gates, squashed)


def _lstm_backward(kept, grad_outputs, grad_state, weight):
    grad, *others = grad_outputs
    (grad_c,) = grad_state
    grad_product = weight.new_empty(*grad.shape[:2], weight.shape[1])
    sizes = [2 * grad.shape[2], grad.shape[2], grad.shape[2]]
    grad_of_state, grad_new, grad_output_gate = grad_product.split_with_sizes(sizes, 2)
    grad_input_gate, grad_forget_gate = grad_of_state.chunk(2, 2)
    for (_, c, gates, squashed), grad_output in zip(kept, others, strict=True):
        of_state, new, output_gate = gates.split_with_sizes(sizes, 2)
        input_gate, forget_gate = of_state.chunk(2, 2)
        by_squashed = grad * output_gate
        grad_c = grad_c + by_squashed.addcmul_(by_squashed * squashed, squashed, value=-1)
        torch.mul(grad, squashed, out=grad_output_gate)
        torch.mul(grad_c, new, out=grad_input_gate)
        torch.mul(grad_c, c, out=grad_forget_gate)
        by_new = grad_c * input_gate
        torch.addcmul(by_new, by_new * new, new, value=-1, out=grad_new)
        grad_of_state.addcmul_(grad_of_state, of_state, value=-1).mul_(of_state)
        grad_output_gate.addcmul_(grad_output_gate, output_gate, value=-1).mul_(output_gate)
        grad_c = grad_c * forget_gate
        grad = torch.baddbmm(grad_output, grad_product, weight)
        yield grad_product, grad_product, grad, grad_c


def _rnn(activation, state, from_inputs, product):
    (h,) = state
    for from_input in from_inputs:
        before, h = h, activation(from_input + product(h))
        yield (h,), (before, h)


def _tanh_backward(kept, grad_outputs, grad_state, weight):
    grad, *others = grad_outputs
    for (_, h), grad_output in zip(kept, others, strict=True):
        grad_product = torch.addcmul(grad, grad * h, h, value=-1)
        grad = torch.baddbmm(grad_output, grad_product, weight)
        yield grad_product, grad_product, grad


def _relu_backward(kept, grad_outputs, grad_state, weight):
    grad, *others = grad_outputs
    for (_, h), grad_output in zip(kept, others, strict=True):
        grad_product = grad.masked_fill(h <= 0, 0)
        grad = torch.baddbmm(grad_output, grad_product, weight)
        yield grad_product, grad_product, grad


CELLS: dict[Any, Cell] = {
    torch.gru: Cell(_gru, _gru_backward),
    torch.lstm: Cell(_lstm, _lstm_backward),
    torch.rnn_tanh: Cell(partial(_rnn, torch.tanh), _tanh_backward),
    torch.rnn_relu: Cell(partial(_rnn, torch.relu), _relu_backward),
}


class RecurrentLayer(torch.autograd.Function):
    """A layer in one direction of time.

    It takes the cell, whether it reads the last input first, the inputs, both weights and biases
    (or None) and the initial state; it returns the outputs, and the last state other than h.
    """

    @staticmethod
    def forward(ctx, cell, reverse, inputs, weight_ih, weight_hh, bias_ih, bias_hh, *state):
        """Take the steps in time."""
        products = _product(weight_ih, bias_ih)(inputs.flatten(1, 2))
        steps = products.unflatten(1, inputs.shape[1:3]).unbind(2)
        found = cell.forward(state, steps[::-1] if reverse else steps, _product(weight_hh, bias_hh))
        states, ctx.kept = zip(*found, strict=True)
        ctx.cell, ctx.reverse, ctx.has_biases = cell, reverse, bias_ih is not None
        ctx.save_for_backward(inputs, weight_ih, weight_hh)
        outputs = [h for h, *_ in (states[::-1] if reverse else states)]
        return torch.stack(outputs, 2), *states[-1][1:]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_outputs, *grad_state):
        """Return the gradients with respect to the arguments of ``forward``."""
        inputs, weight_ih, weight_hh = ctx.saved_tensors
        xs, grads, kept = inputs.unbind(2), grad_outputs.unbind(2), ctx.kept[::-1]
        if not ctx.reverse:
            xs, grads = xs[::-1], grads[::-1]
        grads = *grads, torch.zeros_like(grads[0])
        steps = ctx.cell.backward(kept, grads, grad_state, weight_hh)
        # Sums over the steps: the gradient of a weight, and that of a bias by row.
        shape = *grads[0].shape[:2], weight_ih.shape[1]
        of_ih, of_hh = ((torch.zeros_like(w), w.new_zeros(shape)) for w in (weight_ih, weight_hh))
        grad_inputs = []
        for x, (h, *_), grads_of_step in zip(xs, kept, steps, strict=True):
            grad_input, grad_hidden, *grad_state = grads_of_step
            of_ih[0].baddbmm_(grad_input.mT, x)
            of_ih[1].add_(grad_input)
            of_hh[0].baddbmm_(grad_hidden.mT, h)
            of_hh[1].add_(grad_hidden)
            if ctx.needs_input_grad[2]:
                grad_inputs.append(torch.bmm(grad_input, weight_ih))
        if not ctx.reverse:
            grad_inputs.reverse()
        of_inputs = torch.stack(grad_inputs, 2) if grad_inputs else None
        biases = (of_ih[1].sum(1), of_hh[1].sum(1)) if ctx.has_biases else (None, None)
        return None, None, of_inputs, of_ih[0], of_hh[0], *biases, *grad_state


def _product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """Return the function that multiplies vectors by weights, and adds the bias."""
    if bias is None:
        return partial(torch.bmm, mat2=weight.mT)
    return partial(torch.baddbmm, bias.unsqueeze(1), batch2=weight.mT)

"""Find out whether a module is a stack of linear layers and elementwise functions.

By watching what it calls on a few rows. Not by ``torch.fx``, which while it traces changes modules
for all threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from skfed.engines._linear import Linear, WithBuffer

Layers = list[Linear | WithBuffer | Callable]

_ELEMENTWISE = {
    F.alpha_dropout, F.celu, F.dropout, F.elu, F.gelu, F.hardsigmoid, F.hardswish, F.hardtanh,
    F.leaky_relu, F.logsigmoid, F.mish, F.relu6, F.selu, F.sigmoid, F.silu, F.softplus,
    F.softsign, F.tanh, F.tanhshrink, torch.sigmoid, torch.tanh, torch.Tensor.sigmoid,
    torch.Tensor.tanh,
}  # fmt: skip
_RELU = {F.relu, F.relu_, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_}
_FLATTEN = {torch.flatten, torch.Tensor.flatten, torch.Tensor.view, torch.Tensor.reshape}
_WITH_BUFFER: dict[Any, Callable] = {torch.Tensor.sub: torch.sub, torch.Tensor.div: torch.div}
_HEADS = {
    F.softmax, F.log_softmax, torch.softmax, torch.log_softmax, torch.Tensor.softmax,
    torch.Tensor.log_softmax,
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A function with all its arguments but the first."""

    function: Callable
    args: tuple
    kwargs: tuple[tuple[str, Any], ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.args, **dict(self.kwargs))


class _Watch(TorchFunctionMode):
    """Writes down which functions of torch are called, with what, and what they return."""

    def __init__(self):
        self.calls: list[tuple[Callable, tuple, dict, Any]] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if torch.is_tensor(result):  # and not a shape, say
            self.calls.append((function, args, kwargs or {}, result))
        return result


def layers_of(module: nn.Module, X: torch.Tensor) -> tuple[Layers, Callable | None] | None:
    """Return the layers of a stack, and the softmax at its end if there is one; else None.

    Whether what was found computes the same is for the caller to try: flattening, for one, is
    taken on trust here.
    """
    with _Watch() as watch:
        output = module(X)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    buffers = {id(buffer): name for name, buffer in module.named_buffers() if buffer.dim() == 1}
    layers: Layers = []
    head = None
    current = X
    for function, args, kwargs, result in watch.calls:
        if head is not None or not args or args[0] is not current:
            return None
        current = result
        if function in _FLATTEN and result.dim() == 2:
            continue
        if function in _HEADS:
            head = _call(function, args, kwargs)
        elif (layer := _layer(function, args, kwargs, names)) is not None or (
            layer := _with_buffer(function, args, buffers)
        ) is not None:
            layers.append(layer)
        else:
            return None
    if current is not output or not _covers(module, layers):
        return None
    return layers, head


def _layer(function: Callable, args: tuple, kwargs: dict, names: dict[int, str]) -> Any:
    """Return the layer that a call is, or None."""
    if function in _RELU:
        return F.relu
    if function in _ELEMENTWISE:
        return _call(function, args, kwargs)
    if function is not F.linear or kwargs or not 2 <= len(args) <= 3 or id(args[1]) not in names:
        return None
    bias = args[2] if len(args) == 3 else None
    if bias is not None and id(bias) not in names:
        return None
    return Linear(names[id(args[1])], None if bias is None else names[id(bias)])


def _with_buffer(function: Callable, args: tuple, buffers: dict[int, str]) -> WithBuffer | None:
    """Return the layer that subtracts or divides by a buffer of one value a column, or None."""
    if function not in _WITH_BUFFER or len(args) != 2 or id(args[1]) not in buffers:
        return None
    return WithBuffer(_WITH_BUFFER[function], buffers[id(args[1])])


def _call(function: Callable, args: tuple, kwargs: dict) -> Call:
    """Keep a call, not in place."""
    return Call(function, args[1:], tuple((k, v) for k, v in kwargs.items() if k != "inplace"))


def _covers(module: nn.Module, layers: Layers) -> bool:
    """Tell whether the layers are all that the module has, each weight trained and used once."""
    linear = [layer for layer in layers if isinstance(layer, Linear)]
    used = [name for layer in linear for name in (layer.weight, layer.bias) if name]
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    buffers = {layer.buffer for layer in layers if isinstance(layer, WithBuffer)}
    return (
        bool(linear)
        and len(used) == len(set(used))
        and set(used) == trained == dict(module.named_parameters()).keys()
        and buffers == dict(module.named_buffers()).keys()
    )

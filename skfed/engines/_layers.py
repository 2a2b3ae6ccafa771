"""The layers of a module and the memory of its rows, found by running it on a few rows.

On meta tensors, which have no values, this takes little time however large the module is.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from skfed.engines.products._linear import Layers, Linear, WithBuffer
from skfed.nets import call_module

_ELEMENTWISE_FUNCTIONS = {
    F.alpha_dropout, F.celu, F.dropout, F.elu, F.gelu, F.hardsigmoid, F.hardswish, F.hardtanh,
    F.leaky_relu, F.logsigmoid, F.mish, F.relu6, F.selu, F.sigmoid, F.silu, F.softplus,
    F.softsign, F.tanh, F.tanhshrink, torch.sigmoid, torch.tanh, torch.Tensor.sigmoid,
    torch.Tensor.tanh,
}  # fmt: skip
_RELU = {F.relu, F.relu_, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_}
_FLATTEN = {torch.flatten, torch.Tensor.flatten, torch.Tensor.view, torch.Tensor.reshape}
_WITH_BUFFER: dict[Any, Callable] = {torch.Tensor.sub: torch.sub, torch.Tensor.div: torch.div}
# Calls without a tensor as their result, by which a module may do other things with other values.
_READ_VALUES = {
    torch.Tensor.__array__, torch.Tensor.item, torch.Tensor.numpy, torch.Tensor.tolist,
    torch.Tensor.allclose, torch.Tensor.equal, torch.allclose, torch.equal,
}  # fmt: skip
_HEADS = {
    F.softmax, F.log_softmax, torch.softmax, torch.log_softmax, torch.Tensor.softmax,
    torch.Tensor.log_softmax,
}  # fmt: skip


def on_meta(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose parameters and buffers are meta tensors."""
    memo: dict[int, Any] = {id(buffer): buffer.to("meta") for buffer in module.buffers()}
    for parameter in module.parameters():
        tensor = parameter.detach().to("meta")
        memo[id(parameter)] = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
    return copy.deepcopy(module, memo)


def row_bytes(module: nn.Module, X: torch.Tensor | dict[str, torch.Tensor]) -> int:
    """Return the bytes of a row of X and of its activations in training."""
    parameters = {_place(parameter) for parameter in module.parameters()}
    rows = tree_leaves(X)
    found = {_place(tensor): tensor.nbytes for tensor in rows}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if _place(tensor) not in parameters:
            found[_place(tensor)] = tensor.nbytes
        return tensor

    with (
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        output = call_module(module, X)
    found[_place(output)] = output.nbytes
    return sum(found.values()) // len(rows[0])


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where a tensor begins in memory; meta tensors have no address."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


@dataclass(frozen=True)
class WithArguments:
    """A function with all its arguments but the first."""

    function: Callable
    args: tuple
    kwargs: tuple[tuple[str, Any], ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.args, **dict(self.kwargs))


class Recorder(TorchFunctionMode):
    """Records the calls of torch functions that return a tensor or read its values.

    Each is recorded with its arguments and its result.
    """

    def __init__(self):
        self.calls: list[tuple[Callable, tuple, dict, Any]] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if torch.is_tensor(result) or function in _READ_VALUES:  # not a shape
            self.calls.append((function, args, kwargs or {}, result))
        return result


def layers_of(module: nn.Module, X: Any) -> tuple[Layers, Callable | None] | None:
    """Return the layers of a stack, and the softmax at its end if there is one; else None.

    They are recorded on a few rows, not by ``torch.fx``, which changes modules for all threads
    while it traces. The caller has to compare results: flattening, for one, is not checked here.
    """
    with Recorder() as recorder:
        output = call_module(module, X)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    buffers = {id(buffer): name for name, buffer in module.named_buffers() if buffer.dim() == 1}
    layers: list[Linear | WithBuffer | Callable] = []
    head = None
    current = X
    for function, args, kwargs, result in recorder.calls:
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
    if function in _ELEMENTWISE_FUNCTIONS:
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


def _call(function: Callable, args: tuple, kwargs: dict) -> WithArguments:
    """Return a function with its arguments, not in place."""
    kept = tuple((k, v) for k, v in kwargs.items() if k != "inplace")
    return WithArguments(function, args[1:], kept)


def _covers(module: nn.Module, layers: Layers) -> bool:
    """Tell whether the layers are all that the module has, each weight trained and used once."""
    linear = [layer for layer in layers if isinstance(layer, Linear)]
    used = [name for layer in linear for name in layer.names]
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    buffers = {layer.buffer for layer in layers if isinstance(layer, WithBuffer)}
    return (
        bool(linear)
        and len(used) == len(set(used))
        and set(used) == trained == dict(module.named_parameters()).keys()
        and buffers == dict(module.named_buffers()).keys()
    )

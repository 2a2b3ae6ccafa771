"""Find out whether a module is a stack of linear layers and elementwise functions."""

import copy
import operator
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from skfed.engines._linear import Linear

Layers = list[Linear | Callable]

_ELEMENTWISE = {
    nn.AlphaDropout, nn.CELU, nn.Dropout, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish,
    nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid,
    nn.Softplus, nn.Softsign, nn.Tanh, nn.Tanhshrink,
}  # fmt: skip
_FUNCTIONS = {
    F.celu, F.dropout, F.elu, F.gelu, F.hardsigmoid, F.hardswish, F.hardtanh, F.leaky_relu,
    F.logsigmoid, F.mish, F.relu6, F.selu, F.silu, F.softplus, F.softsign, torch.sigmoid,
    F.sigmoid, torch.tanh, F.tanh,
}  # fmt: skip
_METHODS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}
_HEADS = {nn.Softmax, nn.LogSoftmax, F.softmax, F.log_softmax, torch.softmax, torch.log_softmax}
_RELU = {nn.ReLU, F.relu, torch.relu, "relu"}
_FLATTEN = {nn.Flatten, nn.Identity, torch.flatten, "flatten", "view", "reshape"}


def layers_of(module: nn.Module) -> tuple[Layers, Callable | None] | None:
    """Return the layers of a stack, and the softmax at its end if there is one; else None.

    Whether what was found computes the same is for the caller to try: flattening, for one, is
    taken on trust here.
    """
    root = nn.Sequential(module)  # so that a module which is but one layer is found too
    try:
        graph = fx.symbolic_trace(root).graph
    except Exception:  # the module's own code runs on stand-ins, and may fail on them in any way
        return None
    nodes = [node for node in graph.nodes if node.op != "output" and not _is_shape(node)]
    if any(before not in node.all_input_nodes for before, node in pairwise(nodes)):
        return None
    found = [_layer(root, node) for node in nodes[1:]]
    layers = [layer for layer in found if layer is not _flat]
    head = layers.pop()[0] if layers and isinstance(layers[-1], tuple) else None
    if not all(layers) or any(isinstance(layer, tuple) for layer in layers):
        return None
    return (layers, head) if _covers(module, layers) else None


def _is_shape(node: fx.Node) -> bool:
    """Tell whether a node looks at shapes only, as in x.view(x.size(0), -1)."""
    if node.op == "call_method":
        return node.target == "size"
    return node.op == "call_function" and node.target in (getattr, operator.getitem)


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x


def _layer(root: nn.Module, node: fx.Node) -> Any:
    """Return a node's layer, ``_flat``, a softmax in a tuple, or None for anything else."""
    if node.op == "call_module":
        return _module_layer(str(node.target), root.get_submodule(str(node.target)))
    target: Any = node.target
    if target in _FLATTEN:
        return _flat
    if len(node.args) > 1:
        return None
    options = {key: value for key, value in node.kwargs.items() if key != "inplace"}
    if target in _RELU:
        return F.relu
    if target in _HEADS:
        return (partial(target, **options),)
    target = _METHODS.get(target, target)
    return partial(target, **options) if target in _FUNCTIONS else None


def _module_layer(name: str, layer: nn.Module) -> Any:
    kind = type(layer)
    if kind is nn.Linear:
        inside = f"{name}.".removeprefix("0.")  # its name in the module itself
        return Linear(f"{inside}weight", None if layer.bias is None else f"{inside}bias")
    if kind in _FLATTEN:
        return _flat
    if kind in _RELU:
        return F.relu
    if kind in _HEADS:
        return (layer,)
    if kind not in _ELEMENTWISE:
        return None
    layer = copy.deepcopy(layer).train()
    if hasattr(layer, "inplace"):
        setattr(layer, "inplace", False)  # noqa: B010
    return layer


def _covers(module: nn.Module, layers: Layers) -> bool:
    """Tell whether the linear layers are all that the module has to train, each used once."""
    linear = [layer for layer in layers if isinstance(layer, Linear)]
    used = [name for layer in linear for name in (layer.weight, layer.bias) if name]
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    everything = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    return bool(linear) and len(used) == len(set(used)) and set(used) == trained == everything

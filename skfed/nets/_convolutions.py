"""Convolutional nets in the form that a CPU computes fastest."""

from collections.abc import Collection
from itertools import pairwise

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn

from skfed.nets._predict import STEP_METHODS, has_hooks, overridden, to_tensors
from skfed.utils._seeding import torch_seeded


def takes_channels_last(net: NeuralNet, row: np.ndarray) -> bool:
    """Tell whether convolutions gain by weights in channels-last order, and a step works with them.

    Activations and gradients get the order of the weights, and some code cannot take it: a ``view``
    of either fails, in a module as in ``torch.optim.LBFGS``. So this takes a step. Not where other
    code of the user's sees them. The net may not be used afterwards.

    Parameters
    ----------
    net : NeuralNet
        A net with the settings of those that will train.
    row : ndarray of shape (1, ...)
        A row of X, in the net's dtype.
    """
    if not _may_change(net) or all(type(one) is not nn.Conv2d for one in net.module_.modules()):
        return False
    put_channels_last(net.module_)
    try:
        with torch_seeded(np.random.default_rng(0), net.device), torch.enable_grad():
            _take_step(net, *to_tensors(net, np.repeat(row, 2, axis=0)))
    except Exception:  # of the order, or one that the net raises in the usual order too
        return False
    return True


def _take_step(net: NeuralNet, X: torch.Tensor) -> None:
    """Evaluate a net, and take a step on the sum of its outputs."""
    net._set_training(False)
    net.infer(X)
    net._set_training(True)

    def closure() -> torch.Tensor:
        output = net.infer(X)
        total = (output[0] if isinstance(output, tuple) else output).sum()
        total.backward()
        return total

    net.optimizer_.step(closure)


def put_channels_last(module: nn.Module) -> None:
    """Store the weights of convolutions by place and then channel: a step takes a quarter less."""
    for one in module.modules():
        if type(one) is nn.Conv2d:
            # Not by contiguous(), which leaves weights for one channel as they are.
            one.weight.data = one.weight.data.to(memory_format=torch.channels_last)


def pool_before_relu(net: NeuralNet) -> None:
    """Exchange each ReLU and the maximum pooling after it: a step takes a twentieth less.

    The largest value is the same before and after ReLU, and so is its gradient, but there are fewer
    values to rectify. Only layers that no code but Sequential's calls are exchanged: the module has
    to be a Sequential, since another may use some layers of one that it holds.
    """
    if not _may_change(net):
        return
    modules = list(net.module_.modules())
    if any(map(_is_max_pool, modules)) and not has_hooks(*modules):
        others = (child for m in modules if not _is_sequential(m) for child in m.children())
        _exchange(net.module_, {id(child) for child in others})


def _exchange(module: nn.Module, skipped: Collection[int]) -> None:
    """Exchange layers in a module and those that it holds, except for some by their ids."""
    if not _is_sequential(module) or id(module) in skipped:
        return
    layers = module._modules
    for first, second in pairwise(layers):
        relu, pool = layers[first], layers[second]
        if _is_relu(relu) and _is_max_pool(pool):
            layers[first], layers[second] = pool, relu
    for layer in module.children():
        _exchange(layer, skipped)


def _may_change(net: NeuralNet) -> bool:
    """Tell whether a net is on a CPU, and no code of the user's sees its module in a step."""
    on_cpu = torch.device(net.device or "cpu").type == "cpu"
    return on_cpu and not net.callbacks_ and not overridden(net, STEP_METHODS)


def _is_sequential(module: nn.Module) -> bool:
    """Tell whether a module calls its layers one after the other, by Sequential's own code."""
    return isinstance(module, nn.Sequential) and all(
        _has_method_of(module, nn.Sequential, name) for name in ("forward", "__iter__", "__call__")
    )


def _is_relu(module: nn.Module | None) -> bool:
    return type(module) is nn.ReLU and _has_method_of(module, nn.ReLU, "forward")


def _is_max_pool(module: nn.Module | None) -> bool:
    """Tell whether a module returns the largest of some values, and never padding's -inf."""
    return (
        type(module) is nn.MaxPool2d
        and _has_method_of(module, nn.MaxPool2d, "forward")
        and module.dilation == 1
        and not module.return_indices
    )


def _has_method_of(module: nn.Module, kind: type[nn.Module], name: str) -> bool:
    """Tell whether neither the class of a module nor the module itself replaces a method."""
    return getattr(type(module), name) is getattr(kind, name) and name not in vars(module)

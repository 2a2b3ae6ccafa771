"""Convolutional nets in the form that a CPU computes fastest."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn

from skfed.nets._inputs import Samples, to_tensors
from skfed.nets._own_code import (
    FORWARD_METHODS,
    STEP_METHODS,
    has_hooks,
    has_plain_steps,
    overridden,
)
from skfed.utils._seeding import torch_seeded
from skfed.utils._torch_context import one_torch_thread

# With fewer rows, or smaller ones, a trial may take longer than is saved.
_FEWEST_ROWS = 512
_FEWEST_VALUES = 512  # of a row


def has_convolutions(net: NeuralNet) -> bool:
    """Tell whether a net has convolutions that are faster on a CPU with channels-last weights.

    False where methods or callbacks of the user's, or a custom optimizer, take part in a step.
    """
    known = type(net.optimizer_).__module__.startswith("torch.optim.")
    return known and _may_change(net) and bool(_convolutions(net.module_))


def takes_channels_last(net: NeuralNet, row: np.ndarray) -> bool:
    """Tell whether a net gives the same outputs, and a step works, with channels-last weights.

    Activations and gradients get the order of the weights, and a ``view`` of them can fail, in a
    module as in ``torch.optim.LBFGS``: so this tries a step. Outputs have to be in the usual order,
    since the criterion gets them. Those in training are not compared: dropout fills activations in
    their order. The net may not be used afterwards.

    Parameters
    ----------
    net : NeuralNet
        A net with the settings of those that will train.
    row : ndarray of shape (1, ...)
        A row of X, in the net's dtype.
    """
    X = to_tensors(net, row[[0, 0]])[0]
    try:
        with one_torch_thread():
            if not _works_channels_last(net, X):
                return False
            net.initialize_optimizer()
            net._set_training(True)
            net.optimizer_.step(partial(_gradients_of_sum, net, X))
            return all(output.is_contiguous() for output in _infer(net, X))
    except Exception:  # of the order, or one that the net raises in the usual order too
        return False


@contextmanager
def evaluated_channels_last(net: NeuralNet, X: Samples) -> Iterator[None]:
    """Context manager in which a net evaluates many rows of X faster: with channels-last weights.

    Only where a trial gives the same outputs, and where no code of the user's takes part: it could
    see the weights, or the trial. The caller holds the lock of ``torch_seeded``, since another
    thread may evaluate the same net.
    """
    if not _may_gain(net, X):
        yield
        return
    before = [(one, one.weight.data) for one in _convolutions(net.module_)]
    try:
        if not _works_channels_last(net, to_tensors(net, X[[0, -1]])[0]):
            _put_back(before)
        yield
    finally:
        _put_back(before)


def _works_channels_last(net: NeuralNet, X: torch.Tensor) -> bool:
    """Give a net channels-last weights; tell whether its outputs are the same."""
    try:
        usual = _outputs(net, X)
        put_channels_last(net.module_)
        return all(map(_is_same, usual, _outputs(net, X)))
    except Exception:  # of the order, or one that the net raises in the usual order too
        return False


def _may_gain(net: NeuralNet, X: Samples) -> bool:
    """Tell whether a trial on X is worth its time, and no code of the user's takes part in it."""
    methods = *STEP_METHODS, *FORWARD_METHODS, "predict_proba"
    modules = list(net.module_.modules())
    return (
        len(X) >= _FEWEST_ROWS
        and prod(X.shape[1:]) >= _FEWEST_VALUES
        and torch.device(net.device).type == "cpu"
        and any(max(one.kernel_size) > 1 for one in _convolutions(net.module_))
        and all(map(_is_torchs, modules))
        and not (has_hooks(*modules) or overridden(net, methods))
    )


def _outputs(net: NeuralNet, X: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the tensors that a net returns when it is evaluated."""
    net._set_training(False)
    with torch.no_grad():
        return _infer(net, X)


def _infer(net: NeuralNet, X: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the tensors that a net returns; draws are the same in each call."""
    with torch_seeded(np.random.default_rng(0), net.device):
        output = net.infer(X)
    return output if isinstance(output, tuple) else (output,)


def _is_same(usual: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether an output is the same up to rounding, and in the usual order."""
    if not usual.numel():
        return True
    close = torch.allclose(other, usual, 1e-3, 1e-3 * float(usual.abs().max()), equal_nan=True)
    return other.is_contiguous() and close


def _gradients_of_sum(net: NeuralNet, X: torch.Tensor) -> torch.Tensor:
    """Return the sum of a net's outputs; set its gradients."""
    with torch.enable_grad():
        total = _infer(net, X)[0].sum()
        net.optimizer_.zero_grad()
        total.backward()
    return total


def put_channels_last(module: nn.Module) -> None:
    """Store the weights of convolutions by place and then channel, which a CPU computes faster."""
    for one in _convolutions(module):
        # Not by contiguous(), which leaves weights for one channel as they are.
        one.weight.data = one.weight.data.to(memory_format=torch.channels_last)


def _put_back(weights: Sequence[tuple[nn.Conv2d, torch.Tensor]]) -> None:
    """Give convolutions the weights that they had."""
    for one, weight in weights:
        one.weight.data = weight


def _convolutions(module: nn.Module) -> list[nn.Conv2d]:
    """Return the convolutions that are faster with channels-last weights."""
    return [one for one in module.modules() if type(one) is nn.Conv2d]


def pool_before_relu(net: NeuralNet) -> None:
    """Exchange each ReLU and the maximum pooling after it, which takes less time.

    The largest value is the same before and after ReLU, and so is its gradient, but there are fewer
    values to rectify. Only layers that no code but Sequential's calls are exchanged: the module has
    to be a Sequential, since another may use some layers of one that it holds.
    """
    if not _may_change(net):
        return
    modules = list(net.module_.modules())
    if any(map(_is_max_pool, modules)) and not has_hooks(*modules):
        others = (m for m in modules if not _is_sequential(m))
        _exchange(net.module_, {id(held) for m in others for held in [*m.modules()][1:]})


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
    return torch.device(net.device).type == "cpu" and has_plain_steps(net)


def _is_torchs(module: nn.Module) -> bool:
    """Tell whether a module is computed by torch's code alone, and is not compiled."""
    own = type(module).__module__.startswith("torch.nn.modules.") and "forward" not in vars(module)
    return (own or _is_sequential(module)) and module._compiled_call_impl is None


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

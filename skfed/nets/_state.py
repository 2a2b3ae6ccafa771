"""The state of a net, a dict of its parameters and buffers; linear nets as coefficients."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from skorch import NeuralNet
from torch import nn

from skfed.modules import LinearRegression, SoftmaxRegression, Standardize

State = dict[str, torch.Tensor]

LINEAR_ATTRIBUTES = "coef_", "intercept_"


def get_state(net: NeuralNet) -> State:
    """Copy the net's parameters and buffers to the CPU, in the order of their indices."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in named_tensors(net).items()
    }


def parameter_names(net: NeuralNet) -> list[str]:
    """Return the names of the trained parameters."""
    return [name for name, tensor in named_tensors(net).items() if tensor.requires_grad]


def set_trained(net: NeuralNet, names: Collection[str]) -> None:
    """Let the parameters of these names, and no others, have gradients."""
    for name, tensor in named_tensors(net).items():
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad != (name in names):
            tensor.requires_grad_(name in names)


def group_of_parameters(net: NeuralNet) -> dict[str, int]:
    """Return the index of the optimizer's parameter group of each trained parameter."""
    groups = enumerate(net.optimizer_.param_groups)
    owners = {id(parameter): i for i, group in groups for parameter in group["params"]}
    named = ((name, id(w)) for name, w in named_tensors(net).items() if w.requires_grad)
    return {name: owners[key] for name, key in named if key in owners}


def untrained_names(net: NeuralNet) -> list[str]:
    """Return the names of tensors that have no gradient, but for the scaling of columns."""
    constants = {
        id(buffer)
        for layer in net.module_.modules()
        if isinstance(layer, Standardize)
        for buffer in layer.buffers()
    }
    tensors = named_tensors(net).items()
    return [n for n, w in tensors if not w.requires_grad and id(w) not in constants]


def last_layer_of(net: NeuralNet) -> str:
    """Return the name of the last trained tensor of the module, a bias if its last layer has one.

    Raises
    ------
    ValueError
        If the module has no trained tensor with an axis.
    """
    tensors = named_tensors(net)
    names = [name for name in parameter_names(net) if name.startswith("module.")]
    for name in reversed(names):
        if tensors[name].dim():
            return name
    raise ValueError("selector needs the last layer, but estimator's module trains no layer.")


def add_to_gradients(
    net: NeuralNet, added: Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]
) -> Callable[[], None]:
    """Make each gradient what a function of its name, parameter and gradient returns.

    Return a function that undoes it. By hooks, which also act in a train step that the user has
    overridden.
    """

    def add(grad: torch.Tensor, name: str, parameter: torch.Tensor) -> torch.Tensor:
        parameter = parameter.detach()
        if not grad.is_sparse:
            return added(name, parameter, grad)
        # A hook may not change the layout, though the terms are of all rows of an embedding.
        total = added(name, parameter, torch.zeros_like(parameter)) + grad
        return total.to_sparse(grad.sparse_dim())

    handles = [
        parameter.register_hook(partial(add, name=name, parameter=parameter))
        for name, parameter in named_tensors(net).items()
        if parameter.requires_grad
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def moved(tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """Return a tensor on a device: itself if it is there.

    Its method ``to`` releases the interpreter's lock, which another thread may then hold for long.
    """
    return tensor if tensor.device == torch.device(device) else tensor.to(device)


def by_member(stack: torch.Tensor) -> torch.Tensor:
    """View a stack of tensors as a matrix with a row for each."""
    return stack.reshape(len(stack), stack.shape[1:].numel())


def set_state(net: NeuralNet, state: State) -> None:
    """Copy a state into the net, in place."""
    with torch.no_grad():
        for name, tensor in named_tensors(net).items():
            tensor.copy_(state[name])
    torch.clear_autocast_cache()  # it holds casts of the weights before


def model_bytes(net: NeuralNet) -> int:
    """Return the size of the state in bytes, as it is sent."""
    return bytes_of(named_tensors(net))


def bytes_of(state: State) -> int:
    """Return the bytes of all tensors of a state."""
    return sum(tensor.nbytes for tensor in state.values())


def named_tensors(net: NeuralNet) -> State:
    """Return the tensors that training changes: the modules' parameters and buffers, each once.

    Of a criterion only the parameters: its buffers (class weights) are settings. Plain attributes
    of a module are not part of the state: each client begins with the initial ones, and they are
    not sent to the server.
    """
    tensors: State = {}
    for name in net._modules:
        module = getattr(net, f"{name}_")
        tensors |= {f"{name}.{key}": tensor for key, tensor in module.named_parameters()}
        tensors |= {f"{name}.{key}": tensor for key, tensor in module.named_buffers()}
    for name in net._criteria:
        criterion = getattr(net, f"{name}_")
        if isinstance(criterion, nn.Module):
            tensors |= {f"{name}.{key}": tensor for key, tensor in criterion.named_parameters()}
    return tensors


def linear_attributes(net: NeuralNet, output_shape: tuple[int, ...] | None) -> dict[str, Any]:
    """Return ``coef_`` and ``intercept_`` by name; empty if the net is not known to be linear.

    ``output_shape`` is that of the outputs for one row, () for a single target; None: a row of
    weights for each output of the module.
    """
    found = _coefficients(net.module_)
    if found is None:
        return {}
    coef, intercept = (tensor.detach().cpu().double().numpy() for tensor in found)
    if output_shape is None:
        output_shape = intercept.shape
    # Copied: the net's weights change in place. [()] makes a number of an array without axes.
    values = coef.reshape(*output_shape, -1).copy(), intercept.reshape(output_shape).copy()[()]
    return dict(zip(LINEAR_ATTRIBUTES, values, strict=True))


def _coefficients(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the weights (n_outputs, n_features) and intercepts (n_outputs,), in units of X."""
    forward = type(module).forward  # of a subclass that overrides it nothing is known
    if isinstance(module, nn.Sequential) and forward is nn.Sequential.forward:
        layers = [layer for layer in module if not isinstance(layer, nn.Flatten | nn.Identity)]
        return _coefficients(layers[0]) if len(layers) == 1 else None
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        weight, bias = module.weight, module.bias
        return weight, weight.new_zeros(len(weight)) if bias is None else bias
    if forward in (SoftmaxRegression.forward, LinearRegression.forward):
        assert isinstance(module, SoftmaxRegression | LinearRegression)
        return module.coefficients()
    return None

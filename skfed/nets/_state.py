"""The state of a net: every parameter and buffer, by name, as server and clients send it."""

from collections.abc import Callable

import torch
from skorch import NeuralNet
from torch import nn

from skfed.modules import Standardize

State = dict[str, torch.Tensor]


def get_state(net: NeuralNet) -> State:
    """Copy the net's parameters and buffers to the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in named_tensors(net).items()}


def parameter_names(net: NeuralNet) -> list[str]:
    """Name the trained parameters of a model; its other tensors are buffers."""
    return [name for name, tensor in named_tensors(net).items() if tensor.requires_grad]


def group_of_parameters(net: NeuralNet) -> dict[str, int]:
    """Return the parameter group of each trained parameter that the net's optimizer has."""
    groups = enumerate(net.optimizer_.param_groups)
    owners = {id(parameter): i for i, group in groups for parameter in group["params"]}
    named = ((name, id(w)) for name, w in named_tensors(net).items() if w.requires_grad)
    return {name: owners[key] for name, key in named if key in owners}


def buffer_names(net: NeuralNet) -> list[str]:
    """Name what training may change without gradients, as running statistics."""
    constants = {
        id(buffer)
        for layer in net.module_.modules()
        if isinstance(layer, Standardize)
        for buffer in layer.buffers()
    }
    tensors = named_tensors(net).items()
    return [n for n, w in tensors if not isinstance(w, nn.Parameter) and id(w) not in constants]


def add_to_gradients(net: NeuralNet, extra: Callable[[str, torch.Tensor], torch.Tensor]):
    """Add ``extra(name, parameter)`` to every gradient that backward computes; return an undo.

    As hooks, since they also act in a train step that the user has written.
    """
    handles = [
        parameter.register_hook(lambda grad, n=name, p=parameter: grad + extra(n, p.detach()))
        for name, parameter in named_tensors(net).items()
        if parameter.requires_grad
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def by_member(stack: torch.Tensor) -> torch.Tensor:
    """View tensors that are stacked along a leading axis as one row each."""
    return stack.reshape(len(stack), stack[0].numel())


def set_state(net: NeuralNet, model: State) -> None:
    """Write a model into the net, in place."""
    with torch.no_grad():
        for name, tensor in named_tensors(net).items():
            tensor.copy_(model[name])
    torch.clear_autocast_cache()  # of casts of the weights that were there before


def model_bytes(net: NeuralNet) -> int:
    """Return the bytes of a model on the wire."""
    return sum(tensor.nbytes for tensor in named_tensors(net).values())


def named_tensors(net: NeuralNet) -> State:
    """Name what training changes: the modules' parameters and buffers, each once if it is shared.

    Of a criterion only the parameters: its buffers (class weights) are settings. What a module
    keeps elsewhere, in plain attributes, is not part of the model: each client begins with it as it
    was set up, and it does not reach the server.
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

"""Checks on a few rows that a stacked step gives the losses and gradients of skorch's own."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from skfed.aggregation._tensors import real
from skfed.engines._linear import Linear, LinearStack, WithBuffer
from skfed.engines._vmap import BatchedModule
from skfed.nets import State, get_state, parameter_names, set_state, to_tensors, whole
from skfed.utils._seeding import torch_seeded

Layers = list[Linear | WithBuffer | Callable]

_ELEMENTWISE_FUNCTIONS = {
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

_ROWS = 8
_DROPOUT = {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
    torch.dropout,
}  # fmt: skip


class CannotStack(Exception):
    """The stacked engine cannot run a net; the message is the reason."""


class Probe:
    """Checks of a net, which may not be used afterwards.

    Parameters
    ----------
    net : NeuralNet
        A net with the settings of those that will train.
    X, y : Tensor
        A few rows of the data.
    """

    def __init__(self, net: NeuralNet, X: torch.Tensor, y: torch.Tensor):
        self.net, self.X, self.y = net, X, y
        self.names = parameter_names(net)
        self.states = [self._perturbed(seed) for seed in range(2)]

    def check(self) -> None:
        """Raise CannotStack where the module or criterion cannot be stacked."""
        with self._restoring(training=False):
            output = self.net.module_(self.X)
            if not torch.is_tensor(output):
                raise CannotStack("the module returns more than one tensor")
        if self.draws(training=False):
            raise CannotStack("the module draws random numbers when it is evaluated")
        if self._criterion_draws():
            raise CannotStack("the criterion draws random numbers")
        if self._has_hidden_state():
            raise CannotStack("the module or criterion changes attributes of its own")
        with self._restoring(training=False):
            single = [self.net.module_(row) for row in self.X.split(1)]
            if not _close(output, torch.cat(single), output.abs().max()):
                raise CannotStack("rows influence each other when the module is evaluated")
        with _NoDropout():
            if self.draws(training=True):
                raise CannotStack("the module draws random numbers other than by dropout")

    def layers(self) -> tuple[Layers, Callable | None] | None:
        """Return the layers and the softmax of a stack of linear layers, if it is one."""
        with self._restoring(training=True):
            return layers_of(self.net.module_, self.X)

    def difference(self, method: LinearStack | BatchedModule) -> str | None:
        """Return how losses and gradients of two stacked clients differ from those of each alone.

        With full batches, and with one that is padded, in two ways. None if they do not differ.
        """
        n_rows = len(self.X)
        trials: list[tuple[Sequence[int] | None, torch.Tensor]] = [(None, self.X)]
        if n_rows > 1:
            few = n_rows // 2
            repeated = torch.cat([self.X[:few], self.X[:1].expand_as(self.X[few:])])
            trials += [((n_rows, few), self.X), ((n_rows, few), repeated)]
        with _NoDropout():
            for sizes, X in trials:
                reason = self._differs(method, sizes, X)
                if reason is not None:
                    return reason
        return None

    def draws(self, training: bool) -> bool:
        """Tell whether the module draws random numbers."""
        with self._restoring(training):
            generator = _generator(self.net.device)
            before = generator.get_state()
            self.net.module_(self.X)
            return not torch.equal(before, generator.get_state())

    def row_bytes(self) -> int:
        """Return the bytes of a row of X and of its activations."""
        parameters = {p.data_ptr() for p in self.net.module_.parameters()}
        found = {self.X.data_ptr(): self.X.nbytes}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in parameters:
                found[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with self._restoring(training=True), torch.enable_grad():
            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                output = self.net.module_(self.X)
            found[output.data_ptr()] = output.nbytes
        return sum(found.values()) // len(self.X)

    def state_bytes(self) -> int:
        """Return the bytes of the optimizer's state for one client."""
        for group in self.net.optimizer_.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        self.net.optimizer_.step()
        states = self.net.optimizer_.state.values()
        return sum(t.nbytes for state in states for t in state.values() if torch.is_tensor(t))

    def _perturbed(self, seed: int) -> State:
        """Return the net's state plus noise, since zeros would hide what they multiply."""
        rng = np.random.default_rng(seed)
        state = get_state(self.net)
        for name in self.names:
            noise = torch.from_numpy(rng.normal(size=state[name].shape))
            state[name] = (state[name] + 0.05 * noise).to(state[name].dtype)
        return state

    def _criterion_draws(self) -> bool:
        with self._restoring(training=True):
            output = self.net.module_(self.X)
            generator = _generator(self.net.device)
            before = generator.get_state()
            self.net.get_loss(output, self.y, X=self.X, training=True)
            return not torch.equal(before, generator.get_state())

    def _has_hidden_state(self) -> bool:
        """Tell whether the module or criterion changes attributes other than buffers."""
        modules = [*self.net.module_.modules(), *self.net.criterion_.modules()]
        with self._restoring(training=True):
            before = [_attributes(module) for module in modules]
            self.net.get_loss(self.net.module_(self.X), self.y, X=self.X, training=True)
            after = [_attributes(module) for module in modules]
        return any(not _same(*pair) for pair in zip(before, after, strict=True))

    def _differs(
        self, method: LinearStack | BatchedModule, sizes: Sequence[int] | None, X: torch.Tensor
    ) -> str | None:
        """Compare a stacked step with the step of each client alone."""
        counts = (len(X), len(X)) if sizes is None else sizes
        alone = [self._step_alone(state, n) for state, n in zip(self.states, counts, strict=True)]
        try:
            with warnings.catch_warnings():
                # An operation without a batching rule would run client by client.
                warnings.filterwarnings("error", message="There is a performance drop")
                together = self._step_stacked(method, sizes, X)
        except Exception as error:  # whatever the module's code raises when it is batched
            return f"torch.func cannot batch the module or criterion: {first_line(error)}"
        for mine, theirs in zip(alone, together, strict=True):
            largest = max(mine[name].abs().max() for name in self.names)
            if any(not _close(mine[name], theirs[name], largest) for name in mine):
                return "batched gradients differ from those of one client"
        return None

    def _step_alone(self, state: State, n_rows: int) -> State:
        """Return one client's loss, gradients and buffers, as the loop engine computes them."""
        with self._restoring(training=True), torch.enable_grad():
            set_state(self.net, state)
            self.net.module_.zero_grad()
            batch = self.X[:n_rows], self.y[:n_rows]
            loss = self.net.train_step_single(batch)["loss"].detach()
            after = get_state(self.net)
            tensors = dict(self.net.module_.named_parameters())
            for name in self.names:
                grad = tensors[name.removeprefix("module.")].grad
                if grad is None:  # an optimizer leaves it alone, weight decay included
                    raise CannotStack(f"{name} gets no gradient")
                after[name] = grad.cpu()
            self.net.module_.zero_grad()
        return after | {"loss": loss.cpu()}

    def _step_stacked(
        self, method: LinearStack | BatchedModule, sizes: Sequence[int] | None, X: torch.Tensor
    ) -> list[State]:
        """Return the same of each client, from one stacked step."""
        device = self.X.device
        stack = {
            name.removeprefix("module."): torch.stack([m[name] for m in self.states]).to(device)
            for name in self.states[0]
        }
        params = {n: t for n, t in stack.items() if f"module.{n}" in self.names}
        buffers = {n: t for n, t in stack.items() if n not in params}
        counts = None if sizes is None else torch.tensor(sizes, device=device)
        X, y = torch.stack([self.X, X]), torch.stack([self.y, self.y])
        with self._restoring(training=True):
            losses, grads = method.bind(self.net, params, buffers).gradients(X, y, counts)
        whole = {f"module.{n}": t.detach().cpu() for n, t in {**buffers, **grads}.items()}
        return [
            {n: t[i] for n, t in whole.items()} | {"loss": losses[i].detach().cpu()}
            for i in range(len(self.states))
        ]

    @contextmanager
    def _restoring(self, training: bool) -> Iterator[None]:
        """Use the first state; then restore the net's state and torch's generator."""
        state = get_state(self.net)
        with torch_seeded(np.random.default_rng(0), self.net.device), torch.no_grad():
            set_state(self.net, self.states[0])
            self.net._set_training(training)
            yield
        set_state(self.net, state)


def few_rows(
    net: NeuralNet, X: np.ndarray, y: np.ndarray, batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows to probe a net on: from all the data, at most as many as a batch has."""
    n_rows = min(_ROWS, len(X), whole(batch, len(X)))
    rows = np.linspace(0, len(X) - 1, n_rows).astype(int)
    few_X, few_y = to_tensors(net, X[rows], y[rows])
    return few_X, few_y


class _NoDropout(TorchFunctionMode):
    """Skips dropout, so that the rest of a module can be compared."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in _DROPOUT:
            return args[0] if args else kwargs["input"]
        return function(*args, **kwargs)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """Return a module's attributes, containers copied one level deep."""
    kinds = (dict, list, set)
    return {k: copy.copy(v) if isinstance(v, kinds) else v for k, v in vars(module).items()}


def _same(one: Any, other: Any) -> bool:
    """Tell whether attributes are the same objects, in containers too."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, set) and isinstance(other, set):
        return one == other
    return one is other


def _close(one: torch.Tensor, other: torch.Tensor, largest: torch.Tensor) -> bool:
    """Compare up to the rounding of the type, relative to the largest value around."""
    one, other = real(one), real(other)
    if not one.is_floating_point():
        return torch.equal(one, other)
    tolerance = max(1e3 * torch.finfo(one.dtype).eps, 1e-9)
    one, other = one.double(), other.double()
    scale = one.nan_to_num(0.0, 0.0, 0.0).abs().max() if one.numel() else torch.tensor(0.0)
    bound = tolerance * float(torch.maximum(scale, 1e-2 * largest.double().nan_to_num()))
    return torch.allclose(one, other, rtol=0.0, atol=bound, equal_nan=True)


def _generator(device: str) -> torch.Generator:
    kind = torch.device(device)
    if kind.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if kind.index is None else kind.index
    return torch.cuda.default_generators[index]


@dataclass(frozen=True)
class Call:
    """A function with all its arguments but the first."""

    function: Callable
    args: tuple
    kwargs: tuple[tuple[str, Any], ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.args, **dict(self.kwargs))


class _Recorder(TorchFunctionMode):
    """Records the calls of torch functions, with arguments and results."""

    def __init__(self):
        self.calls: list[tuple[Callable, tuple, dict, Any]] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if torch.is_tensor(result):  # not a shape
            self.calls.append((function, args, kwargs or {}, result))
        return result


def layers_of(module: nn.Module, X: torch.Tensor) -> tuple[Layers, Callable | None] | None:
    """Return the layers of a stack, and the softmax at its end if there is one; else None.

    They are recorded on a few rows, not by ``torch.fx``, which changes modules for all threads
    while it traces. The caller has to compare results: flattening, for one, is not checked here.
    """
    with _Recorder() as recorder:
        output = module(X)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    buffers = {id(buffer): name for name, buffer in module.named_buffers() if buffer.dim() == 1}
    layers: Layers = []
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


def _call(function: Callable, args: tuple, kwargs: dict) -> Call:
    """Return a function with its arguments, not in place."""
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

"""Checks on a few rows that a stacked step gives the losses and gradients of skorch's own."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from skfed.aggregation._tensors import real
from skfed.engines._layers import Layers, layers_of, row_bytes
from skfed.engines.products._evaluated_layers import EvaluatedLayers
from skfed.engines.products._linear import LinearLayers
from skfed.engines.products._targets import Target
from skfed.engines.products._vmap import BatchedModule
from skfed.nets import (
    Samples,
    State,
    as_inferred,
    by_array,
    call_module,
    get_state,
    moved,
    parameter_names,
    set_state,
    to_tensors,
    whole,
)
from skfed.utils._seeding import torch_seeded

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
        A few rows of the data; X may be a dict of Tensor.

    Attributes
    ----------
    random : bool
        After ``check``: whether the module draws random numbers in training.
    """

    random: bool

    def __init__(self, net: NeuralNet, X: Any, y: torch.Tensor):
        self.net, self.X, self.y = net, X, y
        self.names = parameter_names(net)
        self.states = [self._perturbed(seed) for seed in range(2)]
        self._alone: list[State] | None = None  # the steps of the clients of a trial

    def check(self) -> None:
        """Raise CannotStack where the module or criterion cannot be stacked."""
        with self._in_state(training=False):
            output, draws = self._watched(self._output, self.X)
        if not torch.is_tensor(output):
            raise CannotStack("the module returns more than one tensor")
        if draws:
            raise CannotStack("the module draws random numbers when it is evaluated")
        with self._in_state(training=True):
            in_training, self.random = self._watched(self._output, self.X)
            _, criterion_draws = self._watched(self._loss, in_training)
        if criterion_draws:
            raise CannotStack("the criterion draws random numbers")
        if self._has_hidden_state():
            raise CannotStack("the module or criterion changes attributes of its own")
        with self._in_state(training=False):
            rows = (self._rows(slice(i, i + 1)) for i in range(len(self.y)))
            single = [as_inferred(self.net, self._output(row)) for row in rows]
            output = as_inferred(self.net, output)
            if not _close(output, torch.cat(single), output.abs().max()):
                raise CannotStack("rows influence each other when the module is evaluated")
        if self.random and self._draws_without_dropout():
            raise CannotStack("the module draws random numbers other than by dropout")

    def layers(self) -> tuple[Layers, Callable | None] | None:
        """Return the layers and the softmax of a stack of linear layers, if it is one."""
        with self._in_state(training=True):
            return layers_of(self.net.module_, self.X)

    def evaluated_layers(self) -> EvaluatedLayers | None:
        """Return the layers of the module as it is evaluated, if they give its output."""
        with self._in_state(training=False):
            found = layers_of(self.net.module_, self.X)
            if found is None:
                return None
            layers, head = found
            evaluated = EvaluatedLayers(layers if head is None else [*layers, head])
            state = {name: moved(w, self.net.device) for name, w in self.states[0].items()}
            own = evaluated.output(state, self.X, len(self.X))
            output = self._output(self.X)
        return evaluated if _close(output, own, output.abs().max()) else None

    def difference(self, method: LinearLayers | BatchedModule) -> str | None:
        """Return how losses and gradients of stacked clients differ from those of each alone.

        None if they do not. One client has a full batch; those of two others are padded, one with
        other rows and one with the first row repeated.
        """
        n_rows = len(self.y)
        few = n_rows // 2
        sizes, batches = None, [self.X, self.X]
        if n_rows > 1:
            repeated = self._rows([*range(few), *[0] * (n_rows - few)])
            sizes, batches = [n_rows, few, few], [self.X, self.X, repeated]
        return self._differs(method, sizes, batches)

    def row_bytes(self) -> int:
        """Return the bytes of a row of X and of its activations."""
        with self._in_state(training=True):
            return row_bytes(self.net.module_, self.X)

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

    def _output(self, X: Any) -> Any:
        return call_module(self.net.module_, X)

    def _rows(self, rows: Any) -> Any:
        return by_array(lambda one: one[rows], self.X)

    def _loss(self, output: Any) -> torch.Tensor:
        output = as_inferred(self.net, output)
        return self.net.get_loss(output, self.y, X=self.X, training=True)

    def _watched(self, function: Callable, argument: Any) -> tuple[Any, bool]:
        """Return a function's result, and whether it drew random numbers."""
        generator = _generator(self.net.device)
        before = generator.get_state()
        result = function(argument)
        return result, not torch.equal(before, generator.get_state())

    def _draws_without_dropout(self) -> bool:
        """Tell whether the module draws random numbers in training other than by dropout."""
        with _NoDropout(), self._in_state(training=True):
            return self._watched(self._output, self.X)[1]

    def _has_hidden_state(self) -> bool:
        """Tell whether the module or criterion changes attributes other than buffers."""
        modules = [*self.net.module_.modules(), *self.net.criterion_.modules()]
        with self._in_state(training=True):
            before = [_attributes(module) for module in modules]
            self._loss(self._output(self.X))
            after = [_attributes(module) for module in modules]
        return any(not _same(*pair) for pair in zip(before, after, strict=True))

    def _differs(
        self, method: LinearLayers | BatchedModule, sizes: Sequence[int] | None, X: Sequence[Any]
    ) -> str | None:
        """Compare a stacked step on the X of each client with the step of each."""
        states = [self.states[i % 2] for i in range(len(X))]
        counts = [len(self.y)] * len(X) if sizes is None else sizes
        with _NoDropout():
            if self._alone is None:
                self._alone = [self._step_alone(*pair) for pair in zip(states, counts, strict=True)]
            try:
                with warnings.catch_warnings():
                    # An operation without a batching rule would run client by client.
                    warnings.filterwarnings("error", message="There is a performance drop")
                    together = self._step_stacked(method, states, sizes, X)
            except Exception as error:  # whatever the module's code raises when it is batched
                return f"torch.func cannot batch the module or criterion: {first_line(error)}"
        for mine, theirs in zip(self._alone, together, strict=True):
            largest = max(mine[name].abs().max() for name in self.names)
            if any(not _close(mine[name], theirs[name], largest) for name in mine):
                return "batched gradients differ from those of one client"
        return None

    def _step_alone(self, state: State, n_rows: int) -> State:
        """Return one client's loss, gradients and buffers, as the loop engine computes them."""
        with self._in_state(training=True, state=state), torch.enable_grad():
            self.net.module_.zero_grad()
            batch = self._rows(slice(n_rows)), self.y[:n_rows]
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
        self,
        method: LinearLayers | BatchedModule,
        states: Sequence[State],
        sizes: Sequence[int] | None,
        X: Sequence[Any],
    ) -> list[State]:
        """Return the same of each client, from one stacked step."""
        device = self.y.device
        stack = {
            name.removeprefix("module."): torch.stack([m[name] for m in states]).to(device)
            for name in states[0]
        }
        params = {n: t for n, t in stack.items() if f"module.{n}" in self.names}
        buffers = {n: t for n, t in stack.items() if n not in params}
        counts = None if sizes is None else torch.tensor(sizes, device=device)
        y = torch.stack([self.y] * len(X))
        with self._in_state(training=True):
            bound = method.bind(self.net, params, buffers)
            steps = Target(y[None], None if counts is None else counts[None], None)
            (target,) = bound.targets(steps)
            losses, grads = bound.gradients(by_array(_stacked, *X), target)
        whole = {f"module.{n}": t.detach().cpu() for n, t in {**buffers, **grads}.items()}
        return [
            {n: t[i] for n, t in whole.items()} | {"loss": losses[i].detach().cpu()}
            for i in range(len(X))
        ]

    @contextmanager
    def _in_state(self, training: bool, state: State | None = None) -> Iterator[None]:
        """Set the net's state (None: the first) and mode; restore torch's generator at the end."""
        with torch_seeded(np.random.default_rng(0), self.net.device), torch.no_grad():
            set_state(self.net, self.states[0] if state is None else state)
            self.net._set_training(training)
            yield


def few_rows(net: NeuralNet, X: Samples, y: np.ndarray, batch: int) -> tuple[Any, torch.Tensor]:
    """Return rows to probe a net on: from all the data, at most as many as a batch has."""
    return spread_rows(net, X, y, min(_ROWS, len(X), whole(batch, len(X))))


def spread_rows(net: NeuralNet, X: Samples, y: np.ndarray, n_rows: int) -> tuple[Any, torch.Tensor]:
    """Return some rows, from all the data at equal distances."""
    rows = np.linspace(0, len(X) - 1, n_rows).astype(int)
    some_X, some_y = to_tensors(net, X[rows], y[rows])
    return some_X, some_y


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
    if one.shape != other.shape:  # such as a buffer made anew in training
        return False
    one, other = real(one), real(other)
    if not one.is_floating_point():
        return torch.equal(one, other)
    tolerance = max(1e3 * torch.finfo(one.dtype).eps, 1e-9)
    one, other = one.double(), other.double()
    scale = one.nan_to_num(0.0, 0.0, 0.0).abs().max() if one.numel() else torch.tensor(0.0)
    bound = tolerance * float(torch.maximum(scale, 1e-2 * largest.double().nan_to_num()))
    return torch.allclose(one, other, rtol=0.0, atol=bound, equal_nan=True)


def _stacked(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.stack(tensors)


def _generator(device: str) -> torch.Generator:
    kind = torch.device(device)
    if kind.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if kind.index is None else kind.index
    return torch.cuda.default_generators[index]

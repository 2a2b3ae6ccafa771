"""The local steps of many clients, taken side by side."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn

from skfed.aggregation._scaffold import new_variate
from skfed.engines._batched import BatchedModule
from skfed.engines._chunks import Chunk
from skfed.engines._client import one_torch_thread
from skfed.engines._linear import BoundLinearStack, LinearStack
from skfed.engines._memory import Memory, MemoryPool
from skfed.engines._replies import TrainRequest, Updates, collect, sendable
from skfed.engines._worker_data import DataRef
from skfed.engines._workers import Work
from skfed.nets import NetPool, State
from skfed.utils._seeding import torch_seeded

Method = LinearStack | BatchedModule


def chunk_work(
    net_pool: NetPool,
    memory_pool: MemoryPool,
    method: Method,
    random: bool,
    request: TrainRequest,
    members: np.ndarray,
    names: Sequence,
    share: DataRef,
) -> Work:
    """Return the training of a chunk, as work whose process may die."""
    same = net_pool, memory_pool, method, random

    def apart() -> Iterator[Work]:
        alone = (np.array([i]) for i in range(len(members)) if len(members) > 1)
        return (
            chunk_work(*same, request.subset(i), members[i], names[i[0] :], share.part(i))
            for i in alone
        )

    def lost(error: Exception) -> list[Updates]:
        error.add_note(f"while training client {names[0]!r} in round {request.round}")
        return [Updates.of_failed(members, error)]

    return Work(train_chunk, (*same, request, members), share, apart, lost)


def train_chunk(
    net_pool: NetPool,
    memory_pool: MemoryPool,
    method: Method,
    random: bool,
    request: TrainRequest,
    members: np.ndarray,
    chunk: Chunk,
) -> list[Updates]:
    """Train some members of a cohort; ``request`` is for them alone.

    ``random`` says whether the module draws while it trains; then the generator of torch is held.
    Where that raises, each trains alone, so that only those that fail are left out.
    """
    same = net_pool, memory_pool, method, random
    try:
        return [_train(*same, request, members, chunk)]
    except MemoryError:
        raise
    except Exception as error:
        if len(members) > 1:
            positions = (np.array([i]) for i in range(len(members)))
            alone = (
                train_chunk(*same, request.subset(i), members[i], chunk.subset(i))
                for i in positions
            )
            return [updates for some in alone for updates in some]
        error = sendable(error)
        error.add_note(f"while training client {chunk.names[0]!r} in round {request.round}")
        return [Updates.of_failed(members, error)]


def _train(
    net_pool: NetPool,
    memory_pool: MemoryPool,
    method: Method,
    random: bool,
    request: TrainRequest,
    members: np.ndarray,
    chunk: Chunk,
) -> Updates:
    seeded = torch_seeded(chunk.layers_rng, net_pool.device) if random else nullcontext()
    net_and_memory = net_pool.borrowed(), memory_pool.borrowed()
    with net_and_memory[0] as net, net_and_memory[1] as memory, seeded, one_torch_thread():
        stack = Stack(net, method, request, chunk, memory)
        losses, rates = _take_steps(stack, request.training.rates, chunk, memory)
        return collect(
            replace(request, state=stack.state),
            members,
            stack.whole,
            losses,
            chunk.sizes.sum(axis=0),
            stack.variates(request, rates),
        )


@torch.no_grad()
def _take_steps(
    stack: "Stack", rates: tuple[tuple[float, ...], ...] | None, chunk: Chunk, memory: Memory
) -> tuple[np.ndarray, np.ndarray]:
    """Take all steps; return each member's mean loss and the sum of its learning rates."""
    numbers, y = chunk.rows.prepare(chunk.numbers)
    batches = torch.from_numpy(chunk.sizes).to(y.device)
    weights = chunk.weights()
    # Nets with more than one parameter group are not stacked.
    rate = np.array([stack.rate if rates is None else rates[i][0] for i in chunk.iterations])
    losses = []
    for step, sizes in enumerate(chunk.sizes):
        n = np.count_nonzero(sizes)  # they come first
        width = sizes[:n].max()
        X = chunk.rows.take(numbers[step, :n, :width], memory)
        ragged = batches[step, :n] if sizes[:n].min() < width else None
        own = None if weights is None else weights[step, :n, :width]
        losses.append(stack.step(X, y[step, :n, :width], ragged, float(rate[step]), own))
    taken = chunk.sizes > 0
    sums = nn.utils.rnn.pad_sequence(losses, batch_first=True).double().sum(0).cpu().numpy()
    return sums / taken.sum(0), (taken * rate[:, None]).sum(0)


class Stack:
    """The models of some clients along a leading axis, with one optimizer for all of them.

    Parameters
    ----------
    net : NeuralNet
        Whose module, criterion and optimizer they are.
    method : LinearStack or BatchedModule
        How losses and gradients are had.
    request : TrainRequest
        What the server asks of these members.
    chunk : Chunk
        Who they are.
    memory : Memory
        Where the models are; valid until it is used again.

    Attributes
    ----------
    whole : dict of str to Tensor
        The models of all members, those included that train no more.
    """

    def __init__(
        self,
        net: NeuralNet,
        method: Method,
        request: TrainRequest,
        chunk: Chunk,
        memory: Memory,
    ):
        n_members = len(chunk.names)
        self.net, self.method = net, method
        self.state = {name: tensor.to(net.device) for name, tensor in request.state.items()}
        self.whole = {
            name: memory.empty(name, (n_members, *w.shape), w.dtype, w.device).copy_(w)
            for name, w in self.state.items()
        }
        # Those who still train. They share the memory of the whole.
        self.params = {_short(name): self.whole[name].detach() for name in request.parameters}
        self.buffers = {
            _short(name): tensor.detach()
            for name, tensor in self.whole.items()
            if name not in request.parameters
        }
        self.shifts = _stacked(request.corrections, self.state, request.parameters)
        self.mu = request.training.proximal_mu
        self.rate = float(net.optimizer_.param_groups[0]["lr"])
        self.optimizer = None if self._is_plain() else _optimizer(net, self.params)
        self.n_training = n_members
        self.bound = method.bind(net, self.params, self.buffers)
        net._set_training(True)

    def step(
        self,
        X: torch.Tensor,
        y: torch.Tensor,
        sizes: torch.Tensor | None,
        rate: float,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        """Take one step of the first len(X) members, and return their losses before it."""
        if len(X) < self.n_training:
            self._keep(len(X))
        if self.optimizer is None and isinstance(self.bound, BoundLinearStack):
            return self.bound.descend(X, y, sizes, rate, weights)
        losses, grads = self.bound.gradients(X, y, sizes, weights)
        for name, parameter in self.params.items():
            parameter.grad = self._corrected(name, grads[name])
        assert self.optimizer is not None
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        return losses

    def variates(self, request: TrainRequest, rates: np.ndarray) -> list[State | None]:
        """Return SCAFFOLD's new c_k of all members, given the sums of their learning rates."""
        if request.corrections is None:
            return [None] * len(rates)
        result = []
        for i, (rate, correction) in enumerate(zip(rates, request.corrections, strict=True)):
            trained = {name: self.whole[name][i].cpu() for name in request.parameters}
            distances = dict.fromkeys(trained, float(rate))
            result.append(new_variate(request.state, trained, correction, distances))
        return result

    def _is_plain(self) -> bool:
        """Whether a step is w - lr * gradient, which needs no optimizer."""
        group = self.net.optimizer_.param_groups[0]
        others = ("momentum", "weight_decay", "maximize")
        return (
            isinstance(self.method, LinearStack)
            and type(self.net.optimizer_) is torch.optim.SGD
            and not any(group[name] for name in others)
            and not self.mu
            and not self.shifts
        )

    def _corrected(self, name: str, grad: torch.Tensor) -> torch.Tensor:
        """Add mu (w - w_t) and SCAFFOLD's c - c_k."""
        if self.mu:
            grad = grad + self.mu * (self.params[name] - self.state[f"module.{name}"])
        if name in self.shifts:
            grad = grad + self.shifts[name][: len(grad)]
        return grad

    def _keep(self, n: int) -> None:
        """Leave out those who have taken their last step: theirs is not to be moved any more."""
        for tensor in [*self.params.values(), *self.buffers.values()]:
            state: dict[str, Any] = self.optimizer.state[tensor] if self.optimizer else {}
            for key, value in state.items():
                if torch.is_tensor(value) and value.shape == tensor.shape:
                    state[key] = value[:n]
            tensor.grad = None
            tensor.data = tensor.data[:n]
        self.n_training = n
        self.bound = self.method.bind(self.net, self.params, self.buffers)


def _optimizer(net: NeuralNet, params: State) -> torch.optim.Optimizer:
    """Set up the net's optimizer for stacked parameters; it acts on each element by itself."""
    _, options = net.get_params_for_optimizer("optimizer", net.module_.named_parameters())
    group = net.optimizer_.param_groups[0] | {"params": list(params.values())}
    return type(net.optimizer_)([group], **options)


def _stacked(corrections: Sequence[State] | None, state: State, parameters: Sequence[str]) -> State:
    """Stack SCAFFOLD's corrections; those that are missing are zero."""
    if not corrections or not any(corrections):
        return {}
    return {
        _short(name): torch.stack(
            [c[name].to(w.device) if name in c else torch.zeros_like(w) for c in corrections]
        )
        for name in parameters
        for w in [state[name]]
    }


def _short(name: str) -> str:
    """Return the name of a tensor inside the module."""
    return name.removeprefix("module.")

"""The local steps of many clients, taken side by side."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch.nn.utils.rnn import pad_sequence

from skfed.aggregation._scaffold import new_variate
from skfed.engines._data import Dataset, Memory, MemoryPool
from skfed.engines._linear import BoundLinearStack, LinearStack
from skfed.engines._loop import one_torch_thread
from skfed.engines._replies import Updates, collect
from skfed.engines._requests import TrainRequest
from skfed.engines._sampling import Minibatches
from skfed.engines._vmap import BatchedModule
from skfed.engines._workers import Load
from skfed.nets import NetPool, State
from skfed.utils._seeding import torch_seeded

Method = LinearStack | BatchedModule

#: The optimizers that the stacked engine takes. It runs one of them on the stacked parameters of
#: many clients. To add one, name its class here and in ``OPTIMIZERS`` of tests/engines/families.py,
#: whose tests compare it with the loop. It must update each element of a parameter by that element
#: alone (no norm of a parameter or a layer, no closure), and keep state of the parameter's shape or
#: the same for all clients, such as the number of steps.
STACKABLE_OPTIMIZERS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)


@dataclass(frozen=True, kw_only=True)
class ChunkTraining:
    """The training of some members of a cohort side by side (a ``Work``).

    Parameters
    ----------
    net_pool, memory_pool
        Copies of the net, and memory for the members' states.
    method : LinearStack or BatchedModule
        How losses and gradients are computed.
    random : bool
        Whether the module draws random numbers in training; torch's generator is locked then.
    request : TrainRequest
        For these members alone.
    members : ndarray of shape (n_members,)
        Their positions in the cohort, those with most steps first.
    clients, names
        The client of each member, and its id.
    draws : sequence of callable
        Each returns the minibatches of a member.
    layers_rng : numpy.random.Generator
        For random layers.
    """

    net_pool: NetPool
    memory_pool: MemoryPool
    method: Method
    random: bool
    request: TrainRequest
    members: np.ndarray
    clients: Sequence[int]
    names: tuple
    draws: Sequence[Callable[[], Minibatches]]
    layers_rng: np.random.Generator

    def run(self, load: Load) -> list[Updates]:
        """Take all steps, and collect what the aggregator needs."""
        request, chunk = self.request, make_chunk(self.draws, *load(self.clients))
        device = self.net_pool.device
        with (
            self.net_pool.borrowed() as net,
            self.memory_pool.borrowed() as memory,
            torch_seeded(self.layers_rng, device) if self.random else nullcontext(),
            one_torch_thread(),
        ):
            stack = Stack(net, self.method, request, len(self.members), memory)
            rates = stack.rates(request, chunk.iterations)
            losses = []
            with torch.no_grad():
                for rate, batch in zip(rates.tolist(), chunk.batches(memory), strict=True):
                    stack.keep_first(len(batch[0]))
                    losses.append(stack.step(*batch, rate))
                sums = pad_sequence(losses, batch_first=True).double().sum(0).cpu().numpy()
            taken = chunk.sizes > 0
            variates = stack.variates(request, (taken * rates[:, None]).sum(0))
            updates = collect(
                replace(request, state=stack.state),
                self.members,
                stack.whole,
                sums / taken.sum(0),
                chunk.sizes.sum(axis=0),
                variates,
            )
        return [updates]

    def split(self) -> Sequence["ChunkTraining"]:
        """Return the training of each member alone."""
        if len(self.members) == 1:
            return ()
        return [
            replace(
                self,
                request=self.request.subset(np.array([i])),
                members=self.members[[i]],
                clients=[self.clients[i]],
                names=self.names[i : i + 1],
                draws=[self.draws[i]],
            )
            for i in range(len(self.members))
        ]

    def failed(self, error: Exception) -> list[Updates]:
        """Return the update of a member that failed."""
        error.add_note(f"while training client {self.names[0]!r} in round {self.request.round}")
        return [Updates.of_failed(self.members, error)]


@dataclass(frozen=True)
class Chunk:
    """The minibatches of some members of a cohort, those with most steps first.

    Parameters
    ----------
    dataset : Dataset
        The rows of all clients.
    rows : ndarray of shape (n_steps, n_members, batch_size)
        Row numbers of each step.
    sizes : ndarray of shape (n_steps, n_members)
        Rows of each step; 0 after a member's last. Beyond them ``rows`` repeats a row of the
        member, which is not used.
    iterations : ndarray of shape (n_steps,)
        The local iteration of each step of the first member.
    """

    dataset: Dataset
    rows: np.ndarray
    sizes: np.ndarray
    iterations: np.ndarray

    def batches(
        self, memory: Memory
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]]:
        """Yield X, y, sizes (None: all rows are used) and weights of the members of each step."""
        rows, y = self.dataset.prepare(self.rows)
        sizes = torch.from_numpy(self.sizes).to(y.device)
        weights = self._weights()
        for step, n_rows in enumerate(self.sizes):
            n = np.count_nonzero(n_rows)  # they come first
            width = n_rows[:n].max()
            X = self.dataset.take(rows[step, :n, :width], memory)
            ragged = sizes[step, :n] if n_rows[:n].min() < width else None
            own = None if weights is None else weights[step, :n, :width]
            yield X, y[step, :n, :width], ragged, own

    def _weights(self) -> torch.Tensor | None:
        """Return the weights of the rows of all steps, if they have any; 0 for rows not used."""
        weights = self.dataset.weigh(self.rows)
        if weights is None:
            return None
        used = np.arange(self.rows.shape[2]) < self.sizes[..., None]
        return weights * torch.from_numpy(used).to(weights.device)


def make_chunk(
    draws: Sequence[Callable[[], Minibatches]], dataset: Dataset, rows: Sequence[np.ndarray]
) -> Chunk:
    """Lay the minibatches of some members side by side, given the row numbers of each."""
    batches = [draw() for draw in draws]
    n_steps = max(len(b.sizes) for b in batches)
    width = max(b.rows.shape[1] for b in batches)
    numbers = np.empty((n_steps, len(batches), width), dtype=np.intp)
    sizes = np.zeros((n_steps, len(batches)), dtype=np.intp)
    for i, (own, b) in enumerate(zip(rows, batches, strict=True)):
        numbers[:, i] = own[0]
        numbers[: len(b.sizes), i, : b.rows.shape[1]] = own[b.rows]
        sizes[: len(b.sizes), i] = b.sizes
    return Chunk(dataset, numbers, sizes, batches[0].iterations)


class Stack:
    """The states of some members along a leading axis, with one optimizer for all of them.

    Parameters
    ----------
    net : NeuralNet
        Whose module, criterion and optimizer are used.
    method : LinearStack or BatchedModule
        How losses and gradients are computed.
    request : TrainRequest
        For these members alone.
    n_members : int
        Their number.
    memory : Memory
        Where the states are; valid until it is used again.

    Attributes
    ----------
    whole : dict of str to Tensor
        The states of all members, with those that have taken their last step.
    """

    def __init__(
        self, net: NeuralNet, method: Method, request: TrainRequest, n_members: int, memory: Memory
    ):
        self.net, self.method = net, method
        self.state = {name: tensor.to(net.device) for name, tensor in request.state.items()}
        self.whole = {
            name: memory.empty(name, (n_members, *w.shape), w.dtype, w.device).copy_(w)
            for name, w in self.state.items()
        }
        # Those of members that still train; they share the memory of the whole.
        self.params = {_short(name): self.whole[name].detach() for name in request.parameters}
        self.buffers = {
            _short(name): tensor.detach()
            for name, tensor in self.whole.items()
            if name not in request.parameters
        }
        self.shifts = _stacked(request.corrections, self.state, request.parameters)
        self.mu = request.training.proximal_mu
        self.optimizer = None if self._is_plain() else _optimizer(net, self.params)
        self.n_training = n_members
        self._bind()
        net._set_training(True)

    def rates(self, request: TrainRequest, iterations: np.ndarray) -> np.ndarray:
        """Return the learning rate of each step; there is one parameter group."""
        rates = request.training.rates
        if rates is None:
            return np.full(len(iterations), float(self.net.optimizer_.param_groups[0]["lr"]))
        return np.array([rates[i][0] for i in iterations])

    @property
    def step(self) -> Callable[..., torch.Tensor]:
        """Take one step of the members that still train, and return their losses before it.

        A function of X, y, sizes and weights, as ``Chunk.batches`` yields them, and the learning
        rate.
        """
        if self.optimizer is None and isinstance(self.bound, BoundLinearStack):
            return self.bound.descend
        return self._optimize

    def keep_first(self, n: int) -> None:
        """Leave out all but the first n members: they have taken their last step."""
        if n == self.n_training:
            return
        for tensor in [*self.params.values(), *self.buffers.values()]:
            state: dict[str, Any] = self.optimizer.state[tensor] if self.optimizer else {}
            for key, value in state.items():
                if torch.is_tensor(value) and value.shape == tensor.shape:
                    state[key] = value[:n]
            tensor.grad = None
            tensor.data = tensor.data[:n]
        self.n_training = n
        self._bind()

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

    def _bind(self) -> None:
        """Bind the method to the tensors of the members that still train."""
        self.bound = self.method.bind(self.net, self.params, self.buffers)

    def _optimize(
        self,
        X: torch.Tensor,
        y: torch.Tensor,
        sizes: torch.Tensor | None,
        weights: torch.Tensor | None,
        rate: float,
    ) -> torch.Tensor:
        """Take one step by the optimizer."""
        losses, grads = self.bound.gradients(X, y, sizes, weights)
        for name, parameter in self.params.items():
            parameter.grad = self._corrected(name, grads[name])
        assert self.optimizer is not None
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        return losses

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

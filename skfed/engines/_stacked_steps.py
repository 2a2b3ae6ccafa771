"""The local steps of many clients, taken side by side."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet

from skfed.aggregation._scaffold import new_variate
from skfed.engines._batching import MinibatchDraws
from skfed.engines._chunk import Block, Chunk
from skfed.engines._local_terms import local_terms
from skfed.engines._memory import Memory, MemoryPool
from skfed.engines._replies import Updates, collect, merge, spread_of
from skfed.engines._requests import TrainRequest
from skfed.engines.products._cuda_graphs import GraphedMethod, StepGraphs
from skfed.engines.products._linear import BoundLayers, LinearLayers, RecordedCrossEntropy
from skfed.engines.products._vmap import BatchedModule, BoundModule
from skfed.engines.workers._work import Load, Work
from skfed.nets import NetPool, RowSquares, State, StepMeans, by_member, moved
from skfed.utils._seeding import torch_seeded
from skfed.utils._torch_context import deterministic_cudnn, one_torch_thread

Method = LinearLayers | BatchedModule

#: The optimizers that the stacked engine takes. It runs one of them on the stacked parameters of
#: many clients. To add one, name its class here and in ``OPTIMIZERS`` of tests/helpers/families.py,
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
    method : LinearLayers or BatchedModule
        How losses and gradients are computed.
    request : TrainRequest
        For these members alone.
    members : ndarray of shape (n_members,)
        Their positions in the cohort, those with most steps first.
    clients : sequence of int
        The client of each member.
    draws : MinibatchDraws
        Of the members.
    layers_rng : numpy.random.Generator or None
        For random layers, while torch's generator is locked; None without such layers.
    """

    net_pool: NetPool
    memory_pool: MemoryPool
    method: Method
    request: TrainRequest
    members: np.ndarray
    clients: Sequence[int]
    draws: MinibatchDraws
    layers_rng: np.random.Generator | None

    @property
    def cost(self) -> int:
        """The rows of all steps, those of the longest counted for each member."""
        return self.draws.n_rows_laid_out

    def run(self, load: Load) -> Updates:
        """Take all steps, and collect what the aggregator needs."""
        dataset, rows = load(self.clients)
        request, chunk = self.request, Chunk(dataset, *self.draws.side_by_side(rows))
        device = self.net_pool.device
        with (
            self.net_pool.borrowed() as net,
            self.memory_pool.borrowed() as memory,
            nullcontext() if self.layers_rng is None else torch_seeded(self.layers_rng, device),
            one_torch_thread(),
            deterministic_cudnn(device),
        ):
            graphs, method, squares = self._graphs(memory), self.method, None
            if "spread" in request.needs and isinstance(method, LinearLayers):
                squares = RowSquares(len(self.members))
                method = replace(method, loss=RecordedCrossEntropy(squares))
            stack = StackedStates(net, method, request, len(self.members), memory, graphs)
            rates = stack.rates(request, chunk.iterations)
            means = StepMeans(net, [len(own) for own in rows])
            of_steps = np.full(chunk.sizes.shape, np.nan)
            with torch.no_grad():
                for steps, block in chunk.blocks():
                    losses = stack.take_steps(block, rates[steps].tolist(), memory)
                    means.add(losses, block.targets.y, block.targets.sizes)
                    if squares is not None:
                        of_steps[steps, : losses.shape[1]] = losses.double().cpu()
            taken = chunk.sizes > 0
            variates = stack.variates(request, taken, rates)
            return collect(
                replace(request, state=stack.state),
                self.members,
                stack.sent_back,
                means.result(),
                chunk.sizes.sum(axis=0),
                variates,
                {} if squares is None else spread_of(of_steps, squares),
            )

    def _graphs(self, memory: Memory) -> StepGraphs | None:
        """Return what takes steps as CUDA graphs: on a GPU, where no layer draws random numbers."""
        on_gpu = torch.device(self.net_pool.device).type == "cuda"
        # A graph has one rate for all members, and records no losses of rows.
        is_plain = self.request.rate_factors is None and "spread" not in self.request.needs
        possible = self.layers_rng is None and is_plain
        return memory.graphs if on_gpu and possible else None

    def recover(self, run: Callable[[Work], Updates], error: Exception) -> Updates:
        """Train each member alone, with weights of its own; return the update of one that fails."""
        if len(self.members) == 1:
            return Updates.of_failed(self.members, error)
        each = (
            replace(
                self,
                request=self.request.subset(np.array([i])),
                members=self.members[[i]],
                clients=[self.clients[i]],
                draws=self.draws.subset([i]),
            )
            for i in range(len(self.members))
        )
        return reduce(partial(merge, self.request.aggregator), map(run, each))


class StackedStates:
    """The states of some members along a leading axis, with one optimizer for all of them.

    Parameters
    ----------
    net : NeuralNet
        Whose module, criterion and optimizer are used.
    method : LinearLayers or BatchedModule
        How losses and gradients are computed.
    request : TrainRequest
        For these members alone.
    n_members : int
        Their number.
    memory : Memory
        Where the states are; valid until it is used again.
    graphs : StepGraphs, default=None
        Takes the steps as CUDA graphs.

    Attributes
    ----------
    whole : dict of str to Tensor
        The states of all members, with those that have taken their last step.
    sent_back : dict of str to Tensor
        What they send back of them.
    """

    def __init__(
        self,
        net: NeuralNet,
        method: Method,
        request: TrainRequest,
        n_members: int,
        memory: Memory,
        graphs: StepGraphs | None = None,
    ):
        self.net, self.method, self.graphs = net, method, graphs
        self.state = {name: moved(w, net.device) for name, w in request.state.items()}
        self.whole = {
            name: memory.empty(name, (n_members, *w.shape), w.dtype, w.device).copy_(w)
            for name, w in self.state.items()
        }
        self.sent_back = {n: w for n, w in self.whole.items() if n not in request.fixed}
        # Those of members that still train; they share the memory of the whole.
        self.params: State = {}
        self.buffers: State = {}
        for name, tensor in self.whole.items():
            kind = self.params if name in request.parameters else self.buffers
            kind[_short(name)] = tensor.detach()
        self.terms = local_terms(request, net.device, stacked=True)
        self.max_norm = request.training.max_norm
        self.factors: torch.Tensor | None = None  # of the members' rates
        if request.rate_factors is not None:
            dtype = next(iter(self.params.values())).dtype
            self.factors = torch.from_numpy(request.rate_factors).to(net.device, dtype)
        self.optimizer = None if self._is_plain() else _optimizer(net, self.params)
        self.n_training = n_members
        self._bind()

    def rates(self, request: TrainRequest, iterations: np.ndarray) -> np.ndarray:
        """Return the learning rate of each step; there is one parameter group."""
        rates = request.training.rates
        if rates is None:
            return np.full(len(iterations), float(self.net.optimizer_.param_groups[0]["lr"]))
        return np.array([rates[i][0] for i in iterations])

    def take_steps(self, block: Block, rates: Sequence[float], memory: Memory) -> torch.Tensor:
        """Take steps by their learning rates; return the losses (step, member) before each."""
        self._keep_first(block.rows.shape[1])
        step: Callable[[Any, Any, float], torch.Tensor] = self._optimize
        if self.optimizer is None and not isinstance(self.bound, BoundModule):
            step = self.bound.descend if self.factors is None else self._descend_by_factors
        batches = block.dataset.batches(block.rows, memory)
        targets = self.bound.targets(block.targets)
        losses = []
        for X, target, rate in zip(batches, targets, rates, strict=True):
            losses.append(step(X, target, rate))
        return torch.stack(losses)

    def _keep_first(self, n: int) -> None:
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
        self.n_training, self.terms = n, self.terms.of_first(n)
        self._bind()

    def variates(
        self, request: TrainRequest, taken: np.ndarray, rates: np.ndarray
    ) -> list[State | None]:
        """Return SCAFFOLD's new c_k of all members, given which steps each took at which rate."""
        if request.corrections is None:
            return [None] * taken.shape[1]
        result = []
        sums = (taken * rates[:, None]).sum(0)
        if request.rate_factors is not None:
            sums = sums * request.rate_factors
        for i, (distance, correction) in enumerate(zip(sums, request.corrections, strict=True)):
            trained = {name: self.whole[name][i].cpu() for name in request.parameters}
            distances = dict.fromkeys(trained, float(distance))
            result.append(new_variate(request.state, trained, correction, distances))
        return result

    def _bind(self) -> None:
        """Bind the method to the tensors of the members that still train."""
        self.bound: BoundLayers | BoundModule | GraphedMethod
        self.bound = self.method.bind(self.net, self.params, self.buffers)
        if self.graphs is not None:
            used = [*self.params.values(), *self.buffers.values()]
            self.bound = GraphedMethod(self.bound, used, self.graphs)

    def _descend_by_factors(self, X: torch.Tensor, target: Any, rate: float) -> torch.Tensor:
        """Take one step of plain SGD, each member by a rate of its own."""
        assert self.factors is not None and isinstance(self.bound, BoundLayers)
        return self.bound.descend(X, target, rate * self.factors[: self.n_training, None, None])

    def _optimize(self, X: Any, target: Any, rate: float) -> torch.Tensor:
        """Take one step by the optimizer."""
        losses, grads = self.bound.gradients(X, target)
        grads = {
            name: self.terms.added(f"module.{name}", parameter, grads[name])
            for name, parameter in self.params.items()
        }
        scale = self._scale_of(grads)
        for name, parameter in self.params.items():
            grad = grads[name]
            parameter.grad = grad if scale is None else (by_member(grad) * scale).view_as(grad)
        assert self.optimizer is not None
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        return losses

    def _is_plain(self) -> bool:
        """Whether a step is w - lr * gradient, which needs no optimizer."""
        return (
            isinstance(self.method, LinearLayers)
            and _is_plain_sgd(self.net.optimizer_)
            and not self.terms
            and self.max_norm is None
        )

    def _scale_of(self, grads: State) -> torch.Tensor | None:
        """Return by what each member's gradients are multiplied, (n_members, 1), if by anything."""
        scale = None if self.factors is None else self.factors[: self.n_training, None]
        if self.max_norm is not None:
            squares = sum(by_member(grad).square().sum(1) for grad in grads.values())
            # As torch's clip_grad_norm_ has it, which the loop calls.
            clip = (self.max_norm / (torch.as_tensor(squares).sqrt() + 1e-6)).clamp(max=1.0)
            scale = clip[:, None] if scale is None else clip[:, None] * scale
        return scale


def _is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether a step is w - lr * gradient."""
    others = ("momentum", "weight_decay", "maximize")
    return type(optimizer) is torch.optim.SGD and not any(
        group[name] for group in optimizer.param_groups for name in others
    )


def _optimizer(net: NeuralNet, params: State) -> torch.optim.Optimizer:
    """Set up the net's optimizer for stacked parameters; it acts on each element by itself."""
    _, options = net.get_params_for_optimizer("optimizer", net.module_.named_parameters())
    group = net.optimizer_.param_groups[0] | {"params": list(params.values())}
    return type(net.optimizer_)([group], **options)


def _short(name: str) -> str:
    """Return the name of a tensor inside the module."""
    return name.removeprefix("module.")

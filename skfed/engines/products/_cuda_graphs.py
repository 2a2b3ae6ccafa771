"""Steps that a GPU takes as CUDA graphs.

A GPU computes a small step in less time than Python takes to launch its kernels one by one. A CUDA
graph launches all kernels of a step at once. It reads and writes the memory that it was recorded
with, so it is used again for tensors of the same addresses and shapes alone.
"""

import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Lock, local
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from skfed.engines.products._targets import Target
from skfed.nets import State
from skfed.utils._seeding import TORCH_GENERATOR

logger = logging.getLogger(__name__)

_CALLS_BEFORE = 2  # to record a step takes about as long as two steps
_MOST_COUNTED = 256  # calls that have no graph yet
_MOST_GRAPHS = 32
_MOST_BYTES = 2**28  # of what graphs return
_LARGEST_STEP = 2**26  # bytes; the kernels of larger steps take longer than their launches

# One graph is recorded at a time, on one stream, since cuBLAS keeps memory for each stream. None is
# launched meanwhile: in some versions of torch, launches look at its generator of random numbers.
_RECORDING = Lock()


class StepGraphs:
    """Calls functions of tensors; those that are called again and again, as CUDA graphs."""

    def __init__(self) -> None:
        # By functions, addresses and shapes, the last used at the end.
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._not_recordable: set[Hashable] = set()  # functions and shapes of targets
        self._stopped = False
        self._counts = _Counts()
        self._rate: torch.Tensor | None = None

    def run(
        self,
        function: Callable[..., Any],
        used: Sequence[torch.Tensor],
        X: Any,
        target: Target | torch.Tensor,
        *read_in_place: torch.Tensor,
    ) -> Any:
        """Return ``function(X, target, *read_in_place)``, valid until the next call.

        Parameters
        ----------
        function : callable
            It depends on its arguments and on what is at the addresses of ``used`` alone, and draws
            no random numbers.
        used : sequence of Tensor
            What it reads or writes beside its arguments.
        X : Tensor or dict of Tensor
            A graph reads it where it is.
        target : Target or Tensor
            A graph reads a copy.
        *read_in_place : Tensor
            A graph reads them where they are.
        """

        def call(target: Target | torch.Tensor) -> Any:
            return function(X, target, *read_in_place)

        kind = function.__qualname__, *map(_form, _parts(target))
        rows = tree_leaves(X)
        tensors = [*used, *rows, *read_in_place]
        key = kind, *[(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors]
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._graphs[key].launch(target)
        is_small = sum(tensor.nbytes for tensor in tensors) <= _LARGEST_STEP
        n_before = self._count(key)
        if n_before + 1 < _CALLS_BEFORE or not is_small or self._stopped:
            return call(target)
        if kind in self._not_recordable:
            return call(target)
        if n_before < _CALLS_BEFORE:
            return self._watched(call, target, kind, rows[0].device)
        return self._recorded(call, target, key)

    def rate_like(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return memory for a learning rate, the same in each call: one fit has one dtype."""
        if self._rate is None:
            self._rate = parameter.new_empty(())
        return self._rate

    def clear(self) -> None:
        """Forget all graphs, and with them the memory that they use."""
        self._graphs.clear()

    def close(self) -> None:
        """Forget all graphs; give their memory back, which torch keeps for graphs alone."""
        had_graphs = bool(self._graphs)
        self.clear()
        if had_graphs and not self._stopped:
            with _RECORDING:
                torch.cuda.empty_cache()

    def _count(self, key: Hashable) -> int:
        """Count a call; return how many of this thread came before."""
        n_calls = self._counts.n_calls
        n_before = n_calls.pop(key, 0)
        n_calls[key] = n_before + 1
        if len(n_calls) > _MOST_COUNTED:
            n_calls.popitem(last=False)
        return n_before

    def _watched(
        self,
        call: Callable[[Any], Any],
        target: Target | torch.Tensor,
        kind: Hashable,
        device: torch.device,
    ) -> Any:
        """Call, and find out whether a graph can do the same."""
        with _Watch(device) as watch:
            result = call(target)
        if watch.found is not None:
            if not self._not_recordable:
                logger.info("some steps are taken without CUDA graphs, because of %s", watch.found)
            self._not_recordable.add(kind)
        return result

    def _recorded(
        self, call: Callable[[Any], Any], target: Target | torch.Tensor, key: Hashable
    ) -> Any:
        """Record a graph and launch it; where that fails, call."""
        try:
            graph = _Graph(call, target, next(iter(self._graphs.values()), None))
        except RuntimeError as error:  # of memory, or of what the watch has not seen
            self._stopped = True
            cause = error.__context__ or error  # an error at the end of a recording hides its own
            logger.warning("steps are taken without CUDA graphs from now on: %s", cause)
            return call(target)
        self._graphs[key] = graph
        del self._counts.n_calls[key]  # if the graph is left out, it is not recorded at once again
        while len(self._graphs) > _MOST_GRAPHS or self._n_bytes() > _MOST_BYTES:
            self._graphs.popitem(last=False)
        return graph.launch(target)

    def _n_bytes(self) -> int:
        return sum(graph.n_bytes for graph in self._graphs.values())


class _Counts(local):
    """Calls of each thread that had no graph: its first makes what a recording may not make."""

    def __init__(self) -> None:
        self.n_calls: OrderedDict[Hashable, int] = OrderedDict()


class _Watch(TorchDispatchMode):
    """Notes an operation that no graph can have: one that waits for the GPU, or that copies.

    Attributes
    ----------
    found : OpOverload or None
        The last one.
    """

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device
        self.found: Any = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = filter(torch.is_tensor, tree_leaves((args, kwargs, result)))
        if (
            function is torch.ops.aten.lift_fresh.default  # a tensor made of Python's numbers
            or not _WAITS.isdisjoint(function.tags)
            or any(tensor.device != self.device for tensor in tensors)
        ):
            self.found = function
        return result


# What an operation returns has a shape, or is a number, that depends on values.
_WAITS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


class _Graph:
    """A call, recorded with a copy of its target.

    Memory that is needed during a launch alone is shared with another graph, if one is given.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        target: Target | torch.Tensor,
        shares_with: "_Graph | None",
    ):
        self.call = call  # keeps the memory that the graph uses
        self.target = _copied(target)
        self._record(shares_with)

    @property
    def n_bytes(self) -> int:
        """The bytes of the results, which are kept for the next launch."""
        return sum(tensor.nbytes for tensor in tree_leaves(self.result))

    def launch(self, target: Target | torch.Tensor) -> Any:
        """Return the result for another target."""
        for own, new in zip(_parts(self.target), _parts(target), strict=True):
            if own is not None and new is not None:
                own.copy_(new)
        return self._replay()

    def _record(self, shares_with: "_Graph | None") -> None:
        self.graph = torch.cuda.CUDAGraph()
        pool = None if shares_with is None else shares_with.graph.pool()
        device = self.target[0].device
        current, stream = torch.cuda.current_stream(device), _recording_stream(device)
        # No other thread draws random numbers meanwhile, or changes settings.
        with TORCH_GENERATOR, _RECORDING, _no_collection(), torch.cuda.stream(stream):
            stream.wait_stream(current)
            # Not by torch.cuda.graph, which gives back all free memory first.
            self.graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                self.result = self.call(self.target)
            finally:
                self.graph.capture_end()
            current.wait_stream(stream)

    def _replay(self) -> Any:
        with _RECORDING:
            self.graph.replay()
        return self.result


@contextmanager
def _no_collection() -> Iterator[None]:
    """Context manager without garbage collection, which may end another graph."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class GraphedMethod:
    """Losses, gradients and steps of plain SGD of some clients, as CUDA graphs.

    Parameters
    ----------
    bound : BoundLayers or BoundModule
        How they are computed; the latter takes no steps.
    used : sequence of Tensor
        The clients' parameters and buffers, a parameter first.
    graphs : StepGraphs
        Keeps the graphs.
    """

    def __init__(self, bound: Any, used: Sequence[torch.Tensor], graphs: StepGraphs):
        self.bound, self.used, self.graphs = bound, used, graphs
        self.rate = graphs.rate_like(used[0])
        self._last_rate: float | None = None

    def targets(self, steps: Target) -> Iterator[Any]:
        """Yield what the other methods need of each step."""
        return self.bound.targets(steps)

    def gradients(self, X: Any, target: Any) -> tuple[torch.Tensor, State]:
        """Return each client's mean loss, and gradients, which are valid until the next call."""
        losses, grads = self.graphs.run(self.bound.gradients, self.used, X, target)
        return losses.clone(), grads

    def descend(self, X: torch.Tensor, target: Any, rate: float) -> torch.Tensor:
        """Take a step of plain SGD in place; return the losses.

        Steps without a graph get the rate as a tensor too, so that they round alike.
        """
        if rate != self._last_rate:
            self.rate.fill_(rate)
            self._last_rate = rate
        return self.graphs.run(self.bound.descend, self.used, X, target, self.rate).clone()


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _parts(target: Target | torch.Tensor) -> Sequence[torch.Tensor | None]:
    return target if isinstance(target, Target) else [target]


def _form(part: torch.Tensor | None) -> Hashable:
    return None if part is None else (part.shape, part.dtype)


def _copied(target: Target | torch.Tensor) -> Target | torch.Tensor:
    if isinstance(target, torch.Tensor):
        return target.clone()
    y, sizes, weights = target
    return Target(
        y.clone(),
        None if sizes is None else sizes.clone(),
        None if weights is None else weights.clone(),
    )

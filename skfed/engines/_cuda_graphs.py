"""Steps that a GPU takes as CUDA graphs.

A GPU computes a small step in less time than Python takes to launch its kernels one by one. A CUDA
graph launches all kernels of a step at once. It reads and writes the memory that it was recorded
with, so it is used again for tensors of the same addresses and shapes alone.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from threading import Lock
from typing import Any

import torch

from skfed.engines._targets import Target
from skfed.nets import State

logger = logging.getLogger(__name__)

_CALLS_BEFORE = 2  # to record a step takes about as long as two steps
_MOST_CALLS = 32  # that are remembered, with their graphs
_LARGEST_STEP = 64 * 2**20  # bytes; the kernels of larger steps take longer than their launches

_RECORDING = Lock()  # one at a time, on one stream: cuBLAS keeps memory for each stream


class StepGraphs:
    """Calls functions of tensors; those that are called again and again, as CUDA graphs."""

    def __init__(self) -> None:
        self._calls: OrderedDict[Hashable, int | _Graph] = OrderedDict()  # how many, or a graph
        self._not_recordable: set[Hashable] = set()

    def run(
        self,
        function: Callable[..., Any],
        used: Sequence[torch.Tensor],
        X: torch.Tensor,
        target: Target | torch.Tensor,
        *others: torch.Tensor,
    ) -> Any:
        """Return ``function(X, target, *others)``, valid until the next call.

        Parameters
        ----------
        function : callable
            It depends on its arguments and on what is at the addresses of ``used`` alone, and draws
            no random numbers.
        used : sequence of Tensor
            What it reads or writes beside its arguments.
        X : Tensor
            A graph reads it where it is.
        target : Target or Tensor
            A graph reads a copy.
        *others : Tensor
            A graph reads them where they are.
        """

        def call(target: Target | torch.Tensor) -> Any:
            return function(X, target, *others)

        kind = function.__qualname__, *map(_form, _parts(target))
        tensors = [*used, X, *others]
        key = kind, *[(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors]
        found = self._calls.pop(key, 0)
        if isinstance(found, int):
            n_bytes = sum(tensor.nbytes for tensor in tensors)
            found = self._recorded(call, target, kind, n_bytes, found) or found + 1
        self._calls[key] = found
        if len(self._calls) > _MOST_CALLS:
            self._calls.popitem(last=False)
        return call(target) if isinstance(found, int) else found.launch(target)

    def clear(self) -> None:
        """Forget all graphs: memory that they use is given back."""
        self._calls.clear()

    def _recorded(
        self,
        call: Callable[[Any], Any],
        target: Target | torch.Tensor,
        kind: Hashable,
        n_bytes: int,
        n_calls: int,
    ) -> "_Graph | None":
        """Return a graph of a call, if it has come before, is small and can be recorded."""
        if n_calls < _CALLS_BEFORE or n_bytes > _LARGEST_STEP or kind in self._not_recordable:
            return None
        graphs = (one for one in self._calls.values() if isinstance(one, _Graph))
        try:
            return _Graph(call, target, next(graphs, None))
        except RuntimeError as error:  # such as of an operation that waits for the GPU
            if not self._not_recordable:
                logger.info("some steps are taken without CUDA graphs: %s", error)
            self._not_recordable.add(kind)
            return None


class _Graph:
    """A call, recorded with a copy of its target.

    Memory that is needed during a launch alone is shared with another graph, if one is given.
    """

    def __init__(
        self, call: Callable[[Any], Any], target: Target | torch.Tensor, other: "_Graph | None"
    ):
        self.call = call  # keeps the memory that the graph uses
        self.target = _copied(target)
        self._record(other)

    def launch(self, target: Target | torch.Tensor) -> Any:
        """Return the result for another target."""
        for own, new in zip(_parts(self.target), _parts(target), strict=True):
            if own is not None and new is not None:
                own.copy_(new)
        return self._replay()

    def _record(self, other: "_Graph | None") -> None:
        self.graph = torch.cuda.CUDAGraph()
        pool = None if other is None else other.graph.pool()
        device = self.target[0].device
        current, stream = torch.cuda.current_stream(device), _recording_stream(device)
        with _RECORDING, torch.cuda.stream(stream):
            stream.wait_stream(current)
            # Not by torch.cuda.graph, which gives back all free memory first.
            self.graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                self.result = self.call(self.target)
            finally:
                self.graph.capture_end()
            current.wait_stream(stream)

    def _replay(self) -> Any:
        self.graph.replay()
        return self.result


class GraphedMethod:
    """Losses, gradients and steps of plain SGD of some clients, as CUDA graphs.

    Parameters
    ----------
    bound : BoundLinearStack or BoundModule
        How they are computed; the latter takes no steps.
    used : sequence of Tensor
        The clients' parameters and buffers.
    rate : Tensor of shape ()
        Memory for the learning rate; valid until it is used again.
    graphs : StepGraphs
        Keeps the graphs.
    """

    def __init__(
        self, bound: Any, used: Sequence[torch.Tensor], rate: torch.Tensor, graphs: StepGraphs
    ):
        self.bound, self.used, self.rate, self.graphs = bound, used, rate, graphs
        self._last_rate: float | None = None

    def targets(self, steps: Target) -> Iterator[Any]:
        """Yield what the other methods need of each step."""
        return self.bound.targets(steps)

    def gradients(self, X: torch.Tensor, target: Any) -> tuple[torch.Tensor, State]:
        """Return each client's mean loss, and gradients, which are valid until the next call."""
        losses, grads = self.graphs.run(self.bound.gradients, self.used, X, target)
        return losses.clone(), grads

    def descend(self, X: torch.Tensor, target: Any, rate: float) -> torch.Tensor:
        """Take a step of plain SGD in place; return the losses."""
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

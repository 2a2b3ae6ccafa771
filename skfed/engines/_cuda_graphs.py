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
        *numbers: float,
    ) -> Any:
        """Return ``function(X, target, *numbers)``, valid until the next call.

        Parameters
        ----------
        function : callable
            It depends on its arguments and on what is at the addresses of ``used`` alone, and draws
            no random numbers. It gets numbers as tensors, in the dtype of X.
        used : sequence of Tensor
            What it reads or writes beside its arguments.
        X : Tensor
            A graph reads it where it is.
        target : Target or Tensor
            A graph reads a copy.
        *numbers : float
            Such as a learning rate.
        """
        kind = function.__qualname__, tuple(map(_form, _parts(target)))
        tensors = [*used, X]
        key = kind, *[(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors]
        found = self._calls.pop(key, 0)
        if isinstance(found, int):
            found = self._recorded(function, kind, tensors, target, numbers, found)
        self._calls[key] = found
        if len(self._calls) > _MOST_CALLS:
            self._calls.popitem(last=False)
        if isinstance(found, int):
            return function(X, target, *_as_tensors(numbers, X))
        return found.launch(target, numbers)

    def clear(self) -> None:
        """Forget all graphs: memory that they use is given back."""
        self._calls.clear()

    def _recorded(
        self,
        function: Callable[..., Any],
        kind: Hashable,
        tensors: list[torch.Tensor],
        target: Target | torch.Tensor,
        numbers: Sequence[float],
        n_calls: int,
    ) -> "int | _Graph":
        """Return a graph of a function after so many calls, or the number of calls with this."""
        too_large = sum(tensor.nbytes for tensor in tensors) > _LARGEST_STEP
        if n_calls < _CALLS_BEFORE or too_large or kind in self._not_recordable:
            return n_calls + 1
        graphs = (one for one in self._calls.values() if isinstance(one, _Graph))
        try:
            return _Graph(function, tensors[-1], target, numbers, next(graphs, None))
        except RuntimeError as error:  # such as of an operation that waits for the GPU
            if not self._not_recordable:
                logger.info("some steps are taken without CUDA graphs: %s", error)
            self._not_recordable.add(kind)
            return n_calls + 1


class _Graph:
    """A function, recorded with X, and with copies of a target and of numbers.

    Memory that is needed during a launch alone is shared with another graph, if one is given.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        X: torch.Tensor,
        target: Target | torch.Tensor,
        numbers: Sequence[float],
        other: "_Graph | None",
    ):
        self.function, self.X = function, X  # kept, since the graph uses their memory
        self.target = _copied(target)
        self.numbers, self.tensors = numbers, _as_tensors(numbers, X)
        self._record(other)

    def launch(self, target: Target | torch.Tensor, numbers: Sequence[float]) -> Any:
        """Return the result for another target and numbers."""
        for own, new in zip(_parts(self.target), _parts(target), strict=True):
            if own is not None and new is not None:
                own.copy_(new)
        if numbers != self.numbers:
            for tensor, number in zip(self.tensors, numbers, strict=True):
                tensor.fill_(number)
            self.numbers = numbers
        return self._replay()

    def _record(self, other: "_Graph | None") -> None:
        self.graph = torch.cuda.CUDAGraph()
        pool = None if other is None else other.graph.pool()
        device = self.X.device
        current, stream = torch.cuda.current_stream(device), _recording_stream(device)
        with _RECORDING, torch.cuda.stream(stream):
            stream.wait_stream(current)
            # Not by torch.cuda.graph, which gives back all free memory first.
            self.graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                self.result = self.function(self.X, self.target, *self.tensors)
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
    graphs : StepGraphs
        Keeps the graphs.
    """

    def __init__(self, bound: Any, used: Sequence[torch.Tensor], graphs: StepGraphs):
        self.bound, self.used, self.graphs = bound, used, graphs

    def targets(self, steps: Target) -> Iterator[Any]:
        """Yield what the other methods need of each step."""
        return self.bound.targets(steps)

    def gradients(self, X: torch.Tensor, target: Any) -> tuple[torch.Tensor, State]:
        """Return each client's mean loss, and gradients, which are valid until the next call."""
        losses, grads = self.graphs.run(self.bound.gradients, self.used, X, target)
        return losses.clone(), grads

    def descend(self, X: torch.Tensor, target: Any, rate: float) -> torch.Tensor:
        """Take a step of plain SGD in place; return the losses."""
        return self.graphs.run(self.bound.descend, self.used, X, target, rate).clone()


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


def _as_tensors(numbers: Sequence[float], X: torch.Tensor) -> list[torch.Tensor]:
    return [torch.full((), number, dtype=X.dtype, device=X.device) for number in numbers]

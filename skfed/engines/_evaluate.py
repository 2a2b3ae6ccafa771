"""Polls by the stacked engine: all clients have the same state, so one product takes many."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import torch
from skorch import NeuralNet

from skfed.engines._batching import Positions, take_positions
from skfed.engines._memory import MemoryPool
from skfed.engines.products._evaluated_layers import EvaluatedLayers
from skfed.engines.workers._work import Load, Work
from skfed.nets import NetPool, State, as_inferred, call_module, moved, set_state
from skfed.selection._poll_metrics import Batches
from skfed.utils._products import PRODUCTS
from skfed.utils._torch_context import deterministic_cudnn, one_torch_thread


@dataclass(frozen=True, kw_only=True)
class BatchEvaluation:
    """The evaluation of a state on batches of some clients, side by side (a ``Work``).

    Parameters
    ----------
    net_pool, memory_pool
        Copies of the net, and memory for X.
    state : dict of str to Tensor
        What is evaluated.
    batch_sums : callable
        That of a ``PollMetric``.
    clients : sequence of int
        The client of each batch.
    positions : sequence of (range or ndarray of int)
        The rows of each batch, as positions among those of its client.
    layers : EvaluatedLayers or None
        What computes the outputs; None: the net's module.
    product_rows : int
        Rows of a product.
    most_rows : int
        Rows of the largest product of the whole poll, or more; see ``EvaluatedLayers.output``.
    """

    net_pool: NetPool
    memory_pool: MemoryPool
    state: State
    batch_sums: Callable[[Batches], np.ndarray]
    clients: Sequence[int]
    positions: Sequence[Positions]
    layers: EvaluatedLayers | None
    product_rows: int
    most_rows: int

    @property
    def cost(self) -> int:
        """The number of rows."""
        return sum(map(len, self.positions))

    def run(self, load: Load) -> list[tuple[float, Exception | None]]:
        """Return the sum of the metric over the rows of each batch, by their weights."""
        dataset, rows = load(self.clients)
        numbers = np.concatenate(list(map(take_positions, rows, self.positions)))
        ends = np.cumsum([len(positions) for positions in self.positions])
        with (
            self.net_pool.borrowed() as net,
            self.memory_pool.borrowed() as memory,
            one_torch_thread(),
            deterministic_cudnn(self.net_pool.device),
            torch.no_grad(),
        ):
            prepared, y = dataset.prepare(numbers)
            parts = (
                dataset.take(prepared[start:end], memory)
                for start, end in cut_into_products(len(numbers), self.product_rows)
            )
            batches = Batches(net, y, self._outputs(net, parts), dataset.weigh(numbers), ends)
            return [(value, None) for value in self.batch_sums(batches).tolist()]

    def _outputs(self, net: NeuralNet, parts: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return the module's output for rows of X; each part is valid until the next is taken.

        The criterion, and the module if it is called, are put into evaluation mode.
        """
        if self.layers is not None:
            net.criterion_.eval()
            state = {name: moved(w, net.device) for name, w in self.state.items()}
            return torch.cat([self.layers.output(state, X, self.most_rows) for X in parts])
        net._set_training(False)
        set_state(net, self.state)
        with PRODUCTS.evaluating(net.module_, self.most_rows):
            # Copied, since an output may be a view of X, whose memory the next part uses.
            return torch.cat([as_inferred(net, call_module(net.module_, X)).clone() for X in parts])

    def recover(
        self, run: Callable[[Work], list], error: Exception
    ) -> list[tuple[float, Exception | None]]:
        """Evaluate each batch alone; return the sum of one that has failed alone."""
        if len(self.clients) == 1:
            return [(np.nan, error)]
        pairs = zip(self.clients, self.positions, strict=True)
        each = (replace(self, clients=[k], positions=[rows]) for k, rows in pairs)
        return list(chain.from_iterable(map(run, each)))


def cut_into_products(n_rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ends of products of ``size`` rows; the last has the rest as well.

    A product of a few rows would round otherwise than one of all.
    """
    return pairwise([0, *range(size, n_rows - size + 1, size), n_rows])


def cut_into_batches(
    polled: Iterable[Positions], batch_size: int
) -> Iterator[tuple[int, Positions]]:
    """Yield batches of at most ``batch_size`` rows (-1: all), and which client of ``polled``."""
    for i, positions in enumerate(polled):
        size = len(positions) if batch_size == -1 else batch_size
        for start in range(0, len(positions), size):
            yield i, positions[start : start + size]


def group_batches(
    batches: Iterable[tuple[int, Positions]], limit: int
) -> Iterator[list[tuple[int, Positions]]]:
    """Group batches, in their order, into works of at most ``limit`` rows, or of one batch."""
    group: list[tuple[int, Positions]] = []
    n_rows = 0
    for i, positions in batches:
        if group and n_rows + len(positions) > limit:
            yield group
            group, n_rows = [], 0
        group.append((i, positions))
        n_rows += len(positions)
    if group:
        yield group

"""The stacked engine: many clients trained and evaluated as one batch.

Its results are those of the loop engine, up to the rounding of products: the same minibatches, the
same steps. Small models leave a machine idle when clients are trained one by one, since most of a
step is then the dispatch of its operations.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add
from typing import Any

import numpy as np
import torch
from torch import nn

from skfed.engines._batching import (
    Batching,
    Positions,
    enumerate_copies,
    take_positions,
)
from skfed.engines._combinations import CombinationsEvaluation, CombinedLayers, evaluate_each
from skfed.engines._data import Dataset
from skfed.engines._evaluate import BatchEvaluation, cut_into_batches, group_batches
from skfed.engines._loop import evaluate_one_by_one, trainings_one_by_one
from skfed.engines._memory import MemoryPool
from skfed.engines._replies import Evaluation, Updates, kept_updates, merge
from skfed.engines._requests import (
    CombinationsRequest,
    EvaluateRequest,
    SketchRequest,
    TrainRequest,
)
from skfed.engines._sketch import sketch_clients
from skfed.engines._stacked_steps import ChunkTraining, Method
from skfed.engines.products._evaluated_layers import EvaluatedLayers
from skfed.engines.products._linear import CrossEntropy, LinearLayers
from skfed.engines.workers._tasks import balanced_tree, consecutive_tree
from skfed.engines.workers._workers import Workers
from skfed.nets import NetPool, batch_weight
from skfed.selection._poll_metrics import POLL_METRICS, Batches, PollMetric, metric_of
from skfed.utils._seeding import Purpose, stream


@dataclass(frozen=True)
class Plan:
    """How a net's clients are stacked; made by ``skfed.engines._choose``.

    Parameters
    ----------
    method : LinearLayers or BatchedModule
        How losses and gradients are computed.
    evaluated_layers : EvaluatedLayers or None
        What evaluates the module if ``method`` is a LinearLayers; None: the module itself.
    random : bool
        Whether the module draws random numbers in training.
    rowwise : bool
        Whether the criterion is the plain mean of cross-entropies.
    evaluation_batch : int
        Rows of a batch of evaluation; -1 means all.
    predicts_by_outputs : bool
        Whether the outputs of a row tell the prediction, of a classifier.
    weighing : Module or None
        The criterion, if its mean has weights by class.
    model_bytes, state_bytes, row_bytes : int
        Memory of a model, of the optimizer's state for it, and of a row with its activations.
    """

    method: Method
    evaluated_layers: EvaluatedLayers | None
    random: bool
    rowwise: bool
    evaluation_batch: int
    predicts_by_outputs: bool
    weighing: nn.Module | None
    model_bytes: int
    state_bytes: int
    row_bytes: int


@dataclass
class StackedEngine:
    """Train and evaluate the clients of a federation side by side.

    Parameters
    ----------
    net_pool : NetPool
        Copies of the net.
    dataset : Dataset
        The rows of all clients.
    batching : Batching
        The rows that clients use, and their random streams.
    plan : Plan
        How clients are stacked.
    memory_budget : int
        Bytes that stacked models and activations may fill, of each job.
    workers : Workers
        Where chunks of clients are trained and evaluated.
    """

    net_pool: NetPool
    dataset: Dataset
    batching: Batching
    plan: Plan
    memory_budget: int
    workers: Workers
    memory_pool: MemoryPool = field(default_factory=MemoryPool)
    clients_add_noise: bool = field(default=False, init=False)
    measures_time: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.data = self.workers.client_data(
            self.dataset, self.batching.federation, self.memory_budget
        )

    def close(self) -> None:
        """End the workers, and remove what was made for them."""
        self.workers.close()
        self.data.close()
        self.memory_pool.close()

    def train(self, request: TrainRequest) -> Updates:
        """Train a cohort; a client that is listed twice trains twice."""
        join = partial(merge, request.aggregator)
        # A callback may have frozen parameters since the method was chosen.
        is_stackable = list(request.parameters) == self.net_pool.trained
        if "spread" in request.needs and not self._records_rows:
            is_stackable = False
        works: list[Any] = (
            list(self._trainings(request))
            if is_stackable
            else list(trainings_one_by_one(self.net_pool, self.batching, request))
        )
        return self.workers.run(works, balanced_tree, join, self.data)

    @property
    def _records_rows(self) -> bool:
        """Whether stacked clients record the losses of their rows."""
        method = self.plan.method
        return isinstance(method, LinearLayers) and type(method.loss) is CrossEntropy

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Evaluate the request's metric on each client's rows."""
        metric = metric_of(request.metric)
        batch_sums = self._batch_sums(metric)
        if batch_sums is None:
            return evaluate_one_by_one(
                self.net_pool, self.data, self.batching, self.workers, request
            )
        t, clients = request.round, request.clients
        if not len(clients):
            return Evaluation(np.zeros(0), np.zeros(0, dtype=int))
        polled = self.batching.polled(t, clients, request.max_samples)
        batches = list(cut_into_batches(polled, self._evaluation_batch()))
        works = [
            BatchEvaluation(state=request.state, layers=self.plan.evaluated_layers, **common)
            for common in self._grouped(batch_sums, clients, batches, self._evaluation_limit())
        ]
        return self._evaluation(t, clients, metric, polled, batches, works)

    def evaluate_combinations(self, request: CombinationsRequest) -> Evaluation:
        """Evaluate the request's metric of each combination on all rows of each client."""
        t, clients, metric = request.round, request.clients, POLL_METRICS[request.metric]
        batch_sums = self._batch_sums(metric)
        layers = CombinedLayers.of(self.plan.evaluated_layers, request)
        n_samples = self.batching.n_polled(clients, None)
        if batch_sums is None or layers is None or not n_samples.size:
            return evaluate_each(request, self.evaluate, n_samples)
        row_bytes = self.plan.row_bytes
        # Half of the budget is for rows and their products, half for outputs of combinations.
        stored = 2 * (row_bytes + 2 * layers.first_bytes)
        limit = self._limit(row_bytes, stored)
        # A sum over rows is the same however they are cut.
        is_sum = self.plan.rowwise or self.plan.evaluation_batch > 0
        largest = limit if is_sum else int(n_samples.max())
        if largest > limit and largest * stored > self.memory_budget:
            return evaluate_each(request, self.evaluate, n_samples)
        polled = self.batching.polled(t, clients, None)
        batches = list(cut_into_batches(polled, limit if is_sum else -1))
        n_rows = min(int(n_samples.sum()), max(largest, limit))  # of a work, or more
        combination_bytes = layers.combination_bytes(n_rows)
        n_together = self._limit(combination_bytes, 2 * combination_bytes)
        works = [
            CombinationsEvaluation(layers=layers, n_together=n_together, **common)
            for common in self._grouped(batch_sums, clients, batches, limit)
        ]
        return self._evaluation(t, clients, metric, polled, batches, works)

    def _batch_sums(self, metric: PollMetric) -> Callable[[Batches], np.ndarray] | None:
        """Return what sums a metric over batches, given the net's outputs; None: nothing."""
        by_outputs = self.plan.predicts_by_outputs or not metric.by_prediction
        return metric.batch_sums if by_outputs else None

    def _evaluation(
        self,
        t: int,
        clients: np.ndarray,
        metric: PollMetric,
        polled: Sequence[Positions],
        batches: Sequence[tuple[int, Positions]],
        works: Sequence[Any],
    ) -> Evaluation:
        """Return the replies of clients, given the works that evaluate their batches."""
        results = self.workers.run(works, consecutive_tree, add, self.data)
        owners = np.array([i for i, _ in batches])
        values = np.array([value for value, _ in results])
        sums = np.zeros((len(clients), *values.shape[1:]))
        np.add.at(sums, owners, values)
        raised = {int(owners[b]): e for b, (_, e) in enumerate(results) if e is not None}
        for i, error in raised.items():
            error.add_note(f"while polling {self.batching.name(clients[i], t)}")
        n_samples = np.array([len(rows) for rows in polled])
        totals = self._totals(metric, clients, polled)
        return Evaluation((sums.T / totals).T, n_samples, raised)

    def upload(
        self, request: TrainRequest, parts: Sequence[tuple[np.ndarray, Any]], members: np.ndarray
    ) -> Updates:
        """Return the updates of some members that have trained."""
        return kept_updates(parts, members)

    def sketch(self, request: SketchRequest) -> tuple[Evaluation, np.ndarray]:
        """Project the gradient of each client, one by one."""
        return sketch_clients(self.net_pool, self.data, self.batching, self.workers, request)

    def _grouped(
        self,
        batch_sums: Callable[[Batches], np.ndarray],
        clients: np.ndarray,
        batches: list[tuple[int, Positions]],
        limit: int,
    ) -> Iterator[dict[str, Any]]:
        """Yield what the works that evaluate batches have in common; ``limit`` rows are one's."""
        n_rows = sum(len(positions) for _, positions in batches)
        product_rows = self._product_rows(limit)
        for group in group_batches(batches, limit):
            yield {
                "net_pool": self.net_pool,
                "memory_pool": self.memory_pool,
                "batch_sums": batch_sums,
                "clients": [int(clients[i]) for i, _ in group],
                "positions": [positions for _, positions in group],
                "product_rows": product_rows,
                # The last product has fewer than twice as many.
                "most_rows": min(n_rows, 2 * product_rows),
            }

    def _totals(
        self, metric: PollMetric, clients: np.ndarray, polled: Sequence[Positions]
    ) -> np.ndarray:
        """Return the sum of the weights of each client's polled rows."""
        weights, criterion = self.dataset.weights, self.plan.weighing
        by_criterion = metric.by_criterion and criterion is not None
        if weights is None and not by_criterion:
            return np.array([len(rows) for rows in polled])
        rows = map(take_positions, map(self.batching.federation.rows, clients), polled)
        if weights is None:
            y = self.dataset.y
            totals = [batch_weight(criterion, torch.from_numpy(y[own])) for own in rows]
            return np.where(totals, totals, np.nan)  # there is no loss where no row counts
        totals = [weights[own].sum() for own in rows]
        return np.where(totals, totals, 1.0)

    def _evaluation_limit(self) -> int:
        """Return the rows of a work of evaluation."""
        return self._limit(self.plan.row_bytes, self.plan.row_bytes)

    def _product_rows(self, limit: int) -> int:
        """Return the rows of a product of a poll, given those of a work.

        On a CPU a quarter of the limit, so that X is still in the cache when it is multiplied, in
        multiples of 16, which fill registers: each row is rounded as in a product of all.
        """
        return max(16, limit // 64 * 16) if self.dataset.device.type == "cpu" else limit

    @property
    def validation_rows(self) -> int | None:
        """Rows of a batch of validation: what fits, where the loss is a mean over rows."""
        return self._evaluation_limit() if self.plan.rowwise else None

    def _evaluation_batch(self) -> int:
        """Return the rows of a batch of evaluation."""
        size, limit = self.plan.evaluation_batch, self._evaluation_limit()
        # A sum over rows is the same however they are cut.
        return limit if self.plan.rowwise and not 0 < size <= limit else size

    def _trainings(self, request: TrainRequest) -> Iterator[ChunkTraining]:
        """Yield the training of a cohort, chunk by chunk."""
        batching, t, training = self.batching, request.round, request.training
        copies = list(enumerate_copies(request.cohort.clients.tolist()))
        minibatches = batching.minibatches_of_many(training, t, copies)
        for members in self._cut(request):
            chosen = [copies[i] for i in members]
            yield ChunkTraining(
                net_pool=self.net_pool,
                memory_pool=self.memory_pool,
                method=self.plan.method,
                request=request.subset(members),
                members=members,
                clients=[k for k, _ in chosen],
                draws=minibatches.subset(members),
                # A chunk's random layers have draws of their own, since its cut is its own.
                layers_rng=(
                    stream(*batching.training_key(Purpose.RANDOM_LAYERS, training, t, *chosen[0]))
                    if self.plan.random
                    else None
                ),
            )

    def _cut(self, request: TrainRequest) -> list[np.ndarray]:
        """Cut a cohort into chunks; return the members of each."""
        clients, training = request.cohort.clients, request.training
        largest = int(self.batching.federation.sizes[clients].max())
        # Where the rate changes with the epoch, clients of a chunk change epochs together.
        alike = training.steps is None and len(set(training.rates or ())) > 1
        # Row numbers, of 8 bytes, are laid out for the longest of a chunk; they get a quarter.
        max_steps = self.memory_budget // (4 * 8 * int(self.batching.rows_a_step(largest)))
        n_steps = self.batching.n_steps(training, clients)
        return cut(n_steps, self._clients_a_chunk(largest), alike, max_steps)

    def _clients_a_chunk(self, largest: int) -> int:
        """Return the most clients of a chunk, given the rows of the largest."""
        model = self.plan.model_bytes
        data = int(self.batching.rows_a_step(largest)) * self.plan.row_bytes
        # Beside a model there may be its gradient, a copy with other terms added, and SCAFFOLD's
        # correction; beside each activation its gradient.
        return self._limit(model + data, 4 * model + self.plan.state_bytes + 2 * data)

    def _limit(self, cached: int, stored: int) -> int:
        """Return how many fit, given the bytes of each in a step's cache and in memory."""
        limit = self.memory_budget // stored
        if self.dataset.device.type == "cpu":
            limit = min(limit, self.plan.method.cache_bytes // cached)
        return max(1, limit)


def cut(n_steps: np.ndarray, limit: int, alike: bool, max_steps: int) -> list[np.ndarray]:
    """Cut a cohort into chunks of at most ``limit`` members, of much the same size.

    The cut depends on the cohort and the memory budget alone, not on n_jobs, the backend or free
    memory, since the rounding of a product depends on its shape.

    Parameters
    ----------
    n_steps : ndarray of shape (n_members,)
        Local steps of each member.
    limit : int
        Largest chunk.
    alike : bool
        Whether all members of a chunk must have the same number of steps.
    max_steps : int
        Most steps of a chunk, those of the longest counted for each member; one member may have
        more.

    Returns
    -------
    list of ndarray of int
        Positions in the cohort, those with most steps first.
    """
    order = np.argsort(-n_steps, kind="stable")
    groups = [order]
    if alike:
        groups = np.split(order, np.flatnonzero(np.diff(n_steps[order])) + 1)
    n_chunks = _even_number if len(groups) == 1 else _smallest_number
    parts = [
        part
        for group in groups
        if len(group)
        for part in np.array_split(group, n_chunks(len(group), limit))
    ]
    return [piece for part in parts for piece in _short_enough(part, n_steps, max_steps)]


def _smallest_number(n_members: int, limit: int) -> int:
    """Return how many chunks of at most ``limit`` members there are at least."""
    return -(-n_members // limit)


def _even_number(n_members: int, limit: int) -> int:
    """Return 1 for half a chunk or less, else an even number: two jobs have the same to do."""
    if 2 * n_members <= limit:
        return 1
    return min(n_members, 2 * _smallest_number(n_members, 2 * limit))


def _short_enough(part: np.ndarray, n_steps: np.ndarray, max_steps: int) -> list[np.ndarray]:
    """Halve a chunk until the steps laid out for it are few enough."""
    if len(part) == 1 or len(part) * n_steps[part[0]] <= max_steps:
        return [part]
    halves = np.array_split(part, 2)
    return [piece for half in halves for piece in _short_enough(half, n_steps, max_steps)]

"""The stacked engine: many clients trained and polled as one batch.

What it computes is what the loop engine computes, up to the rounding of its products: the same
minibatches, the same steps. Small models leave a machine idle when clients are served one by one,
since most of a step is then the dispatch of its operations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from skfed.engines._chunks import cut, make_chunk
from skfed.engines._data import Rows
from skfed.engines._evaluate import cut_polls, poll_work
from skfed.engines._memory import MemoryPool
from skfed.engines._minibatches import count_steps
from skfed.engines._replies import EvaluateRequest, Evaluation, LocalTraining, TrainRequest, Updates
from skfed.engines._sampling import Draws, Polled, chosen, enumerate_copies
from skfed.engines._stack import Method, chunk_work
from skfed.engines._worker_data import ClientRows, DataRef
from skfed.engines._workers import Work, Workers
from skfed.nets import NetPool
from skfed.utils._seeding import Purpose


@dataclass(frozen=True)
class Plan:
    """How a net's clients are stacked; see ``skfed.engines._choose``.

    Parameters
    ----------
    method : LinearStack or BatchedModule
        How losses and gradients are had.
    random : bool
        Whether the module draws while it trains.
    rowwise : bool
        Whether the criterion is the plain mean of cross-entropies.
    evaluation_batch : int
        Rows of a batch of evaluation; -1 means all.
    model_bytes, state_bytes, row_bytes : int
        Memory of a model, of what the optimizer remembers of it, and of a row with its
        activations.
    """

    method: Method
    random: bool
    rowwise: bool
    evaluation_batch: int
    model_bytes: int
    state_bytes: int
    row_bytes: int


@dataclass
class StackedEngine:
    """Train and poll the clients of a federation side by side.

    Parameters
    ----------
    net_pool : NetPool
        The net that does the work.
    rows : Rows
        The data.
    draws : Draws
        Who holds which rows, and the streams.
    plan : Plan
        How clients are stacked.
    memory_budget : int
        Bytes that stacked models and activations may fill, of each job.
    workers : Workers
        Who serves chunks of clients.
    """

    net_pool: NetPool
    rows: Rows
    draws: Draws
    plan: Plan
    memory_budget: int
    workers: Workers
    memory_pool: MemoryPool = field(default_factory=MemoryPool)
    clients_add_noise: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.held = ClientRows(
            self.rows, self.draws.federation, self.memory_budget, self.workers.n_workers
        )

    def train(self, request: TrainRequest) -> Iterator[Updates]:
        """Train a cohort; a client that stands twice trains twice, afresh."""
        return self.workers.side_by_side(self._works(request))

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Let clients say their mean loss and error; bounds are for the round to keep."""
        t, clients, state = request.round, request.clients, request.state
        if not len(clients):
            return Evaluation(np.zeros(0), np.zeros(0, dtype=int))
        asked = [self.draws.polled(t, k, request.max_samples) for k in clients]
        limit = self._limit(self.plan.row_bytes, self.plan.row_bytes)
        size = self.plan.evaluation_batch
        if self.plan.rowwise and not 0 < size <= limit:
            size = limit  # its sums are the same however they are cut
        polls, owners = cut_polls(self.held, clients.tolist(), asked, size, limit)
        same = self.net_pool, self.memory_pool, state, self.plan.rowwise
        answers = list(self.workers.side_by_side(poll_work(*same, *poll) for poll in polls))
        n_samples = np.array([len(polled) for polled in asked])
        totals = n_samples if self.rows.weights is None else self._totals(clients, asked)
        column = ("loss", "error").index(request.metric)
        sums = np.bincount(owners, weights=[a[column] for a in answers])
        raised = {int(owners[b]): a[2] for b, a in enumerate(answers) if a[2] is not None}
        for i, error in raised.items():
            error.add_note(f"while polling {self.draws.name(clients[i], t)}")
        return Evaluation(sums / totals, n_samples, raised)

    def _totals(self, clients: np.ndarray, asked: Sequence[Polled]) -> np.ndarray:
        """Return the weight of the rows asked of each client; 1 where there is none to divide by.

        Then the sums are 0 too.
        """
        assert self.rows.weights is not None
        mine = map(self.draws.federation.rows, clients)
        pairs = zip(mine, asked, strict=True)
        totals = np.array([self.rows.weights[chosen(*pair)].sum() for pair in pairs])
        return np.where(totals > 0, totals, 1.0)

    def _works(self, request: TrainRequest) -> Iterator[Work]:
        """Yield the training of a cohort, chunk by chunk."""
        training, drawn = request.training, list(enumerate_copies(request.cohort.clients))
        same = self.net_pool, self.memory_pool, self.plan.method, self.plan.random
        for members in self._cut(training, [k for k, _ in drawn]):
            mine = [drawn[i] for i in members]
            names = self.draws.federation.names([k for k, _ in mine])
            share = self._share(request, names, mine)
            yield chunk_work(*same, request.subset(members), members, names, share)

    def _cut(self, training: LocalTraining, clients: list[int]) -> list[np.ndarray]:
        """Cut a cohort into chunks."""
        held = [self.draws.federation.size(k) for k in clients]
        steps = [self._n_steps(n, training) for n in held]
        # Where the rate changes with the epoch, clients of a chunk change epochs together.
        alike = training.steps is None and len(set(training.rates or ())) > 1
        largest = max(held, default=1)
        limit = self._clients_a_chunk(largest)
        # Row numbers, of 8 bytes, are laid out for the longest of a chunk; they get a quarter.
        max_steps = self.memory_budget // (4 * 8 * self.draws.rows_a_step(largest))
        return cut(np.array(steps, dtype=int), limit, alike, max_steps)

    def _share(
        self, request: TrainRequest, names: tuple, members: list[tuple[int, int]]
    ) -> DataRef:
        """Return what makes a chunk of its members' rows."""
        training, t = request.training, request.round
        draws = [self.draws.minibatches(training, t, k, copy) for k, copy in members]
        # The draws of a chunk's random layers are its own, since its cut is.
        layers_rng = self.draws.stream(Purpose.RANDOM_LAYERS, t, *members[0])
        make = partial(make_chunk, names, draws, layers_rng)
        return DataRef(self.held, [k for k, _ in members], make)

    def _n_steps(self, n_samples: int, training: LocalTraining) -> int:
        size = self.draws.rows_a_step(n_samples)
        return count_steps(n_samples, size, training.epochs, training.steps)

    def _clients_a_chunk(self, largest: int) -> int:
        model = self.plan.model_bytes
        data = self.draws.rows_a_step(largest) * self.plan.row_bytes
        # Beside a model there may be its gradient, a copy with other terms added, and SCAFFOLD's
        # correction; beside each activation its gradient.
        return self._limit(model + data, 4 * model + self.plan.state_bytes + 2 * data)

    def _limit(self, touched: int, held: int) -> int:
        """Return how many fit, of what a step touches in cache and holds in memory."""
        limit = self.memory_budget // held
        if self.rows.device.type == "cpu":
            limit = min(limit, self.plan.method.cache_bytes // touched)
        return max(1, limit)

"""The reference engine: skorch, client by client.

Each client starts from the global state with a fresh optimizer and takes the wrapped net's own
train steps. Every faster engine is checked against this one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from skorch import NeuralNet
from skorch.callbacks import GradientNormClipping

from skfed.aggregation._scaffold import new_variate
from skfed.aggregation._tensors import changed_names
from skfed.engines._batching import (
    Batching,
    Minibatches,
    Positions,
    enumerate_copies,
    take_positions,
)
from skfed.engines._combinations import evaluate_each
from skfed.engines._local_terms import local_terms
from skfed.engines._replies import Evaluation, Updates, collect, kept_updates, merge, spread_of
from skfed.engines._requests import (
    CombinationsRequest,
    EvaluateRequest,
    SketchRequest,
    TrainRequest,
)
from skfed.engines._sketch import sketch_clients
from skfed.engines.workers._net_cost import FORWARD, STEP, NetCost
from skfed.engines.workers._tasks import balanced_tree, consecutive_tree
from skfed.engines.workers._work import Load, Work
from skfed.engines.workers._worker_data import ClientData
from skfed.engines.workers._workers import Workers
from skfed.nets import (
    NetPool,
    RowSquares,
    Samples,
    State,
    StepMeans,
    add_to_gradients,
    evaluate_net,
    evaluated_channels_last,
    final_predictions,
    get_state,
    group_of_parameters,
    has_labels,
    moved,
    pool_before_relu,
    rows_recorded,
    select_rows,
    set_trained,
    tells_rows,
    to_tensors,
    weighed,
    without_idle_steps,
)
from skfed.selection._poll_metrics import PollMetric, metric_of
from skfed.utils._seeding import Purpose, StreamKey, torch_seeded
from skfed.utils._torch_context import deterministic_cudnn, one_torch_thread

Rates = tuple[float, ...]  # learning rates, one for each parameter group


@dataclass
class LoopEngine:
    """Train and evaluate the clients of a federation, one after the other or through joblib.

    Parameters
    ----------
    net_pool : NetPool
        Copies of the net.
    data : ClientData
        The rows, in the dtype of the module, in the memory of the CPU.
    batching : Batching
        The rows that clients use, and their random streams.
    workers : Workers
        Where clients are trained and evaluated.
    net_cost : NetCost or None, default=None
        What a pass through the net costs, if small polls and trainings are to be done in this
        thread.
    """

    net_pool: NetPool
    data: ClientData
    batching: Batching
    workers: Workers
    net_cost: NetCost | None = None
    this_thread: Workers = field(default_factory=partial(Workers, 1), init=False)
    clients_add_noise: bool = field(default=False, init=False)
    measures_time: bool = field(default=False, init=False)
    validation_rows: int | None = field(default=None, init=False)

    def close(self) -> None:
        """End the workers, and remove what was made for them."""
        self.workers.close()
        self.data.close()

    def train(self, request: TrainRequest) -> Updates:
        """Train each client from the same state; one that is listed twice trains twice."""
        clients, join = request.cohort.clients, partial(merge, request.aggregator)
        n_steps = self.batching.n_steps(request.training, clients)
        n_rows = self.batching.n_trained(request.training, clients)
        workers = self._workers(STEP, len(clients) + n_steps.sum(), n_rows.sum())
        return workers.run(list(self.trainings(request)), balanced_tree, join, self.data)

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Evaluate the request's metric on each client's rows."""
        n_rows = self.batching.n_polled(request.clients, request.max_samples)
        workers = self._workers(FORWARD, len(request.clients), n_rows.sum())
        return evaluate_one_by_one(self.net_pool, self.data, self.batching, workers, request)

    def evaluate_combinations(self, request: CombinationsRequest) -> Evaluation:
        """Evaluate the state of each combination as a poll on all rows does."""
        n_samples = self.batching.n_polled(request.clients, None)
        return evaluate_each(request, self.evaluate, n_samples)

    def upload(
        self, request: TrainRequest, parts: Sequence[tuple[np.ndarray, Any]], members: np.ndarray
    ) -> Updates:
        """Return the updates of some members that have trained."""
        return kept_updates(parts, members)

    def sketch(self, request: SketchRequest) -> tuple[Evaluation, np.ndarray]:
        """Project the gradient of each client."""
        return sketch_clients(self.net_pool, self.data, self.batching, self.workers, request)

    def _workers(self, n_passes: int, n_calls: int, n_rows: int) -> Workers:
        """Return the workers for a poll or training: this thread where it is too small for them."""
        if self.net_cost is None:
            return self.workers
        seconds = self.net_cost.seconds(n_passes, n_calls, n_rows)
        worth_it = self.net_cost.is_worth_sharing(seconds, self.workers.n_workers)
        return self.workers if worth_it else self.this_thread

    def trainings(self, request: TrainRequest) -> Iterator["ClientTraining"]:
        """Yield the training of each member of a cohort."""
        return trainings_one_by_one(self.net_pool, self.batching, request)


def trainings_one_by_one(
    net_pool: NetPool, batching: Batching, request: TrainRequest
) -> Iterator["ClientTraining"]:
    """Yield the training of each member of a cohort."""
    t, training, clients = request.round, request.training, request.cohort.clients
    n_rows = batching.n_trained(training, clients).tolist()
    for i, (k, copy) in enumerate(enumerate_copies(clients)):
        member = np.array([i])
        yield ClientTraining(
            net_pool=net_pool,
            request=request.subset(member),
            member=member,
            clients=[k],
            cost=n_rows[i],
            draw=batching.minibatches(training, t, k, copy),
            layers_key=batching.training_key(Purpose.RANDOM_LAYERS, training, t, k, copy),
        )


class Trained(NamedTuple):
    """The result of one member's training; arrays and tensors have a leading axis of length 1."""

    stack: State  # w_k
    losses: np.ndarray  # the mean over its local steps
    n_samples: np.ndarray  # rows seen
    variate: State | None  # SCAFFOLD's new c_k
    spread: Mapping[str, np.ndarray] = {}  # of its losses, if it is needed


@dataclass(frozen=True, kw_only=True)
class ClientTraining:
    """The training of one member of a cohort (a ``Work``)."""

    net_pool: NetPool
    request: TrainRequest  # for this member alone
    member: np.ndarray  # its position in the cohort
    clients: Sequence[int]
    cost: int  # rows used in the local steps
    draw: Callable[[], Minibatches]
    layers_key: StreamKey  # a generator's pickle is large and slow

    def run(self, load: Load) -> Updates:
        """Train, and collect what the aggregator needs."""
        own = self.train(load)
        variates = [own.variate]
        return collect(
            *(self.request, self.member, own.stack, own.losses, own.n_samples, variates),
            spread=own.spread,
        )

    def recover(self, run: Callable[[Work], Updates], error: Exception) -> Updates:
        """Return the update of a client that failed."""
        return Updates.of_failed(self.member, error)

    def train(self, load: Load) -> Trained:
        """Train with a fresh optimizer."""
        request, training = self.request, self.request.training
        correction = None if request.corrections is None else request.corrections[0]
        with self.net_pool.for_client(request.state, self.layers_key) as net:
            set_trained(net, request.parameters)
            pool_before_relu(net)  # stacked clients train slower with it
            net.initialize_optimizer()
            net.history.clear()
            with (
                _corrected(net, request),
                _clipped(net, training.max_norm),
                without_idle_steps(getattr(net, "criterion_", None)),
            ):
                loss, rates, n_samples, spread = self._take_steps(net, load)
            trained = self._sent_back(get_state(net))
            variate = None
            if correction is not None:
                own = {name: trained[name] for name in request.parameters}
                variate = new_variate(request.state, own, correction, _distances(net, rates))
            stack = {name: tensor.unsqueeze(0) for name, tensor in trained.items()}
            return Trained(stack, np.array([loss]), np.array([n_samples]), variate, spread)

    def _sent_back(self, state: State) -> State:
        """Return the state without what training leaves alone, which it must have done."""
        request = self.request
        fixed = {name: w for name, w in request.state.items() if name in request.fixed}
        for name in changed_names(fixed, {name: state[name][None] for name in fixed}):
            raise RuntimeError(
                f"training has changed {name}, which has no gradient, and which a pass of the "
                "module in training mode leaves alone, so that clients do not send it: let the "
                "module change it in each such pass, or keep it as it is."
            )
        return {name: w for name, w in state.items() if name not in request.fixed}

    def _take_steps(
        self, net: NeuralNet, load: Load
    ) -> tuple[float, list[Rates], int, dict[str, np.ndarray]]:
        """Take the local steps.

        Return the training loss, the rates of each step, the rows seen, and the spread of losses.
        """
        dataset, (own,) = load(self.clients)
        rates_of_steps, factors = self.request.training.rates, self.request.rate_factors
        factor = 1.0 if factors is None else float(factors[0])
        X, y = to_tensors(net, dataset.X[own], dataset.y[own])
        weights = dataset.weigh(own)
        if weights is not None:
            weights = moved(weights, y.device)
        net.notify("on_train_begin", X=X, y=y)
        net.notify("on_epoch_begin", dataset_train=None, dataset_valid=None)
        losses, rates, n_samples = [], [], 0
        means = StepMeans(net, [len(own)])
        is_spread = "spread" in self.request.needs
        squares = RowSquares(1) if is_spread and tells_rows(net) else None
        for iteration, positions in self.draw():
            rates.append(_set_rates(net, rates_of_steps, iteration, factor))
            rows = torch.from_numpy(positions).to(y.device)
            of_rows = None if weights is None else weights[rows]
            with weighed(net, of_rows), rows_recorded(net, squares, of_rows):
                batch = select_rows(X, rows), y.index_select(0, rows)
                losses.append(_train_step(net, batch))
            if not means.alike:
                means.add(torch.tensor([losses[-1:]], dtype=torch.double), batch[1][None, None])
            n_samples += len(rows)
        loss = float(np.mean(losses)) if means.alike else means.result().item()
        spread = spread_of(np.array(losses)[:, None], squares) if is_spread else {}
        return loss, rates, n_samples, spread


@dataclass(frozen=True, kw_only=True)
class ClientEvaluation:
    """The evaluation of a state on one client's rows (a ``Work``)."""

    net_pool: NetPool
    state: State
    metric: PollMetric
    clients: Sequence[int]
    positions: Positions
    layers_key: StreamKey

    @property
    def cost(self) -> int:
        """The number of rows."""
        return len(self.positions)

    def run(self, load: Load) -> list[tuple[float, Exception | None]]:
        """Return the metric's value."""
        dataset, (own,) = load(self.clients)
        rows = take_positions(own, self.positions)
        with self.net_pool.for_client(self.state, self.layers_key) as net:
            value = self.metric.value(net, dataset.X[rows], dataset.y[rows], dataset.weigh(rows))
            return [(value, None)]

    def recover(
        self, run: Callable[[Work], list], error: Exception
    ) -> list[tuple[float, Exception | None]]:
        """Return the value of a client that failed."""
        return [(np.nan, error)]


def evaluate_one_by_one(
    net_pool: NetPool,
    data: ClientData,
    batching: Batching,
    workers: Workers,
    request: EvaluateRequest,
) -> Evaluation:
    """Evaluate any metric, client by client."""
    t, clients = request.round, request.clients
    polled = batching.polled(t, clients, request.max_samples)
    works = [
        ClientEvaluation(
            net_pool=net_pool,
            state=request.state,
            metric=metric_of(request.metric),
            clients=[k],
            positions=positions,
            layers_key=batching.key(Purpose.EVALUATION_LAYERS, t, k),
        )
        for k, positions in zip(clients, polled, strict=True)
    ]
    results = workers.run(works, consecutive_tree, add, data) if works else []
    raised = {i: error for i, (_, error) in enumerate(results) if error is not None}
    for i, error in raised.items():
        error.add_note(f"while polling {batching.name(clients[i], t)}")
    values = np.array([value for value, _ in results], dtype=float)
    return Evaluation(values, np.array([len(rows) for rows in polled], dtype=int), raised)


def evaluate(
    net: NeuralNet,
    X: Samples,
    y: np.ndarray,
    rng: np.random.Generator,
    n_rows: int | None = None,
) -> tuple[float, np.ndarray]:
    """Return the loss and the predictions of a net as it stands; ``rng`` is for its layers.

    Batches have ``n_rows``; see ``Evaluator.validation_rows``.
    """
    with (
        torch_seeded(rng, net.device),
        one_torch_thread(),
        deterministic_cudnn(net.device),
        evaluated_channels_last(net, X),
    ):
        loss, outputs = evaluate_net(net, X, y, n_rows=n_rows)
        return loss, final_predictions(net, outputs.cpu(), X, has_labels(y))


def _train_step(net: NeuralNet, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Take one step as skorch's own loop takes it, batch-level callbacks included."""
    net.notify("on_batch_begin", batch=batch, training=True)
    step = net.train_step(batch)
    loss = step["loss"].item()
    net.history.record_batch("train_loss", loss)
    net.history.record_batch("train_batch_size", len(batch[1]))
    net.notify("on_batch_end", batch=batch, training=True, **step)
    return loss


def _set_rates(
    net: NeuralNet, rates: Sequence[Rates] | None, iteration: int, factor: float
) -> Rates:
    """Set the learning rate of each parameter group in an iteration, and return them."""
    groups = net.optimizer_.param_groups
    if rates is not None:
        for group, rate in zip(groups, rates[iteration], strict=True):
            group["lr"] = rate * factor
    return tuple(float(group["lr"]) for group in groups)


def _distances(net: NeuralNet, rates: Sequence[Rates]) -> dict[str, float]:
    """Return the sum of the learning rates of each trained parameter, those of its group."""
    sums = np.sum(rates, axis=0)
    return {name: float(sums[group]) for name, group in group_of_parameters(net).items()}


@contextmanager
def _clipped(net: NeuralNet, max_norm: float | None) -> Iterator[None]:
    """Clip the norm of all gradients of a step together, after other terms were added."""
    if max_norm is None:
        yield
        return
    before = net.callbacks_
    net.callbacks_ = [*before, ("clip", GradientNormClipping(max_norm).initialize())]
    try:
        yield
    finally:
        net.callbacks_ = before


@contextmanager
def _corrected(net: NeuralNet, request: TrainRequest) -> Iterator[None]:
    """Add the terms of a request for one client to the gradients, where there are such terms."""
    terms = local_terms(request, net.device, stacked=False)
    undo = add_to_gradients(net, terms.added) if terms else lambda: None
    try:
        yield
    finally:
        undo()

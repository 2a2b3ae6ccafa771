"""Projections of the gradients of clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add

import numpy as np
import torch
from skorch import NeuralNet

from skfed.engines._batching import Batching
from skfed.engines._projection import project
from skfed.engines._replies import Evaluation
from skfed.engines._requests import SketchRequest
from skfed.engines.workers._tasks import consecutive_tree
from skfed.engines.workers._work import Load, Work
from skfed.engines.workers._worker_data import ClientData
from skfed.engines.workers._workers import Workers
from skfed.nets import (
    NetPool,
    Samples,
    State,
    averages_rows,
    batch_size,
    batch_weight,
    named_tensors,
    parameter_names,
    to_tensors,
    weighed,
    whole,
)
from skfed.selection._past import SKETCH_SIZE
from skfed.utils._seeding import Purpose, StreamKey


@dataclass(frozen=True, kw_only=True)
class ClientSketch:
    """The projection of the gradient of one client (a ``Work``)."""

    net_pool: NetPool
    state: State
    seed: int
    clients: Sequence[int]
    cost: int  # the number of rows
    layers_key: StreamKey

    def run(self, load: Load) -> list[tuple[np.ndarray, Exception | None]]:
        """Return the projection."""
        dataset, (own,) = load(self.clients)
        with self.net_pool.for_client(self.state, self.layers_key) as net:
            gradients = gradient_of(net, dataset.X[own], dataset.y[own], dataset.weigh(own))
            return [(project(gradients, self.seed), None)]

    def recover(
        self, run: Callable[[Work], list], error: Exception
    ) -> list[tuple[np.ndarray, Exception | None]]:
        """Return what there is of a client that failed."""
        return [(np.full(SKETCH_SIZE, np.nan), error)]


def sketch_clients(
    net_pool: NetPool,
    data: ClientData,
    batching: Batching,
    workers: Workers,
    request: SketchRequest,
) -> tuple[Evaluation, np.ndarray]:
    """Return the replies of clients, and their projections, of shape (n_clients, 64)."""
    t, clients = request.round, request.clients
    sizes = batching.federation.sizes[clients]
    works = [
        ClientSketch(
            net_pool=net_pool,
            state=request.state,
            seed=request.seed,
            clients=[k],
            cost=size,
            layers_key=batching.key(Purpose.EVALUATION_LAYERS, t, k),
        )
        for k, size in zip(clients.tolist(), sizes.tolist(), strict=True)
    ]
    results = workers.run(works, consecutive_tree, add, data) if works else []
    raised = {i: error for i, (_, error) in enumerate(results) if error is not None}
    for i, error in raised.items():
        error.add_note(f"while sketching {batching.name(clients[i], t)}")
    sketches = np.array([sketch for sketch, _ in results]).reshape(-1, SKETCH_SIZE)
    return Evaluation(sketches.sum(1), sizes, raised), sketches


def gradient_of(
    net: NeuralNet, X: Samples, y: np.ndarray, weights: torch.Tensor | None
) -> list[torch.Tensor]:
    """Return the gradient of the loss on all rows, of each trained tensor.

    Random layers are as in evaluation. Where the loss is not known to be a mean over rows, the
    criterion gets all rows at once.
    """
    net._set_training(False)
    tensors = named_tensors(net)
    trained = [tensors[name] for name in parameter_names(net)]  # of a criterion too
    for one in trained:
        one.grad = None
    is_mean = weights is not None or averages_rows(net)
    size, total = whole(batch_size(net, "iterator_valid"), len(y)) if is_mean else len(y), 0.0
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        batch_X, batch_y = to_tensors(net, X[rows], y[rows])
        own = None if weights is None else weights[rows]
        share = batch_weight(net.criterion_, batch_y) if own is None else own.sum().item()
        if share:  # of a batch in which no row counts the loss is NaN
            with weighed(net, own):
                loss = net.get_loss(net.infer(batch_X), batch_y, X=batch_X, training=False)
            (loss * share).backward()
            total += share
    return [
        torch.zeros_like(one) if one.grad is None else one.grad.to_dense() / max(total, 1e-300)
        for one in trained
    ]

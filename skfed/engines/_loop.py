"""The reference engine: skorch, client by client.

Each client starts from the global model with a fresh optimizer and takes the wrapped net's own
train steps. Every faster engine is checked against this one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from skfed.engines._client import evaluate_client, make_task, train_client
from skfed.engines._replies import EvaluateRequest, Evaluation, TrainRequest, Updates
from skfed.engines._sampling import Draws, Polled, enumerate_copies
from skfed.engines._worker_data import ClientRows, DataRef
from skfed.engines._workers import Work, Workers
from skfed.nets import NetPool
from skfed.utils._seeding import Purpose


@dataclass
class LoopEngine:
    """Train and poll the clients of a federation, one after the other or through joblib.

    Parameters
    ----------
    net_pool : NetPool
        The net that does the work.
    held : ClientRows
        The data, in the dtype of the module, in the memory of the CPU.
    draws : Draws
        Who holds which rows, and the streams.
    workers : Workers
        Who serves the clients.
    """

    net_pool: NetPool
    held: ClientRows
    draws: Draws
    workers: Workers
    clients_add_noise: bool = field(default=False, init=False)

    def train(self, request: TrainRequest) -> Iterator[Updates]:
        """Train each client from the same model; one that stands twice trains twice, afresh."""
        works = (
            Work(
                train_client,
                (self.net_pool, request.subset(member), member),
                share,
                tuple,
                partial(_lost, member, name),
            )
            for member, name, share in self.trainings(request)
        )
        return self.workers.side_by_side(works)

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Let clients say their mean loss and error; bounds are for the round to keep."""
        t, clients = request.round, request.clients
        asked = [self.draws.polled(t, k, request.max_samples) for k in clients]
        works = (
            Work(evaluate_client, (self.net_pool, request.state), share, tuple, _lost_answer)
            for share in self._polls(clients, t, asked)
        )
        answers = list(self.workers.side_by_side(works))
        values = np.array([answer[:2] for answer in answers], float).reshape(-1, 2)
        raised = {i: error for i, (*_, error) in enumerate(answers) if error is not None}
        n_samples = np.array([len(polled) for polled in asked], dtype=int)
        column = ("loss", "error").index(request.metric)
        return Evaluation(values[:, column], n_samples, raised)

    def trainings(self, request: TrainRequest) -> Iterator[tuple[np.ndarray, str, DataRef]]:
        """Yield each member of a cohort, its name, and the share that makes its task."""
        draws, t = self.draws, request.round
        for i, (k, copy) in enumerate(enumerate_copies(request.cohort.clients)):
            member, name = np.array([i]), draws.name(k, t)
            layers_rng = draws.stream(Purpose.RANDOM_LAYERS, t, k, copy)
            draw = draws.minibatches(request.training, t, k, copy)
            yield (
                member,
                name,
                DataRef(self.held, [k], partial(make_task, name, layers_rng, draw, None)),
            )

    def _polls(self, clients: np.ndarray, round: int, asked: Sequence[Polled]) -> Iterator[DataRef]:
        """Yield the share of each polled client, with the rows that a poll may use."""
        for k, polled in zip(clients, asked, strict=True):
            layers_rng = self.draws.stream(Purpose.EVALUATION_LAYERS, round, k)
            make = partial(make_task, self.draws.name(k, round), layers_rng, None, polled)
            yield DataRef(self.held, [k], make)


def _lost(member: np.ndarray, name: str, error: Exception) -> list[Updates]:
    """Return what is left of a client whose process died in training."""
    error.add_note(f"while training {name}")
    return [Updates.of_failed(member, error)]


def _lost_answer(error: Exception) -> list[tuple[float, float, Exception]]:
    return [(np.nan, np.nan, error)]

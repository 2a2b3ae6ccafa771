"""The reference engine: skorch, client by client.

Each client starts from the global model with a fresh optimizer and takes the wrapped net's own
train steps. Every faster engine is checked against this one.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from skfed._federation import Federation
from skfed._nets import Model, Workbench
from skfed.engines._client import (
    LocalTraining,
    Task,
    Update,
    batch_size,
    evaluate_client,
    train_client,
)
from skfed.utils._seeding import Purpose, stream


@dataclass
class LoopEngine:
    """Train and poll the clients of a federation, one after the other or through joblib.

    Parameters
    ----------
    bench : Workbench
        The net that does the work.
    X : ndarray of shape (n_samples, ...)
        In the dtype of the module.
    y : ndarray of shape (n_samples,)
        Encoded targets.
    federation : Federation
        Who holds which rows.
    seed : int
        Seed of all streams.
    n_jobs : int, default=None
        Clients served side by side, through joblib.
    """

    bench: Workbench
    X: np.ndarray
    y: np.ndarray
    federation: Federation
    seed: int
    n_jobs: int | None = None

    def train(
        self,
        model: Model,
        clients: np.ndarray,
        round: int,
        training: LocalTraining,
        corrections: Sequence[Model] | None = None,
    ) -> list[Update]:
        """Train each client from the same model; one that stands twice trains twice, afresh.

        ``corrections`` are SCAFFOLD's c - c_k, one a member of ``clients``.
        """
        tasks = self._training_tasks(clients, round, corrections)
        return Parallel(n_jobs=self.n_jobs)(
            delayed(train_client)(self.bench, model, training, task) for task in tasks
        )

    def evaluate(
        self,
        model: Model,
        clients: np.ndarray,
        round: int,
        metric: str = "loss",
        max_samples: int | str | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each client's mean loss or error at ``model``, and on how many rows."""
        n_samples = []

        def calls():
            for k in clients:  # one by one, so that their rows are not all copied at once
                task = self._evaluation_task(k, round, max_samples)
                n_samples.append(len(task.y))
                yield delayed(evaluate_client)(self.bench, model, metric, task)

        values = Parallel(n_jobs=self.n_jobs)(calls())
        return np.array(values, float), np.array(n_samples, dtype=int)

    def _training_tasks(
        self, clients: np.ndarray, round: int, corrections: Sequence[Model] | None
    ) -> Iterator[Task]:
        """Yield the tasks of a cohort; a client's rows are gathered when its turn comes."""
        copies: Counter[int] = Counter()
        for i, k in enumerate(clients):
            rows = self.federation.rows(k)
            yield Task(
                self._name(k, round),
                self.X[rows],
                self.y[rows],
                rows_rng=self._stream(Purpose.MINIBATCHES, round, k, copies[k]),
                layers_rng=self._stream(Purpose.RANDOM_LAYERS, round, k, copies[k]),
                correction=None if corrections is None else corrections[i],
            )
            copies[k] += 1

    def _evaluation_task(self, k: int, round: int, max_samples: int | str | None) -> Task:
        """Return a client's task with all of its rows, or as many as a poll may use."""
        rows = self.federation.rows(k)
        rows_rng = self._stream(Purpose.POLL, round, k)
        layers_rng = self._stream(Purpose.EVALUATION_LAYERS, round, k)
        if max_samples is not None:
            batch = max_samples == "batch"
            limit = batch_size(self.bench.net, len(rows)) if batch else int(max_samples)
            rows = rows if len(rows) <= limit else rows_rng.choice(rows, limit, replace=False)
        return Task(self._name(k, round), self.X[rows], self.y[rows], rows_rng, layers_rng)

    def _name(self, k: int, round: int) -> str:
        return f"client {self.federation.names([k])[0]!r} in round {round}"

    def _stream(self, purpose: Purpose, round: int, k: int, copy: int = 0) -> np.random.Generator:
        return stream(self.seed, purpose, round, self.federation.digest(k), copy)

"""The reference engine: skorch, client by client.

Each client starts from the global model with a fresh optimizer and takes the wrapped net's own
train steps. Every faster engine is checked against this one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from skfed._nets import Workbench
from skfed.engines._client import Task, evaluate_client, train_client
from skfed.engines._draws import Draws, numbered
from skfed.engines._parallel import Work, side_by_side
from skfed.engines._updates import Evaluation, Order, Question, Updates
from skfed.utils._seeding import Purpose


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
    draws : Draws
        Who holds which rows, and the streams.
    n_jobs : int, default=None
        Clients served side by side, through joblib.
    """

    bench: Workbench
    X: np.ndarray
    y: np.ndarray
    draws: Draws
    n_jobs: int | None = None
    discreet: bool = field(default=False, init=False)

    def train(self, order: Order) -> Iterator[Updates]:
        """Train each client from the same model; one that stands twice trains twice, afresh."""
        works = (
            Work(train_client, (self.bench, order.of(i), i, task), tuple, partial(_lost, i, task))
            for i, task in self.training_tasks(order)
        )
        return side_by_side(works, self.n_jobs, prefer="processes")

    def evaluate(self, question: Question) -> Evaluation:
        """Let clients say their mean loss and error; bounds are for the round to keep."""
        n_samples = []

        def works() -> Iterator[Work]:
            for k in question.clients:  # one by one, so that their rows are not all copied at once
                task = self._evaluation_task(k, question.round, question.max_samples)
                n_samples.append(len(task.y))
                arguments = self.bench, question.model, task
                yield Work(evaluate_client, arguments, tuple, _lost_answer)

        answers = list(side_by_side(works(), self.n_jobs, prefer="processes"))
        values = np.array([answer[:2] for answer in answers], float).reshape(-1, 2)
        raised = {i: error for i, (*_, error) in enumerate(answers) if error is not None}
        return Evaluation(values[:, 0], values[:, 1], np.array(n_samples, dtype=int), raised)

    def training_tasks(self, order: Order) -> Iterator[tuple[np.ndarray, Task]]:
        """Yield the tasks of a cohort; a client's rows are gathered when its turn comes."""
        for i, (k, copy) in enumerate(numbered(order.cohort.clients)):
            rows = self.draws.federation.rows(k)
            task = Task(
                self.draws.name(k, order.round),
                self.X[rows],
                self.y[rows],
                layers_rng=self.draws.stream(Purpose.RANDOM_LAYERS, order.round, k, copy),
                batches=self.draws.minibatches(order.training, order.round, k, copy),
            )
            yield np.array([i]), task

    def _evaluation_task(self, k: int, round: int, max_samples: int | str | None) -> Task:
        """Return a client's task with the rows that a poll may use."""
        rows = self.draws.polled_rows(round, k, max_samples)
        layers_rng = self.draws.stream(Purpose.EVALUATION_LAYERS, round, k)
        return Task(self.draws.name(k, round), self.X[rows], self.y[rows], layers_rng)


def _lost(member: np.ndarray, task: Task, error: Exception) -> list[Updates]:
    """Return what is left of a client whose process died in training."""
    error.add_note(f"while training {task.name}")
    return [Updates.of_failed(member, error)]


def _lost_answer(error: Exception) -> list[tuple[float, float, Exception]]:
    return [(np.nan, np.nan, error)]

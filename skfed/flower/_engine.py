"""Polls and trains clients by messages."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from skfed._federation import Federation
from skfed.engines import (
    Draws,
    EvaluateRequest,
    Evaluation,
    LocalTraining,
    TrainRequest,
    Updates,
    enumerate_copies,
)
from skfed.engines._replies import collect
from skfed.flower._messages import (
    MOMENTS,
    POLL,
    TRAIN,
    number,
    record,
    to_arrays,
    to_config,
    to_model,
    to_moments,
)
from skfed.flower._nodes import Nodes
from skfed.nets import State
from skfed.server._standardize import Moments

logger = logging.getLogger(__name__)


@dataclass
class MessageEngine:
    """Carries polls and orders to clients, and brings their answers.

    Parameters
    ----------
    nodes : Nodes
        Where the clients are.
    federation : Federation
        Who they are.
    draws : Draws
        With the seed of all streams.
    classes : str
        The classes as text.
    fit : str
        Tells this fit's rounds from those of others, in what clients remember.
    """

    nodes: Nodes
    federation: Federation
    draws: Draws
    classes: str
    fit: str
    clients_add_noise: bool = field(default=True, init=False)
    _round: int = field(default=-1, init=False)
    _holders: set[str] = field(default_factory=set, init=False)  # of this round's model

    def evaluate(self, question: EvaluateRequest) -> Evaluation:
        """Poll clients; a client above the bound says nothing."""
        names = self._names(question.clients)
        arrays, contents = to_arrays(question.state), {}
        for name in names:
            asked = self._asked(
                name,
                question.round,
                metric=question.metric,
                max_samples=question.max_samples,
                at_most=None if question.at_most is None else float(question.at_most),
            )
            model = self._model(name, question.round, arrays)
            contents[name] = RecordDict({"question": asked} | model)
        answers = self.nodes.exchange(contents, POLL)
        values, raised, silent = np.full(len(names), np.nan), {}, np.zeros(len(names), bool)
        for i, name in enumerate(names):
            try:
                value = _value(answers[name], question)
            except Exception as error:
                raised[i] = error
            else:
                silent[i] = value is None
                values[i] = np.nan if value is None else value
        n_samples = self._n_polled(question)
        return Evaluation(values, n_samples, raised, silent)

    def moments(self, n_features: int, drop: bool) -> list[Moments | None]:
        """Return the mean and variance of each column, of each priority client.

        None from one that fails, if such clients are left out; else its failure is raised.
        """
        names = self._names(np.flatnonzero(self.federation.priority))
        contents = {name: RecordDict({"asked": self._asked(name, 0)}) for name in names}
        answers = self.nodes.exchange(contents, MOMENTS)
        found: list[Moments | None] = []
        for name in names:
            try:
                found.append(_moments(answers[name], n_features))
            except Exception as error:
                if not drop:
                    error.add_note(f"client {name!r}, asked for the moments of its columns")
                    raise
                logger.warning("client %r sends no means and variances: %s", name, error)
                found.append(None)
        return found

    def train(self, order: TrainRequest) -> Iterator[Updates]:
        """Train a cohort; yield what each member sends back.

        A client that stands in the cohort twice gets one message, and sends two updates.
        """
        clients = order.cohort.clients.tolist()
        answers = self.nodes.exchange(self._train_contents(order), TRAIN)
        for i, (k, copy) in enumerate(enumerate_copies(clients)):
            member, (name,) = np.array([i]), self._names([k])
            try:
                yield self._update(order, member, copy, answers[name])
            except Exception as error:
                yield Updates.of_failed(member, error)

    def _train_contents(self, order: TrainRequest) -> dict[str, RecordDict]:
        """Return the content of the message to each client of a cohort."""
        names = self._names(order.cohort.clients)
        training, arrays, contents = order.training, to_arrays(order.state), {}
        for name, n_copies in Counter(names).items():
            asked = self._asked(
                name,
                order.round,
                epochs=training.epochs,
                steps=training.steps,
                proximal_mu=float(training.proximal_mu),
                rates=training.rates and tuple(chain(*training.rates)),
                n_copies=n_copies,
            )
            content = {"order": asked} | self._model(name, order.round, arrays)
            if order.corrections is not None:
                content["correction"] = to_arrays(order.corrections[names.index(name)])
            contents[name] = RecordDict(content)
        return contents

    def _names(self, clients: Iterable[int]) -> list[str]:
        return [str(name) for name in self.federation.names(clients)]

    def _asked(self, name: str, t: int, **values: Any) -> ConfigRecord:
        """Return what is asked of a client, with what it needs to know besides."""
        shared = {"fit": self.fit, "seed": self.draws.seed, "classes": self.classes}
        return to_config(client=name, round=t, **shared, **values)

    def _model(self, name: str, t: int, arrays: ArrayRecord) -> dict[str, Any]:
        """Return the model for a client, unless it has had it in this round."""
        if self._round != t:
            self._round, self._holders = t, set()
        if name in self._holders:
            return {}
        self._holders.add(name)
        return {"model": arrays}

    def _n_polled(self, question: EvaluateRequest) -> np.ndarray:
        """Return how many rows each client evaluates, as ``Draws.polled_rows`` has it."""
        sizes = self.federation.sizes[question.clients]
        limit = question.max_samples
        if limit is None:
            return sizes
        if limit == "batch":
            return np.array([self.draws.rows_a_step(int(size)) for size in sizes], dtype=int)
        return np.minimum(sizes, int(limit))

    def _update(
        self, order: TrainRequest, member: np.ndarray, copy: int, answer: RecordDict | Exception
    ) -> Updates:
        """Read what a client sends of the training of one of its copies."""
        if isinstance(answer, Exception):
            raise answer
        trained = to_model(record(answer, f"model-{copy}", ArrayRecord), order.state)
        report = record(answer, f"report-{copy}", MetricRecord)
        loss, n_samples = number(report, "loss"), number(report, "n_samples", int)
        (k,) = order.cohort.clients[member].tolist()
        if n_samples != (expected := self._n_trained(order.training, k)):
            raise ValueError(f"it says that it trained on {n_samples} rows, of {expected}.")
        variate: State | None = None
        if order.corrections is not None:
            sent = record(answer, f"variate-{copy}", ArrayRecord)
            own = {name: order.state[name] for name in order.parameters if name in sent}
            variate = to_model(sent, own) or None  # without what has no learning rate
        stack = {name: tensor.unsqueeze(0) for name, tensor in trained.items()}
        # It comes with noise already.
        alone = replace(order.subset(member), privacy=None, noise=None)
        return collect(alone, member, stack, np.array([loss]), np.array([n_samples]), [variate])

    def _n_trained(self, training: LocalTraining, k: int) -> int:
        """Return the rows that a client sees in its local steps, repeats counted."""
        size = self.federation.size(k)
        if training.steps is None:
            return training.epochs * size
        return training.steps * self.draws.rows_a_step(size)


def _moments(answer: RecordDict | Exception, n_features: int) -> Moments:
    if isinstance(answer, Exception):
        raise answer
    return to_moments(answer, n_features)


def _value(answer: RecordDict | Exception, question: EvaluateRequest) -> float | None:
    """Return what a client answers to a poll: a finite number, or None for silence."""
    if isinstance(answer, Exception):
        raise answer
    bound = question.at_most
    if not answer and bound is not None:
        return None
    value = number(record(answer, "answer", MetricRecord), question.metric)
    if not np.isfinite(value) or (bound is not None and value > bound):
        raise ValueError(f"its answer {question.metric}={value} is not finite, or above the bound.")
    return value

"""The training of a cohort: what clients report, and what the aggregator needs of their models."""

from collections.abc import Callable
from typing import Any

import numpy as np

from skfed.aggregation._tensors import settled
from skfed.engines import Engine, Late, ReplyTimes, Report, TrainRequest, Updates
from skfed.exchanges import TRAINING, Answers, Exchange, Exchanges, Message, Messages
from skfed.nets import State
from skfed.selection import Cohort

_VARIATES = ("variates",)


def training_messages(with_variates: bool, with_spread: bool = False) -> Messages:
    """Return what travels in a training, with SCAFFOLD's variates or without.

    With the spread of losses, their deviation and the root of their mean square are sent too.
    """
    models = _VARIATES if with_variates else ()
    # The training loss is sent along, and is not charged.
    scalars = {"loss_std": 1, "loss_rms": 1} if with_spread else {}
    return Messages(
        Message(model=True, models=models), Message(model=True, models=models, scalars=scalars)
    )


class CohortTraining:
    """The training of a cohort, and the updates of its members in its order."""

    kind = TRAINING

    def __init__(
        self,
        engine: Engine,
        exchanges: Exchanges,
        make_request: Callable[[Cohort], TrainRequest],
        cohort: Cohort,
        messages: Messages,
    ):
        self.engine, self.exchanges = engine, exchanges
        self.make_request, self.cohort = make_request, cohort
        self.messages = messages
        self.memory = cohort.memory  # that the rule has given
        # Names of tensors that a finite update has changed.
        self.changed: frozenset[str] = frozenset()
        self.parts: list[tuple[np.ndarray, Any]] = []  # what the aggregator has collected
        self.models: list[tuple[np.ndarray, State]] = []  # that are kept beside it

    def send(self, in_time: np.ndarray) -> Answers:
        """Train the members that will be in time; none, if none of them has a weight."""
        mask = np.zeros(len(self.cohort.clients), dtype=bool)
        mask[in_time] = True
        self.request, self._in_time = self.make_request(self.cohort.keep(mask)), in_time
        n_members = len(self.request.cohort.clients)
        self.finite = np.ones(n_members, dtype=bool)  # members whose update is finite
        self.losses = np.full(n_members, np.nan)  # of those
        self.variates: list[State | None] = [None] * n_members
        if not n_members:
            return Answers.of_nobody(len(in_time))
        updates = self.engine.train(self.request)
        self.changed, self.models = updates.changed, updates.models
        for members, part in updates.parts:
            self.request.aggregator.accumulate(self.parts, members, part)
        return self._answers(updates)

    def take_answers(self, exchange: Exchange) -> None:
        """Take the losses of the settled exchange, with the noise that clients have added."""
        if len(self.losses):
            self.losses = exchange.answers[self._in_time]

    def _answers(self, updates: Updates) -> Answers:
        """Return what the members have answered."""
        n_members = len(self.losses)
        raised: dict[int, Exception] = {}
        rows, sent = np.zeros(n_members, dtype=int), np.ones(n_members, dtype=bool)
        times: list[tuple[np.ndarray, ReplyTimes | None]] = []
        extras: dict[str, np.ndarray] = {}
        for report in updates.reports:
            members = report.members
            rows[members], sent[members] = report.n_samples, report.error is None
            self.finite[members] = report.finite
            self.losses[members] = np.where(report.finite, report.losses, np.nan)
            times.append((members, report.times))
            for name, values in report.extras.items():
                nothing = np.full((n_members, *values.shape[1:]), np.nan)
                extras.setdefault(name, nothing)[members] = values
            self._add_variates(report)
            raised |= self._raised(report)
        return Answers(self.losses, rows, raised, sent, extras, times)

    def _add_variates(self, report: Report) -> None:
        if self.request.corrections is not None:
            own = zip(report.members.tolist(), report.variates, report.finite, strict=True)
            for i, variate, finite in own:
                self.variates[i] = variate if finite else None

    def _raised(self, report: Report) -> dict[int, Exception]:
        """Return why members have failed or are late."""
        raised: dict[int, Exception] = {}
        own = zip(report.members.tolist(), report.losses, report.finite, strict=True)
        for i, loss, finite in own:
            if isinstance(report.error, Late):
                raised[i] = report.error
            elif not finite:
                not_finite = self.exchanges.privatizer.not_finite
                raised[i] = report.error or not_finite("update", loss)
                k = int(self.request.cohort.clients[i])
                raised[i].add_note(f"while training {self.exchanges.failures.name(k)}")
        return raised

    def finish(self, min_clients: int) -> tuple[Cohort, State]:
        """Return the cohort that is aggregated, and the aggregate."""
        cohort = self.request.cohort
        members = members_to_aggregate(cohort, self.finite, min_clients)
        return cohort.keep(members), self.aggregate(members)

    def aggregate(self, admitted: np.ndarray) -> State:
        """Return the aggregate of the members in a mask; tensors that none has changed stay.

        Raises
        ------
        ValueError
            If the aggregator has added up the model of a member that is not admitted.
        """
        request = self.request
        parts = [(members, part) for members, part in self.parts if admitted[members].any()]
        if not all(admitted[members].all() for members, _ in parts):
            raise ValueError(
                f"aggregator={request.aggregator} has added up models that are to be left out: "
                "use one that keeps the model of each client."
            )
        if not parts:
            return request.state
        aggregate = request.aggregator.combine(
            request.sent_back, parts, request.cohort, request.parameters
        )
        return settled(request.state, aggregate, self.changed)


def members_to_aggregate(cohort: Cohort, finite: np.ndarray, min_clients: int) -> np.ndarray:
    """Return a mask of the members of a cohort that are aggregated.

    It leaves out members whose update is not finite, and all if fewer than ``min_clients`` clients
    remain. The train loss and the past of clients are of all that reported.
    """
    enough = len(set(cohort.keep(finite).clients.tolist())) >= min_clients
    return finite if enough else np.zeros_like(finite)

"""The updates of one round: what clients report, and what the aggregator needs of their models."""

from typing import Any

import numpy as np

from skfed.aggregation._tensors import settled
from skfed.engines import Late, ReplyTimes, Report, TrainRequest, Updates, enumerate_copies
from skfed.nets import State
from skfed.server._exchange import Exchange, Outcome
from skfed.server._poll import FailureLog, LossPrivatizer


class RoundUpdates:
    """The updates of a cohort, in its order."""

    def __init__(self, request: TrainRequest, failures: FailureLog, privatizer: LossPrivatizer):
        n_members = len(request.cohort.clients)
        self.request, self.failures, self.privatizer = request, failures, privatizer
        self.copies = list(enumerate_copies(request.cohort.clients.tolist()))
        self.losses = np.full(n_members, np.nan)
        self.n_samples = np.zeros(n_members, dtype=int)
        self.sent = np.ones(n_members, dtype=bool)  # members that trained to the end
        self.finite = np.ones(n_members, dtype=bool)  # members whose update is finite
        self.late = np.zeros(n_members, dtype=bool)
        self.causes: dict[int, Exception] = {}  # of failures, by member
        self.times: list[tuple[np.ndarray, ReplyTimes | None]] = []  # with members
        self.variates: list[State | None] = [None] * n_members
        # Names of tensors that a finite update has changed.
        self.changed: frozenset[str] = frozenset()
        self.parts: list[tuple[np.ndarray, Any]] = []  # what the aggregator has collected

    def add(self, updates: Updates) -> None:
        """Add the updates of the cohort; the models of those that failed are dropped."""
        failed: dict[int, Exception] = {}
        for report in updates.reports:
            self._add_report(report, failed)
        for i in sorted(failed):
            k, _ = self.copies[i]
            failed[i].add_note(f"while training {self.failures.name(k)}")
            self.causes[i] = failed[i]
            self.failures.add(k, failed[i])
        self.changed = updates.changed
        for members, part in updates.parts:
            self.request.aggregator.accumulate(self.parts, members, part)

    def _add_report(self, report: Report, failed: dict[int, Exception]) -> None:
        """Add what some members report; note the causes of those that failed."""
        members = report.members
        self.n_samples[members] = report.n_samples
        self.sent[members] = report.error is None
        self.finite[members] = report.finite
        self.late[members] = isinstance(report.error, Late)
        self.times.append((members, report.times))
        arrived = members[report.finite].tolist()
        copies, losses = [self.copies[i] for i in arrived], report.losses[report.finite]
        self.losses[arrived] = self.privatizer.of_trainings(copies, losses)
        if self.request.corrections is not None:
            for i, variate in zip(members.tolist(), report.variates, strict=True):
                self.variates[i] = variate if self.finite[i] else None
        if isinstance(report.error, Late):
            return
        for i, loss in zip(members.tolist(), report.losses, strict=True):
            if not self.finite[i]:
                failed[i] = report.error or self.privatizer.not_finite("update", loss)

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
            request.state, parts, request.cohort, request.parameters
        )
        return settled(request.state, aggregate, self.changed)

    def complete(self, exchange: Exchange) -> None:
        """Complete the record of the training as it was planned, whose replies are these."""
        positions = np.flatnonzero(exchange.outcomes == Outcome.OK)
        exchange.rows[:] = 0
        if not len(self.copies):  # those that reply have no weight, and none of them trains
            exchange.models_up[positions] = 0
            return
        exchange.outcomes[positions[~self.finite]] = Outcome.FAILED
        exchange.outcomes[positions[self.late]] = Outcome.LATE
        exchange.models_up[positions] *= self.sent
        exchange.rows[positions], exchange.answers[positions] = self.n_samples, self.losses
        exchange.causes = {int(positions[i]): cause for i, cause in self.causes.items()}
        for members, times in self.times:
            exchange.add_times(positions[members], times)

"""The training of a rule with two phases: the cohort reports, the rule admits, some upload."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from skfed.aggregation import BaseAggregator
from skfed.engines import extras_of
from skfed.exchanges import REPORT, UPLOAD, Answers, Exchange, Message, Messages
from skfed.nets import State
from skfed.selection import Cohort, Reports
from skfed.selection._cohort import checked_cohort
from skfed.server._training import CohortTraining, members_to_aggregate

Admit = Callable[[Reports], Cohort]


class KeepUpdates(BaseAggregator):
    """Keeps the model of each member until the rule has admitted some.

    Parameters
    ----------
    aggregator : BaseAggregator
        That of the fit, which aggregates those admitted.
    """

    def __init__(self, aggregator):
        self.aggregator = aggregator

    def _aggregate(self, model, updates, cohort, parameters):
        return self.aggregator._aggregate(model, updates, cohort, parameters)


class TwoPhaseTraining(CohortTraining):
    """The training of a cohort whose members report, and of which those admitted upload."""

    kind = REPORT

    def __init__(
        self,
        *arguments: Any,
        admit: Admit,
        available: np.ndarray,
        needs: frozenset[str],
        name: str,
    ):
        super().__init__(*arguments)
        up = self.messages.up
        self._uploaded = Messages(up=replace(up, scalars={}))
        report = Message(scalars={"norm": 1, **up.scalars})
        self.messages = Messages(self.messages.down, report)
        self.admit, self.needs = admit, needs
        self.available, self.name = available, name

    def take_answers(self, exchange: Exchange) -> None:
        """Take what the cohort reports, NaN of those who have not."""
        super().take_answers(exchange)
        losses = exchange.answers.copy()
        norms = self.cohort.weights * exchange.extras.get("norms", np.nan)
        norms = np.where(np.isfinite(losses), norms, np.nan)
        self.reports = Reports(self.cohort.clients.copy(), norms, losses)

    def finish(self, min_clients: int) -> tuple[Cohort, State]:
        """Let the rule admit members, have them upload, and return those who did, aggregated."""
        clients, model = self.request.cohort.clients, self.request.state
        sent_back = self.request.sent_back
        if not len(self.cohort.clients):
            return self.cohort, model
        admitted = checked_cohort(self.admit(self.reports), self.available, self.name)
        if admitted.memory is not None:
            self.memory = admitted.memory
        members = self._members(admitted)
        arrived = self._upload(members)
        enough = members_to_aggregate(admitted, arrived, min_clients)
        cohort = admitted.keep(enough)
        states = [self.states[i] for i in members[enough].tolist()]
        for i in set(range(len(clients))) - set(members[arrived].tolist()):
            self.variates[i] = None
        aggregator = self.request.aggregator
        aggregate = aggregator.aggregate(sent_back, states, cohort, self.request.parameters)
        return cohort, model | aggregate

    def _members(self, admitted: Cohort) -> np.ndarray:
        """Return the positions of the admitted in the cohort, the first copies of a client."""
        free: dict[int, list[int]] = {}
        for i, k in enumerate(self.request.cohort.clients.tolist()):
            if self.finite[i]:
                free.setdefault(k, []).append(i)
        asked = Counter(admitted.clients.tolist())
        for k, n in asked.items():
            if n > len(free.get(k, ())):
                raise ValueError(
                    f"{self.name} admitted client {k} {n} times, but it has reported "
                    f"{len(free.get(k, ()))} updates: admit some of reports.clients whose norms "
                    "are not NaN."
                )
        taken = {k: iter(positions) for k, positions in free.items()}
        return np.array([next(taken[k]) for k in admitted.clients.tolist()], dtype=int)

    def _upload(self, members: np.ndarray) -> np.ndarray:
        """Have members upload their updates; return a mask of those who did in time."""

        def send(in_time: np.ndarray) -> Answers:
            updates = self.engine.upload(self.request, self.parts, members[in_time])
            self.states = _by_member(updates.parts)
            position = {i: place for place, i in enumerate(members[in_time].tolist())}
            raised: dict[int, Exception] = {}
            times = []
            for report in updates.reports:
                places = np.array([position[i] for i in report.members.tolist()], dtype=int)
                times.append((places, report.times))
                self._add_variates(report)
                raised |= {position[i]: cause for i, cause in self._raised(report).items()}
            losses = self.losses[members[in_time]]
            losses[list(raised)] = np.nan
            sent = np.ones(len(in_time), dtype=bool)
            sent[list(raised)] = False
            extras, nothing = self._extras(members[in_time]), np.zeros(len(in_time), dtype=int)
            return Answers(losses, nothing, raised, sent, extras, times)

        clients = self.request.cohort.clients[members]
        exchange = self.exchanges.ask(UPLOAD, self._uploaded, clients, send)
        return np.isfinite(exchange.answers)

    def _extras(self, members: np.ndarray) -> dict[str, np.ndarray]:
        """Return what the rule needs of the updates that were uploaded."""
        uploaded = [(place, i) for place, i in enumerate(members.tolist()) if i in self.states]
        if not (self.needs and uploaded):
            return {}
        places, present = map(np.array, zip(*uploaded, strict=True))
        request = replace(self.request.subset(present), needs=self.needs)
        states = [self.states[i] for i in present.tolist()]
        stack = {name: torch.stack([one[name] for one in states]) for name in states[0]}
        extras: dict[str, np.ndarray] = {}
        for name, values in extras_of(request, stack).items():
            extras[name] = np.full((len(members), *values.shape[1:]), np.nan)
            extras[name][places] = values
        return extras


def _by_member(parts: list[tuple[np.ndarray, dict[str, torch.Tensor]]]) -> dict[int, State]:
    """Return the models of members by their positions in the cohort."""
    return {
        i: {name: tensor[j] for name, tensor in stack.items()}
        for members, stack in parts
        for j, i in enumerate(members.tolist())
    }

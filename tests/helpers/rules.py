"""Rules for lists of tests: those of papers, and some that use what a round offers beside polls."""

from dataclasses import replace

import numpy as np

from skfed import (
    ClusteredSelector,
    DivFLSelector,
    FedCorSelector,
    FedCSSelector,
    HicsFLSelector,
    KVibSelector,
    LossProportionalSelector,
    OortSelector,
    OptimalSelector,
    RoundRobinSelector,
    TiflSelector,
    UcbSelector,
)
from skfed.selection import BaseSelector, Cohort

#: Rules that papers compare with, of two clients a round.
COMPARED = (
    RoundRobinSelector(2, ignore_priority=True),
    LossProportionalSelector(2, ignore_priority=True),
    FedCSSelector(2, ignore_priority=True),
    UcbSelector(2, ignore_priority=True),
    ClusteredSelector(clients_per_round=2, ignore_priority=True),
    ClusteredSelector("updates", 2, ignore_priority=True),
    OptimalSelector(2, ignore_priority=True),
    OortSelector(2, ignore_priority=True),
    DivFLSelector(2, ignore_priority=True),
    FedCorSelector(2, warmup=1, interval=2),
    TiflSelector(2, interval=1, ignore_priority=True),
    HicsFLSelector(2, ignore_priority=True),
    KVibSelector(2, ignore_priority=True),
)
#: Those of them that look at seconds, which a fit without devices has not, and Flower measures.
BY_SECONDS = tuple(
    rule for rule in COMPARED if isinstance(rule, FedCSSelector | OortSelector | TiflSelector)
)


class Rested(BaseSelector):
    """The past: two of the clients that were chosen least often, then longest ago."""

    uses_priority = False

    def _select(self, round):
        clients, past = np.flatnonzero(round.available), round.past
        order = np.lexsort([clients, past.last_chosen[clients], past.n_chosen[clients]])
        return Cohort.mean(clients[order[:2]])


class Momentum(BaseSelector):
    """A memory: two of the clients of the highest loss, averaged over rounds by halves."""

    uses_priority = False

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        mean = np.zeros(len(round.sizes))
        if round.memory:
            mean += round.memory["mean"]
        losses = round.poll(clients)
        mean[clients] = (mean[clients] + np.nan_to_num(losses)) / 2
        chosen = clients[np.argsort(-mean[clients], kind="stable")[:2]]
        memory = {"mean": mean, "rounds": round.index + 1, "name": "halves", "done": False}
        return replace(Cohort.by_size(chosen, round.sizes), memory=memory)


class Tried(BaseSelector):
    """A trial: of two halves of the clients the one whose model lowers the loss more."""

    uses_priority = False

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        halves = [Cohort.by_size(half, round.sizes) for half in np.array_split(clients, 2)]
        losses = [np.nanmean(round.trial(half).poll(clients)) for half in halves]
        return halves[int(np.argmin(losses))]


class Diverse(BaseSelector):
    """Sketches: the two clients whose gradients differ most."""

    uses_priority = False

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        sketches = np.nan_to_num(round.sketch(clients))
        distances = np.linalg.norm(sketches[:, None] - sketches[None], axis=2)
        pair = np.unravel_index(np.argmax(distances), distances.shape)
        return Cohort.mean(np.unique(clients[list(pair)]))


def deadline_of(rule, seconds):
    """Return a deadline for clients of a few bytes a second; a sketch alone takes 16 s to send."""
    return seconds + 16.0 if isinstance(rule, Diverse | DivFLSelector) else seconds


class Updated(BaseSelector):
    """Updates: two of the clients whose last update was largest, new ones first."""

    uses_priority = False
    needs = ("updates", "last_layer")

    def _select(self, round):
        clients, past = np.flatnonzero(round.available), round.past
        sizes = np.linalg.norm(past.updates, axis=1) + np.abs(past.last_layer).sum(1)
        order = np.argsort(-np.nan_to_num(sizes[clients], nan=np.inf), kind="stable")
        return Cohort.mean(clients[order[:2]])


class Uneven(BaseSelector):
    """The spread of losses: the two clients of the largest, new ones first."""

    uses_priority = False
    needs = ("spread",)

    def _select(self, round):
        clients, past = np.flatnonzero(round.available), round.past
        spread = np.nan_to_num((past.loss_std + past.loss_rms)[clients], nan=np.inf)
        return Cohort.mean(clients[np.argsort(-spread, kind="stable")[:2]])


class Admitting(BaseSelector):
    """Two phases: all train, and the two of the largest norms upload."""

    uses_priority = False

    def _select(self, round):
        return Cohort.by_size(np.flatnonzero(round.available), round.sizes)

    def admit(self, round, reports):
        order = np.argsort(-np.nan_to_num(reports.norms), kind="stable")
        known = order[~np.isnan(reports.norms[order])]
        return Cohort.mean(reports.clients[known[:2]])


RULES = (Rested(), Momentum(), Tried(), Diverse(), Updated(), Uneven(), Admitting())

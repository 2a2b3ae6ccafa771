"""No check accuses a correct rule, whichever seed it takes.

A sample; SKFED_PROPERTIES=long tries each selector of the package under 20 seeds, for hours.
"""

import os
from itertools import count, product

import numpy as np
import pytest

import skfed
from skfed import (
    ActiveFLSelector,
    ClusteredSelector,
    DivFLSelector,
    FedAlignSelector,
    FedCorSelector,
    FedCSSelector,
    HicsFLSelector,
    KVibSelector,
    LossProportionalSelector,
    OortSelector,
    OptimalSelector,
    PowerOfChoice,
    RandomSelector,
    RoundRobinSelector,
    TiflSelector,
    UcbSelector,
)
from skfed.schedules import ExponentialDecay, LinearDecay, StepDecay
from skfed.selection import BaseSelector, Cohort
from skfed.utils import _selector_rounds, _selector_statistics
from skfed.utils.selector_checks import check_selector

LONG = os.environ.get("SKFED_PROPERTIES") == "long"

# Of each selector the default and others
OURS = [
    RandomSelector(),
    RandomSelector(1),
    RandomSelector(30),
    RandomSelector(0.5, weighting="size"),
    RandomSelector(3, replace=False),
    RandomSelector(12, replace=False),
    RandomSelector(4, "uniform"),
    RandomSelector(4, "uniform", weighting="unbiased"),
    RandomSelector(1, "uniform", weighting="unbiased"),
    RandomSelector(3, "uniform", replace=False, weighting="unbiased"),
    RandomSelector(11, "uniform", replace=False, weighting="unbiased"),
    PowerOfChoice(),
    PowerOfChoice(d=1),
    PowerOfChoice(d=12, clients_per_round=1),
    PowerOfChoice(d=4, clients_per_round=4),
    PowerOfChoice(d=4, clients_per_round=2),
    PowerOfChoice(d=6, loss="batch"),
    PowerOfChoice(loss="reported"),
    PowerOfChoice(d=5, clients_per_round=2, loss="reported"),
    PowerOfChoice(d=StepDecay(6, 0.5, [4]), clients_per_round=2),
    PowerOfChoice(d=LinearDecay(12, 2), clients_per_round=3, loss="batch"),
    PowerOfChoice(d=0.75, clients_per_round=0.25),
    FedAlignSelector(),
    FedAlignSelector(eps=0),
    FedAlignSelector(eps=np.inf, warmup=0),
    FedAlignSelector(eps=LinearDecay(0.6), warmup=0),
    FedAlignSelector(eps=ExponentialDecay(1.0, 0.9), warmup=2),
    FedAlignSelector(eps=0.3, match="accuracy"),
    FedAlignSelector(eps=0, match="accuracy", warmup=0),
    FedAlignSelector(eps=np.inf, match="accuracy", warmup=0),
    FedAlignSelector(eps=0.3, participation=0.5),
    FedAlignSelector(eps=0.5, participation=6, match="accuracy"),
    FedAlignSelector(eps=0.4, participation=1, warmup=0),
    ActiveFLSelector(),
    ActiveFLSelector(1),
    ActiveFLSelector(3),
    ActiveFLSelector(12),
    ActiveFLSelector(4, alpha1=0),
    ActiveFLSelector(4, alpha1=1.0),
    ActiveFLSelector(5, alpha1=0.5, alpha2=5.0),
    ActiveFLSelector(2, alpha2=0),
    ActiveFLSelector(6, alpha3=0),
    ActiveFLSelector(6, alpha3=1.0),
    ActiveFLSelector(0.3, alpha1=0.3, alpha2=1.0, alpha3=0.5),
    OptimalSelector(),
    OptimalSelector(3),
    OptimalSelector(2, approximate=True),
    RoundRobinSelector(),
    RoundRobinSelector(5),
    LossProportionalSelector(),
    LossProportionalSelector(4),
    FedCSSelector(),
    FedCSSelector(round_seconds=5.0),
    FedCSSelector(4, round_seconds=8.0),
    UcbSelector(),
    UcbSelector(4, gamma=1.0),
    ClusteredSelector(),
    ClusteredSelector("updates"),
    ClusteredSelector("updates", 5),
    ClusteredSelector("size", 5),
    KVibSelector(),
    KVibSelector(1),
    OortSelector(),
    OortSelector(4, cutoff=0.5, alpha=1.0, max_selections=1),
    OortSelector(3, exploration=0.3, step=5.0, window=2, max_selections=2),
    DivFLSelector(),
    DivFLSelector(1),
    DivFLSelector(4),
    FedCorSelector(),
    FedCorSelector(4, warmup=2, interval=3, discount=0.5),
    FedCorSelector(3, warmup=1, interval=2),
    TiflSelector(),
    TiflSelector(4, interval=None),
    TiflSelector(2, n_tiers=3, interval=1, metric="loss"),
    HicsFLSelector(),
    HicsFLSelector(4, gamma=0, tau=0.5),
    HicsFLSelector(n_clusters=3),
]
LAST_OF_EACH = {type(selector): selector for selector in OURS}.values()
SAMPLE = list(product(OURS, range(20)) if LONG else zip(LAST_OF_EACH, count(), strict=False))
# The tolerances adapt to fewer draws, by which some false alarms are missed.
N_DRAWS = _selector_statistics.N_DRAWS if LONG else 8


@pytest.mark.parametrize(("selector", "seed"), SAMPLE, ids=str)
def test_selectors_of_the_package_pass_under_any_seed(selector, seed, monkeypatch):
    monkeypatch.setattr(_selector_rounds, "SEED", 1000 + seed)
    monkeypatch.setattr(_selector_statistics, "N_DRAWS", N_DRAWS)
    check_selector(selector)


def test_each_selector_of_the_package_is_sampled():
    public = [value for value in vars(skfed).values() if isinstance(value, type)]
    selectors = {one for one in public if issubclass(one, BaseSelector)}
    assert {type(selector) for selector, _ in SAMPLE} == selectors


class ByScore(BaseSelector):
    """Takes the four of highest score, ties at random."""

    def __init__(self, score=None):
        self.score = score

    def _select(self, round):
        clients = round.rng.permutation(np.flatnonzero(round.available))
        scores = np.nan_to_num(SCORES[self.score](round, clients), nan=-1e9, neginf=-1e9)
        return Cohort.by_size(clients[np.argsort(-scores, kind="stable")[:4]], round.sizes)


def answers(round, clients):
    """Return the polled losses, -1e6 for who failed."""
    losses = round.poll(clients)
    return np.where(np.isfinite(losses), losses, -1e6)


def reported(round, clients):
    """Return the reported losses, -1e6 for who failed."""
    return np.nan_to_num(round.reported[clients], nan=-1e6, posinf=10.0)


SCORES = {
    "quick": lambda round, clients: -round.seconds[clients],
    "slow or unknown": lambda round, clients: np.nan_to_num(round.seconds[clients], nan=1e6),
    "utility of the quick": lambda round, clients: (
        reported(round, clients) / np.sqrt(np.nan_to_num(round.seconds[clients], nan=1.0))
    ),
    "expected to be quick": lambda round, clients: -round.expected_seconds(clients),
    "progress": lambda round, clients: reported(round, clients) - abs(answers(round, clients)),
    "smoothed": lambda round, clients: (
        0.7 * answers(round, clients) + 0.3 * reported(round, clients)
    ),
    "priority": lambda round, clients: round.priority_weights[clients],
    "late by answers": lambda round, clients: (
        answers(round, clients) if round.index > 5 else round.sizes[clients]
    ),
}


class TwoStages(BaseSelector):
    """Polls the six of highest reported loss; the three of highest answer train."""

    def _select(self, round):
        clients = round.rng.permutation(np.flatnonzero(round.available))
        asked = clients[np.argsort(-reported(round, clients), kind="stable")[:6]]
        return Cohort.mean(asked[np.argsort(-answers(round, asked), kind="stable")[:3]])


class InTime(BaseSelector):
    """Trains whoever took less than 10 s last time, or is new."""

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        return Cohort.by_size(clients[~(round.seconds[clients] > 10)], round.sizes)


class ByImportance(BaseSelector):
    """Draws by loss times size, with unbiased weights p_k / (m pi_k)."""

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        shares = round.sizes[clients] / round.sizes[clients].sum()
        odds = shares * np.clip(np.nan_to_num(round.poll(clients), nan=0, posinf=0), 0.05, None)
        odds /= odds.sum()
        drawn = round.rng.choice(len(clients), 3, p=odds)
        return Cohort(clients[drawn], shares[drawn] / (3 * odds[drawn]), unbiased=True)


OTHERS = [*(ByScore(score) for score in SCORES), TwoStages(), InTime(), ByImportance()]


@pytest.mark.parametrize("seed", range(20 if LONG else 1))
@pytest.mark.parametrize("selector", OTHERS, ids=repr)
def test_correct_rules_of_others_pass_under_any_seed(selector, seed, monkeypatch):
    monkeypatch.setattr(_selector_rounds, "SEED", 2000 + seed)
    monkeypatch.setattr(_selector_statistics, "N_DRAWS", N_DRAWS)
    check_selector(selector)

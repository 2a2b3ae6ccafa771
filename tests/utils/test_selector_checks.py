"""Correct selectors pass all checks; each incorrect one fails the check of its mistake."""

from dataclasses import replace
from inspect import getclosurevars

import numpy as np
import pytest
from rules import Admitting, Momentum, Tried

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
from skfed.schedules import LinearDecay, StepDecay
from skfed.selection import BaseSelector, Cohort
from skfed.utils import _selector_statistics
from skfed.utils.selector_checks import (
    CHECKS,
    check_it_clones_and_pickles,
    check_only_the_memory_is_remembered,
    check_selector,
    check_unavailable_clients_are_left_alone,
    parametrize_with_selector_checks,
    run_check,
)

OURS = [
    RandomSelector(3),
    RandomSelector(3, replace=False),
    RandomSelector(3, "uniform"),
    RandomSelector(3, "uniform", replace=False),
    RandomSelector(3, "uniform", replace=False, weighting="unbiased"),
    PowerOfChoice(d=4, clients_per_round=2),
    PowerOfChoice(d=1.0, clients_per_round=3),
    PowerOfChoice(d=4, clients_per_round=2, loss="batch"),
    PowerOfChoice(d=4, clients_per_round=2, loss="reported"),
    PowerOfChoice(d=StepDecay(6, 0.5, [4]), clients_per_round=2),
    FedAlignSelector(eps=0.3),
    FedAlignSelector(eps=0.3, match="accuracy"),
    FedAlignSelector(eps=LinearDecay(0.6), warmup=0),
    FedAlignSelector(eps=np.inf, warmup=0),
    FedAlignSelector(eps=0.3, participation=0.5),
    ActiveFLSelector(3),
    RoundRobinSelector(3),
    RoundRobinSelector(),
    LossProportionalSelector(3),
    LossProportionalSelector(),
    FedCSSelector(3),
    FedCSSelector(),
    FedCSSelector(round_seconds=5.0),
    UcbSelector(3),
    UcbSelector(),
    ClusteredSelector(clients_per_round=3),
    ClusteredSelector("updates", 3),
    DivFLSelector(3),
    DivFLSelector(),
    FedCorSelector(3),
    FedCorSelector(3, warmup=1, interval=2),
    HicsFLSelector(3),
    HicsFLSelector(n_clusters=3),
    OortSelector(3),
    OortSelector(),
    OortSelector(3, exploration=0.3, step=5.0, window=2, max_selections=2),
    OptimalSelector(3),
    OptimalSelector(3, approximate=True),
    TiflSelector(3, interval=5),
    TiflSelector(2, n_tiers=3, interval=1, metric="loss"),
    TiflSelector(interval=None),
    KVibSelector(3),
    KVibSelector(regularization=1e-4),
]


@parametrize_with_selector_checks(OURS)
def test_selectors_of_the_package_pass(selector, check, monkeypatch):
    """With few draws, to which the tolerances adapt."""
    monkeypatch.setattr(_selector_statistics, "N_DRAWS", 16)
    check(selector)


class Median(BaseSelector):
    """Polls all clients and takes those above the median loss."""

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        losses = round.poll(clients)
        answered = np.isfinite(losses)
        if answered.any():
            clients, losses = clients[answered], losses[answered]
            clients = clients[losses >= np.median(losses)]
        return Cohort.by_size(clients, round.sizes)


class Softmax(BaseSelector):
    """Draws three clients by the softmax of their losses."""

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        losses = round.poll(clients)
        odds = np.where(np.isfinite(losses), np.exp(np.nan_to_num(losses, posinf=0)), 0)
        if not odds.any():
            odds = np.ones(len(clients))
        n_drawn = min(3, np.count_nonzero(odds))
        drawn = round.rng.choice(clients, n_drawn, replace=False, p=odds / odds.sum())
        return Cohort.by_size(drawn, round.sizes)


class Utility(BaseSelector):
    """Oort's statistical utility: the three largest ``reported * sqrt(sizes)``, without a poll."""

    def _select(self, round):
        clients = round.rng.permutation(np.flatnonzero(round.available))
        utility = self._utility(round, clients)
        return Cohort.by_size(clients[np.argsort(-utility, kind="stable")[:3]], round.sizes)

    def _utility(self, round, clients):
        # Clients that have not reported rank first, those whose training failed last.
        return np.nan_to_num(self._reported(round)[clients], nan=-1.0, posinf=1e9) * np.sqrt(
            round.sizes[clients]
        )

    def _reported(self, round):
        return round.reported


class UtilityOfHalf(Utility):
    """The same with polled losses for half of the clients, and reported ones for the others."""

    def _utility(self, round, clients):
        utility = super()._utility(round, clients)
        half = clients[: len(clients) // 2]
        losses = np.nan_to_num(round.poll(half), nan=-1.0, posinf=-1.0, neginf=-1.0)
        utility[: len(half)] = losses * np.sqrt(round.sizes[half])
        return utility


@pytest.mark.parametrize("selector", [Median(), Softmax()], ids=repr)
def test_selectors_of_others_pass(selector):
    check_selector(selector)


@pytest.mark.parametrize("selector", [Utility(), UtilityOfHalf()], ids=repr)
def test_a_correct_selector_by_reported_losses_and_sizes_passes(selector):
    check_selector(selector)


class UniformCandidates(PowerOfChoice):
    """Draws candidates uniformly instead of by p_k, as FedLab does."""

    def _select(self, round):
        candidates = round.rng.choice(np.flatnonzero(round.available), size=min(
            self.d, round.available.sum()), replace=False)  # fmt: skip
        losses = self._losses(round, candidates)
        return Cohort.mean(candidates[np.argsort(-losses, kind="stable")[: self.clients_per_round]])


class IndexesAnotherList(PowerOfChoice):
    """Takes the ranks of candidates for client indices, as FLGo does."""

    def _select(self, round):
        available = np.flatnonzero(round.available)
        sizes = round.sizes[available]
        d = min(self.d, len(available))
        candidates = round.rng.choice(available, size=d, replace=False, p=sizes / sizes.sum())
        losses = self._losses(round, candidates)
        ranks = np.argsort(-losses, kind="stable")[: self.clients_per_round]
        return Cohort.mean(available[ranks])


class TiesToTheFirst(PowerOfChoice):
    """Sorts the candidates by index before it ranks them."""

    def _select(self, round):
        available = np.flatnonzero(round.available)
        sizes = round.sizes[available]
        d = min(self.d, len(available))
        candidates = round.rng.choice(available, size=d, replace=False, p=sizes / sizes.sum())
        candidates.sort()
        highest = np.argsort(-self._losses(round, candidates), kind="stable")
        return Cohort.mean(candidates[highest[: self.clients_per_round]])


class PrefersNaN(PowerOfChoice):
    def _losses(self, round, candidates):
        return np.nan_to_num(round.poll(candidates), nan=1e9, posinf=1e9, neginf=-1e9)


class Wrong(BaseSelector):
    """Polls all clients and takes the half of highest loss, except for one mistake."""

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        losses = np.nan_to_num(round.poll(clients), nan=-1e9, posinf=-1e9)
        order = round.rng.permutation(len(clients))
        highest = order[np.argsort(-losses[order], kind="stable")][: max(1, len(clients) // 2)]
        return self.mistake(round, clients[highest])

    def mistake(self, round, chosen):
        raise NotImplementedError


class PicksTheUnavailable(Wrong):
    def _check(self, cohort, round):
        return cohort

    def mistake(self, round, chosen):
        return Cohort.mean(np.unique([*chosen, 0]))


class WeighsBadly(Wrong):
    def mistake(self, round, chosen):
        return Cohort(chosen, np.ones(len(chosen)))


class ChoosesNobody(Wrong):
    def mistake(self, round, chosen):
        return Cohort.mean(chosen[:0])


class DrawsNobody(Wrong):
    """Says that an empty cohort came of independent draws."""

    def mistake(self, round, chosen):
        return Cohort(chosen[:0], np.empty(0), unbiased=True)


class DrawsGlobally(Wrong):
    def mistake(self, round, chosen):
        return Cohort.mean(chosen[: np.random.randint(1, 4)])  # noqa: NPY002


class KeepsState(Wrong):
    def mistake(self, round, chosen):
        self.last_ = chosen
        return Cohort.mean(chosen)


class TakesWhatItDoesNotName(BaseSelector):
    """Takes spreads of losses, which clients send only if ``needs`` names them."""

    def _select(self, round):
        spread = np.nan_to_num(round.past.loss_std)
        clients = np.flatnonzero(round.available & (spread <= np.median(spread)))
        if not len(clients):
            clients = np.flatnonzero(round.available)
        return Cohort.by_size(clients, round.sizes)


class KeepsStateOnTheClass(Wrong):
    rounds = 0

    def mistake(self, round, chosen):
        type(self).rounds += 1
        return Cohort.mean(chosen)


class WeighsTheFirst(Wrong):
    """Gives nearly all weight to the client of lowest index."""

    def mistake(self, round, chosen):
        weights = np.where(chosen == chosen.min(), 1.0, 1e-3)
        return Cohort(chosen, weights / weights.sum())


class WeighsByOthersSizes(Wrong):
    def mistake(self, round, chosen):
        chosen = np.sort(chosen)
        sizes = round.sizes[chosen][::-1]
        return Cohort(chosen, sizes / sizes.sum())


def losses_of(round):
    """Return the losses of a mock round without a poll."""
    return getclosurevars(round.ask).nonlocals["losses"]


class LooksBehind(Wrong):
    """Uses losses of clients that it did not poll."""

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        losses = np.nan_to_num(losses_of(round)[clients], nan=-1e9)
        return Cohort.mean(clients[np.argsort(-losses, kind="stable")[:1]])


class TakesLossesForReported(Utility):
    """Uses current losses, which it did not poll, in place of reported ones."""

    def _reported(self, round):
        return losses_of(round)


class PrefersWhoFailed(Utility):
    """Treats clients whose training failed as new ones."""

    def _reported(self, round):
        return np.nan_to_num(round.reported, nan=1e9)


class RanksByStaleLosses(PowerOfChoice):
    """Polls, and ranks by what was reported before."""

    def _losses(self, round, candidates):
        super()._losses(round, candidates)
        return np.nan_to_num(round.reported[candidates], nan=-np.inf)


class LeavesOutAFactor(RandomSelector):
    """Has weights p_k in place of p_k K / m."""

    def _select(self, round):
        clients = super()._select(round).clients
        return Cohort(clients, round.sizes[clients] / round.sizes.sum(), unbiased=True)


class ChangesTheView(Wrong):
    def mistake(self, round, chosen):
        object.__setattr__(round, "sizes", round.sizes + 1)
        return Cohort.mean(chosen)


class PrefersLowIndices(Wrong):
    def _select(self, round):
        clients = np.flatnonzero(round.available)
        return Cohort.mean(clients[:3])


class Unseeded(Wrong):
    def mistake(self, round, chosen):
        return Cohort.mean(np.random.default_rng().permutation(chosen)[:2])


class CannotBeAlone(Wrong):
    def mistake(self, round, chosen):
        return Cohort.mean(chosen[1:] if len(chosen) == 1 else chosen)


class HoldsFunction(Wrong):
    """Its parameter cannot be pickled."""

    def __init__(self, rule=None):
        self.rule = rule

    def mistake(self, round, chosen):
        return Cohort.mean(chosen)


class ChangesItsParameters(Wrong):
    def __init__(self, share=1.0):
        self.share = share / 2

    def mistake(self, round, chosen):
        return Cohort.mean(chosen)


class RemembersBesideItsMemory(Momentum):
    def __init__(self):
        self._rounds = []

    def _select(self, round):
        self._rounds.append(round.index)
        cohort = super()._select(round)
        return replace(cohort, memory=dict(cohort.memory, n=len(self._rounds)))


TURN = {"index": -1, "before": 0, "after": 0}


class TakesBackTheLastRoundAlone(Wrong):
    """Counts rounds in a global, which all copies share; one of the same index is counted once.

    So any copy goes on, and repeats the last round; of a round before, it has a wrong count.
    """

    def mistake(self, round, chosen):
        if round.index != TURN["index"]:
            TURN.update(index=round.index, before=TURN["after"], after=TURN["after"] + 1)
        return Cohort.mean(chosen[: 1 + TURN["before"] % 3])


class RemembersWhereItWas(Momentum):
    """Once it remembers a round, it goes through the list of clients."""

    def _select(self, round):
        cohort = super()._select(round)
        clients = np.flatnonzero(round.available)
        return replace(cohort, clients=clients[:2]) if round.memory else cohort


class WeighsByNorms(BaseSelector):
    def _select(self, round):
        clients = np.flatnonzero(round.available)
        norms = np.linalg.norm(round.sketch(clients), axis=1)
        return Cohort(clients, norms / norms.sum())


class AdmitsFailedClients(Admitting):
    def admit(self, round, reports):
        return Cohort.mean(reports.clients)


WRONG = [
    (UniformCandidates(d=4, clients_per_round=2), "check_marginals_are_as_stated"),
    (IndexesAnotherList(d=4, clients_per_round=2), "check_answers_count_for_who_gave_them"),
    (TiesToTheFirst(d=4, clients_per_round=2), "check_ties_are_broken_at_random"),
    (PrefersNaN(d=4, clients_per_round=2), "check_failed_clients_are_not_preferred"),
    (PicksTheUnavailable(), "check_unavailable_clients_are_left_alone"),
    (WeighsBadly(), "check_cohorts_are_valid"),
    (ChoosesNobody(), "check_cohorts_are_valid"),
    (DrawsGlobally(), "check_only_the_rounds_generator_is_drawn_from"),
    (KeepsState(), "check_no_state_is_kept"),
    (RemembersBesideItsMemory(), "check_only_the_memory_is_remembered"),
    (TakesBackTheLastRoundAlone(), "check_only_the_memory_is_remembered"),
    (TakesWhatItDoesNotName(), "check_what_it_needs_is_named"),
    (RemembersWhereItWas(), "check_a_memory_is_of_clients_by_index"),
    (WeighsByNorms(), "check_vectors_may_be_zero_or_unknown"),
    (AdmitsFailedClients(), "check_admitted_clients_have_reported"),
    (KeepsStateOnTheClass(), "check_no_state_is_kept"),
    (WeighsTheFirst(), "check_ties_are_broken_at_random"),
    (WeighsByOthersSizes(), "check_order_of_clients_does_not_matter"),
    (LooksBehind(), "check_answers_used_are_asked_for"),
    (TakesLossesForReported(), "check_answers_used_are_asked_for"),
    (RanksByStaleLosses(d=4, clients_per_round=2), "check_answers_asked_for_are_used"),
    (LeavesOutAFactor(3, "uniform"), "check_unbiased_weights_are_fractions_on_average"),
    (DrawsNobody(), "check_unbiased_weights_are_fractions_on_average"),
    (PrefersWhoFailed(), "check_failed_clients_are_not_preferred"),
    (ChangesTheView(), "check_the_view_is_left_alone"),
    (PrefersLowIndices(), "check_order_of_clients_does_not_matter"),
    (Unseeded(), "check_same_seed_gives_same_cohort"),
    (CannotBeAlone(), "check_a_single_available_client"),
    (HoldsFunction(rule=lambda loss: loss), "check_it_clones_and_pickles"),
]


@pytest.mark.parametrize(("selector", "name"), WRONG, ids=lambda case: type(case).__name__)
def test_each_mistake_fails_its_check(selector, name):
    check = next(check for check in CHECKS if check.__name__ == name)
    with pytest.raises(AssertionError, match=f"^{name}: ") as raised:
        run_check(check, selector)
    assert not isinstance(raised.value.__cause__, TypeError)  # a mistake of this test


def test_a_selector_that_keeps_state_is_told_where_to_look_instead():
    with pytest.raises(
        AssertionError, match="its attributes changed: .* known of clients from the"
    ):
        check_selector(KeepsState())


def test_a_round_that_was_undone_is_to_be_repeated_alike():
    with pytest.raises(AssertionError, match=r"^round \d+, undone and repeated with the memory of"):
        check_only_the_memory_is_remembered(TakesBackTheLastRoundAlone())


def test_check_selector_runs_the_last_check_too():
    selector, name = WRONG[0]
    assert CHECKS[-1].__name__ == name
    with pytest.raises(AssertionError, match=f"^{name}: "):
        check_selector(selector)


def test_parameters_that_change_when_cloned_fail():
    with pytest.raises((AssertionError, RuntimeError), match="Cannot clone|check_it_clones"):
        check_selector(ChangesItsParameters(share=0.8))


def test_every_check_has_a_selector_that_fails():
    assert {name for _, name in WRONG} == {check.__name__ for check in CHECKS}


@pytest.mark.parametrize("selector", [Momentum(), Tried(), Admitting()], ids=repr)
@pytest.mark.parametrize(
    "check", [*CHECKS[:5], check_unavailable_clients_are_left_alone, check_it_clones_and_pickles]
)
def test_rules_with_memory_trials_and_two_phases_pass(selector, check):
    check(selector)

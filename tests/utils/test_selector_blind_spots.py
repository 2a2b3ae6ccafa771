"""Rules that are wrong in some rounds only, or by what few rounds show, are refused by name."""

from inspect import getclosurevars

import numpy as np
import pytest

from skfed import PowerOfChoice, RandomSelector
from skfed.selection import BaseSelector, Cohort
from skfed.utils.selector_checks import CHECKS, check_selector, run_check


class Highest(BaseSelector):
    """Polls all and takes the half of highest loss, ties at random, unless it is mistaken."""

    def _select(self, round):
        clients = round.rng.permutation(np.flatnonzero(round.available))
        losses = self._losses(round, clients)
        losses = np.where(np.isfinite(losses), losses, -1e9)
        chosen = clients[np.argsort(-losses, kind="stable")][: max(1, len(clients) // 2)]
        return self._cohort(round, chosen)

    def _losses(self, round, clients):
        return round.poll(clients)

    def _cohort(self, round, chosen):
        return Cohort.mean(chosen)


# Answers that are not used, or stale losses in their place


class Stale(PowerOfChoice):
    """Polls, and ranks by what was reported before."""

    def _losses(self, round, candidates):
        super()._losses(round, candidates)
        return np.nan_to_num(round.reported[candidates], nan=-np.inf)


class StaleWhereReported(Highest):
    def _losses(self, round, clients):
        answers = round.poll(clients)
        reported = round.reported[clients]
        return np.where(np.isfinite(reported), reported, answers)


class StaleForHalf(Highest):
    """The answers of clients of odd numbers are not used."""

    def _losses(self, round, clients):
        answers = round.poll(clients)
        return np.where(clients % 2, np.nan_to_num(round.reported[clients], nan=-1e9), answers)


class StaleOfWhoAnswered(Highest):
    def _losses(self, round, clients):
        answers = round.poll(clients)
        return np.where(np.isfinite(answers), np.nan_to_num(round.reported[clients]), -1e9)


class StaleLate(Highest):
    def _losses(self, round, clients):
        answers = round.poll(clients)
        late = round.index >= 7
        return np.nan_to_num(round.reported[clients], nan=-1e9) if late else answers


class Unheard(Highest):
    """Polls, and takes the largest."""

    def _losses(self, round, clients):
        round.poll(clients)
        return round.sizes[clients]


class UnheardOnceTimed(Highest):
    """Polls, and once clients are timed draws at random."""

    def _losses(self, round, clients):
        answers = round.poll(clients)
        return answers if np.isnan(round.seconds).any() else round.rng.random(len(clients))


# What changes with the round's index, or with what is known of the clients


class FirstWhen(Highest):
    """Takes the first clients in some rounds."""

    def __init__(self, when=None):
        self.when = when

    def _cohort(self, round, chosen):
        if WHEN[self.when](round):
            chosen = np.flatnonzero(round.available)[: len(chosen)]
        return Cohort.mean(chosen)


WHEN = {
    "round 7 and later": lambda round: round.index >= 7,
    "round 0": lambda round: round.index == 0,
    "even rounds": lambda round: round.index % 2 == 0,
    "odd rounds": lambda round: round.index % 2 == 1,
    "the last round": lambda round: round.index == round.n_rounds - 1,
    "after the last round": lambda round: round.index >= round.n_rounds,
    "long fits": lambda round: round.n_rounds > 50,
    "a fit of one round": lambda round: round.n_rounds == 1,
    "some are timed": lambda round: np.isfinite(round.seconds).any(),
    "all are timed": lambda round: np.isfinite(round.seconds).all(),
    "some are not timed": lambda round: 0 < np.isnan(round.seconds).sum() < len(round.seconds),
    "devices tell": lambda round: round.expect is not None,
    "some have failed": lambda round: np.isnan(round.reported).any(),
    "nobody has reported": lambda round: np.isinf(round.reported).all(),
    "some are new": lambda round: 0 < np.isinf(round.reported).sum() < len(round.reported),
    "priority in part": lambda round: np.any(round.priority_weights % 1 > 0),
    "priority of all": lambda round: round.priority.all(),
    "some are away": lambda round: not round.available.all(),
}


class QuickestFirst(Highest):
    """Takes the quickest of last time, of equal ones those of the lowest index."""

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        seconds = np.nan_to_num(round.seconds[clients], nan=0.0)
        if not seconds.any():
            return super()._select(round)
        return Cohort.mean(clients[np.argsort(seconds, kind="stable")[:3]])


class ExpectedFirst(BaseSelector):
    """The same with expected seconds, which it cannot do without."""

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        return Cohort.mean(clients[np.argsort(round.expected_seconds(clients), kind="stable")[:3]])


class WeighsByUnknownSeconds(Highest):
    """Weights by speed; those of clients not timed yet are NaN."""

    def _cohort(self, round, chosen):
        if np.isnan(round.seconds).all():
            return Cohort.mean(chosen)
        speeds = 1 / round.seconds[chosen]
        return Cohort(chosen, speeds / speeds.sum())


class QuickestOfAll(Highest):
    """Once all are timed, takes the quickest, available or not."""

    def _cohort(self, round, chosen):
        known = np.isfinite(round.seconds).all()
        return Cohort.mean(np.argsort(round.seconds)[:3] if known else chosen)


class LooksLate(Highest):
    """Uses losses that it did not ask for, in late rounds."""

    def _losses(self, round, clients):
        if round.index < 9:
            return super()._losses(round, clients)
        return getclosurevars(round.ask).nonlocals["losses"][clients]


class PrefersFailedLate(Highest):
    def _losses(self, round, clients):
        answers = round.poll(clients)
        return np.where(np.isnan(answers), 1e9, answers) if round.index >= 7 else answers


class DrawsGloballyLate(Highest):
    def _cohort(self, round, chosen):
        if round.index >= 7:
            np.random.shuffle(chosen)  # noqa: NPY002
        return Cohort.mean(chosen)


# Weights


class Unbiased(RandomSelector):
    """Uniform draws with the weights of a mistake."""

    def __init__(self, mistake=None):
        super().__init__(4, "uniform", replace=False)
        self.mistake = mistake

    def _select(self, round):
        available = np.flatnonzero(round.available)
        m = min(4, len(available))
        shares = round.sizes / round.sizes[available].sum()
        return MISTAKES[self.mistake](round, available, m, shares)


def uniform(round, available, m):
    return round.rng.choice(available, m, replace=False)


def without_factor(round, available, m, shares):
    clients = uniform(round, available, m)
    return Cohort(clients, shares[clients], unbiased=True)


def of_equal_weights(round, available, m, shares):
    return Cohort(uniform(round, available, m), np.full(m, 1 / m), unbiased=True)


def of_draws_by_size(round, available, m, shares):
    clients = round.draw(m)
    return Cohort(clients, shares[clients] * len(available) / m, unbiased=True)


def without_small_ones(round, available, m, shares):
    large = available[round.sizes[available] > 5] if len(available) > m else available
    clients = uniform(round, large, min(m, len(large)))
    return Cohort(clients, shares[clients] * len(available) / len(clients), unbiased=True)


def twice_late(round, available, m, shares):
    clients = uniform(round, available, m)
    factor = 2 if round.index >= 7 else 1
    return Cohort(clients, factor * shares[clients] * len(available) / m, unbiased=True)


MISTAKES = {
    "q_k = p_k": without_factor,
    "q_k = 1 / m": of_equal_weights,
    "q_k = p_k K / m of draws by size": of_draws_by_size,
    "the smallest never": without_small_ones,
    "twice as much in late rounds": twice_late,
}

# State outside the attributes

STATE = {}


@pytest.fixture(autouse=True)
def _a_new_process():
    STATE.update({"n": 0, "last": (), "seen": set(), "t": -1, "in a row": 0})


class Remembers(Highest):
    def __init__(self, how=None):
        self.how = how

    def _cohort(self, round, chosen):
        return Cohort.mean(MEMORIES[self.how](round, chosen))


def count(round, chosen):
    STATE["n"] += 1
    return np.roll(np.flatnonzero(round.available), STATE["n"])[: len(chosen)]


def count_to_fifty(round, chosen):
    STATE["n"] += 1
    return chosen if STATE["n"] < 50 else chosen[:1]


def the_last_cohort(round, chosen):
    chosen, STATE["last"] = chosen[~np.isin(chosen, STATE["last"])], chosen
    return chosen if len(chosen) else STATE["last"]


def who_was_seen_in_this_fit(round, chosen):
    """It forgets in round 0, so that each fit is like the first."""
    if round.index == 0:
        STATE["seen"].clear()
    new = [k for k in chosen.tolist() if k not in STATE["seen"]]
    STATE["seen"].update(chosen.tolist())
    return np.array(new or chosen)


def rounds_in_a_row(round, chosen):
    STATE["in a row"] = STATE["in a row"] + 1 if round.index == STATE["t"] + 1 else 0
    STATE["t"] = round.index
    return chosen[:1] if STATE["in a row"] > 5 else chosen


def late_rounds(round, chosen):
    STATE["n"] += round.index >= 7
    return chosen[: 1 + STATE["n"] % 3]


def in_a_closure():
    n = 0

    def counted(round, chosen):
        nonlocal n
        n += 1
        return chosen[: 1 + n % 4]

    return counted


def in_a_default(round, chosen, known=[]):  # noqa: B006
    known.append(round.index)
    return chosen[: 1 + len(known) % 4]


MEMORIES = {
    "count": count,
    "count to 50": count_to_fifty,
    "the last cohort": the_last_cohort,
    "who was seen in this fit": who_was_seen_in_this_fit,
    "rounds in a row": rounds_in_a_row,
    "late rounds": late_rounds,
    "in a closure": in_a_closure(),
    "in a default": in_a_default,
}

# State that is written once: no order of rounds shows it, but the cohorts do not follow the losses

KEPT = {}


class FirstOfItsIndex(Highest):
    def _cohort(self, round, chosen):
        kept = KEPT.setdefault(round.index, chosen)
        return Cohort.mean(kept if round.available[kept].all() else chosen)


def first_of_all(chosen, kept=[]):  # noqa: B006
    kept += [] if kept else chosen.tolist()
    return np.array(kept)


class FirstOfAll(Highest):
    def _cohort(self, round, chosen):
        first = first_of_all(chosen)
        return Cohort.mean(first if round.available[first].all() else chosen)


ANSWERS = "check_answers_asked_for_are_used"
STATE_KEPT = "check_no_state_is_kept", "state is kept outside the attributes"
ORDER = "check_order_of_clients_does_not_matter"
WEIGHTS = "check_unbiased_weights_are_fractions_on_average", "not p_k on average"
IN_ROUND = r"\(in round \d+ of \d+ with"

# The rules, the checks that they fail and what these say
WRONG = [
    (Stale(d=6, clients_per_round=3), ANSWERS, "stale losses of round.reported"),
    (StaleWhereReported(), ANSWERS, "stale losses of round.reported"),
    (StaleForHalf(), ANSWERS, "stale losses of round.reported"),
    (StaleOfWhoAnswered(), ANSWERS, "stale losses of round.reported"),
    (StaleLate(), ANSWERS, "stale losses of round.reported"),
    (Unheard(), ANSWERS, "whatever they answer"),
    (UnheardOnceTimed(), ANSWERS, "whatever they answer .*with all seconds known"),
    *[(FirstWhen(when), ORDER, f"changes who is chosen {IN_ROUND}") for when in WHEN],
    (QuickestFirst(), "check_ties_are_broken_at_random", "with (all|some) seconds known"),
    (ExpectedFirst(), "check_ties_are_broken_at_random", IN_ROUND),
    (WeighsByUnknownSeconds(), "check_cohorts_are_valid", "not finite"),
    (QuickestOfAll(), "check_unavailable_clients_are_left_alone", "not available"),
    (LooksLate(), "check_answers_used_are_asked_for", IN_ROUND),
    (PrefersFailedLate(), "check_failed_clients_are_not_preferred", IN_ROUND),
    (DrawsGloballyLate(), "check_only_the_rounds_generator_is_drawn_from", "global generator"),
    *[(Unbiased(mistake), *WEIGHTS) for mistake in MISTAKES],
    *[(Remembers(how), *STATE_KEPT) for how in MEMORIES],
]


@pytest.mark.parametrize(("selector", "name", "says"), WRONG, ids=lambda case: repr(case)[:60])
def test_wrong_rules_fail_the_check_of_their_mistake(selector, name, says):
    check = next(check for check in CHECKS if check.__name__ == name)
    with pytest.raises(AssertionError, match=f"^{name}: .*{says}"):
        run_check(check, selector)


FIRST_TO_FAIL = [
    (Stale(), f"{ANSWERS}: .*stale losses of round.reported"),
    (FirstWhen("round 7 and later"), r"renumber|swapped|whatever they answer \(in round"),
    (FirstWhen("all are timed"), "with all seconds known"),
    (Unbiased("q_k = p_k"), ": .*".join(WEIGHTS)),
    (Remembers("count"), ": .*".join(STATE_KEPT)),
    (DrawsGloballyLate(), "check_only_the_rounds_generator_is_drawn_from: "),
    (FirstOfItsIndex(), "check_"),
    (FirstOfAll(), "check_"),
]


@pytest.mark.parametrize(("selector", "message"), FIRST_TO_FAIL, ids=repr)
def test_the_first_check_to_fail_names_the_mistake(selector, message):
    with pytest.raises(AssertionError, match=message):
        check_selector(selector)


def test_the_rule_of_which_they_are_made_passes():
    check_selector(Highest())

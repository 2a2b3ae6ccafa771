"""Selectors decide as was worked out by hand; each published mistake fails where it is named."""

import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import cdist, pdist

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
from skfed.selection import Cohort, _clustered, _hics
from skfed.selection._divfl import facility_location
from skfed.selection._sampling import least_variance
from skfed.utils import _selector_decisions
from skfed.utils._selector_decisions import rules_with_worked_decisions, worked_decisions
from skfed.utils.selector_checks import check_worked_decisions

RULES = {
    "afl": ActiveFLSelector(),
    "clustered": ClusteredSelector(),
    "divfl": DivFLSelector(),
    "fedalign": FedAlignSelector(),
    "fedcor": FedCorSelector(),
    "fedcs": FedCSSelector(),
    "hics_fl": HicsFLSelector(),
    "kvib": KVibSelector(),
    "loss_proportional": LossProportionalSelector(),
    "oort": OortSelector(),
    "optimal": OptimalSelector(),
    "power_of_choice": PowerOfChoice(),
    "random": RandomSelector(),
    "round_robin": RoundRobinSelector(),
    "tifl": TiflSelector(),
    "ucb": UcbSelector(),
}


@pytest.mark.parametrize("rule", RULES)
def test_selectors_of_the_package_decide_as_worked_out(rule):
    check_worked_decisions(RULES[rule], rule)


def test_a_word_that_a_decision_cannot_have_is_no_decision(monkeypatch):
    (decision,) = worked_decisions("power_of_choice")[:1]
    wrong = decision | {
        "rounds": [decision["rounds"][0] | {"decision": {"cohort": [0], "cohrt": [0]}}]
    }
    monkeypatch.setattr(_selector_decisions, "worked_decisions", lambda rule: [wrong])
    with pytest.raises(AssertionError, match="a decision has \\['cohrt'\\]: it may have"):
        check_worked_decisions(PowerOfChoice(), "power_of_choice")


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="rule='pow' has no worked decisions; there are those of"):
        check_worked_decisions(PowerOfChoice(), "pow")


def test_each_rule_has_six_decisions_that_say_how_they_were_derived():
    assert rules_with_worked_decisions() == sorted(RULES)
    for rule in RULES:
        decisions = worked_decisions(rule)
        assert len(decisions) >= 6
        assert len({one["name"] for one in decisions}) == len(decisions)
        for one in decisions:
            assert one["derivation"]
            assert any(given["decision"] for given in one["rounds"])


def powd_uniform_candidates(self, round):
    candidates = round.draw(self._counts(round)[0], by_size=False)
    return _highest(self, round, candidates, round.poll(candidates))


def powd_positions(self, round):
    candidates = round.draw(self._counts(round)[0])
    best = np.argsort(-np.nan_to_num(round.poll(candidates)))[: self._counts(round)[1]]
    return Cohort.mean(np.flatnonzero(round.available)[best])


def powd_stale_losses(self, round):
    candidates = round.draw(self._counts(round)[0])
    return _highest(self, round, candidates, round.reported[candidates])


def powd_argpartition_of_all(self, round):
    clients = np.flatnonzero(round.available)
    losses, m = np.nan_to_num(round.poll(clients)), self._counts(round)[1]
    # As np.argpartition(losses, m) may order them: the m lowest first, the others in no order.
    beyond = np.argsort(losses)[m:]
    return Cohort.mean(clients[np.sort(beyond if len(beyond) else np.arange(len(clients)))[-m:]])


def _highest(self, round, candidates, losses):
    losses = np.where(np.isnan(losses), -np.inf, losses)
    return Cohort.mean(candidates[np.argsort(-losses)[: self._counts(round)[1]]])


def afl_epsilon(self, round):
    def chances(rng, reported):
        odds = self._chances(rng, reported) + 0.01
        return odds / odds.sum()

    rule = ActiveFLSelector(**self.get_params())
    rule._chances = chances
    return rule._select(round)


def afl_drops_a_quarter(self, round):
    """The share alpha1 is kept, and the rest left out."""
    kept = self.get_params() | {"alpha1": 1 - self.alpha1}
    return ActiveFLSelector(**kept)._select(round)


def oort_cutoff_index(self, round):
    """The pool begins at a share of the score after those exploited."""
    rule = OortSelector(**self.get_params())
    rule._pool = lambda scores, n: OortSelector._pool(rule, scores, min(n + 1, len(scores)))
    return rule._select(round)


def oort_stale_explorers(self, round):
    """Once nobody is new, those explored last join every cohort."""
    cohort = OortSelector(**self.get_params())._select(round)
    is_new = round.past.n_chosen[cohort.clients] == 0
    last = cohort.clients[is_new] if is_new.any() else round.memory.get("last", np.array([], int))
    n_others = len(cohort.clients) - len(last)
    clients = np.union1d(last, np.setdiff1d(cohort.clients, last)[:n_others])
    return replace(Cohort.mean(clients), memory={**cohort.memory, "last": last})


def oort_frozen_bonus(self, round):
    """The bonus is that of the round in which a client reported."""
    rule, last = OortSelector(**self.get_params()), round.past.last_chosen + 1

    def utility_and_bonus(round, clients):
        now = OortSelector._utility_and_bonus(rule, round, clients)
        logs = np.log([round.index + 1, *last[clients]])
        return (
            now + np.sqrt(0.1 * logs[1:] / last[clients]) - np.sqrt(0.1 * logs[0] / last[clients])
        )

    rule._utility_and_bonus = utility_and_bonus
    return rule._select(round)


def ward_on_rows(self, round):
    """The rows of the square matrix of angles are taken for positions."""
    with mock.patch.object(_clustered, "ward_tree", _tree_of_rows):
        return ClusteredSelector(**self.get_params())._select(round)


def _tree_of_rows(distances):
    return linkage(pdist(distances), method="ward")


class WithReplacement:
    """A generator of which samples are drawn with replacement."""

    def __init__(self, rng):
        self._rng = rng
        self.permutation = rng.permutation

    def choice(self, a, size=None, replace=True, p=None):
        return self._rng.choice(a, size, p=p)


def tifl_with_replacement(self, round):
    other = replace(round, rng=WithReplacement(round.rng))
    return TiflSelector(**self.get_params())._select(other)


def divfl_squared(self, round):
    clients = np.flatnonzero(round.available)
    sketches = round.sketch(clients)
    squares = cdist(sketches, sketches, "sqeuclidean")
    chosen = clients[facility_location(squares, self.clients_per_round, round.rng)]
    return Cohort.by_size(chosen, round.sizes)


def divfl_everybody_each_round(self, round):
    return DivFLSelector(**self.get_params())._select(replace(round, memory={}))


def hics_ward_on_rows(self, round):
    """The rows of the square matrix of distances are taken for positions."""
    with mock.patch.object(_hics, "ward_tree", _tree_of_rows):
        return HicsFLSelector(**self.get_params())._select(round)


def ucb_without_p(self, round):
    equal = np.ones(len(round.sizes), int)
    return UcbSelector(**self.get_params())._select(replace(round, sizes=equal))


def fedcor_unweighted(self, round):
    equal = np.ones(len(round.sizes))
    return FedCorSelector(**self.get_params())._select(replace(round, fractions=equal))


def kvib_without_root(self, round):
    """Probabilities in proportion to omega + gamma."""
    rule = KVibSelector(**self.get_params())
    rule._leader = lambda costs, gamma, m: least_variance(costs + gamma, m)
    return rule._select(round)


def kvib_cap_index(self, round):
    """The first client that is to have 1 shares what is left for those below it."""
    rule = KVibSelector(**self.get_params())
    rule._leader = _with_one_too_few_capped
    return rule._select(round)


def _with_one_too_few_capped(costs, gamma, m):
    roots = np.sqrt(costs + gamma)
    order = np.argsort(roots)
    ordered, budgets = roots[order], m - len(roots) + np.arange(1, len(roots) + 1)
    n_below = np.argmax([*(budgets * ordered > np.cumsum(ordered)), True])
    chances = np.ones(len(roots))
    sharing = order[: n_below + 1]
    chances[sharing] = budgets[n_below - 1] * roots[sharing] / ordered[:n_below].sum()
    return chances


# Most published mistakes are rules of their own, and valid ones: check_selector cannot see them,
# decisions can.
MISTAKES = {
    "afl": [afl_epsilon, afl_drops_a_quarter],
    "clustered": [ward_on_rows],
    "divfl": [divfl_squared, divfl_everybody_each_round],
    "fedcor": [fedcor_unweighted],
    "hics_fl": [hics_ward_on_rows],
    "oort": [oort_cutoff_index, oort_stale_explorers, oort_frozen_bonus],
    "kvib": [kvib_without_root, kvib_cap_index],
    "power_of_choice": [
        powd_uniform_candidates,
        powd_positions,
        powd_stale_losses,
        powd_argpartition_of_all,
    ],
    "tifl": [tifl_with_replacement],
    "ucb": [ucb_without_p],
}
_CASES = [(rule, mistake) for rule, mistakes in MISTAKES.items() for mistake in mistakes]


@pytest.mark.parametrize(("rule", "mistake"), _CASES, ids=[one.__name__ for _, one in _CASES])
def test_a_published_mistake_fails_the_decisions_that_name_it(rule, mistake, monkeypatch):
    wrong = type("Wrong", (type(RULES[rule]),), {"_select": mistake})
    named = [one for one in worked_decisions(rule) if mistake.__name__ in one["catches"]]
    monkeypatch.setattr(_selector_decisions, "worked_decisions", lambda rule: named)
    with pytest.raises(AssertionError) as caught:
        check_worked_decisions(wrong(), rule)
    assert [one for one in named if f"{one['name']}, round" not in str(caught.value)] == []


def test_every_mistake_that_a_file_names_is_tried():
    for rule in RULES:
        named = {name for one in worked_decisions(rule) for name in one["catches"]}
        assert named == {one.__name__ for one in MISTAKES.get(rule, [])}


def test_the_page_of_names_refers_to_decisions_that_exist():
    page = Path(__file__).parents[2] / "doc" / "user_guide" / "rule_names.rst"
    rows = re.split(r"^   \* - ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    cells = [re.split(r"^     -", row, flags=re.MULTILINE) for row in rows]
    rows_of_code = [row for row in cells if len(row) == 4 and re.match(r" [0-9a-f]{7}\b", row[1])]
    last = [row[3].split("\n\n")[0].split(";") for row in rows_of_code]
    shown = {" ".join(name.split()) for names in last for name in names}
    named = {one["name"] for rule in RULES for one in worked_decisions(rule)}
    assert len(shown) > 15
    assert not shown - named - {""}

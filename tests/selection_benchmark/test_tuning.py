"""Random selection is tuned as every other rule is."""

import math
import pickle

import pytest

from benchmarks.selection.cells import FULL, SMALL, TIERS, Cell, named_cells
from benchmarks.selection.conditions import CONDITIONS
from benchmarks.selection.data import DATA
from benchmarks.selection.models import GRIDS
from benchmarks.selection.rules import RANDOM, RULES
from benchmarks.selection.tuning import (
    N_TRIALS,
    Candidate,
    all_candidates,
    best,
    first_trials,
    further_trials,
)


@pytest.mark.parametrize("model", GRIDS)
@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_as_many_trials_whatever_rate_is_the_best(name, model):
    first = first_trials(name, model)
    assert [one.lr for one in first] == list(GRIDS[model])
    for rate in GRIDS[model]:
        tried = [*first, *further_trials(name, RULES[name], model, rate)]
        assert len({one.name for one in tried}) == N_TRIALS
        assert {one.name for one in tried} <= {
            one.name for one in all_candidates(name, RULES[name], model)
        }


def test_a_rule_without_a_parameter_tries_rates_halfway_to_the_neighbours():
    """Geometric means: of .03 and .1 it is .0548; beyond .3, as far as .1 is below: .9, .52."""
    middle = further_trials(RANDOM, RULES[RANDOM], "linear", 0.03)
    assert [one.lr for one in middle] == [0.017, 0.055]
    assert [one.lr for one in further_trials(RANDOM, RULES[RANDOM], "linear", 0.3)] == [0.17, 0.52]
    assert further_trials(RANDOM, RULES[RANDOM], "linear", 0.01)[0].lr == 0.0058


def test_a_rule_with_a_parameter_tries_its_values_at_the_best_rate():
    found = further_trials("Oort", RULES["Oort"], "linear", 0.1)
    assert [(one.lr, one.value) for one in found] == [(0.1, 0.3), (0.1, 0.6)]
    assert found[0].name == "Oort, lr=0.1, own=0.3"


def test_the_best_is_the_first_of_equal_ones_and_one_that_diverged_never():
    tried = [Candidate("a", lr) for lr in (0.1, 0.2, 0.3)]
    known = dict(zip((one.name for one in tried), (math.nan, 0.5, 0.5), strict=True))
    assert best(tried, known).lr == 0.2


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", RULES)
def test_selectors_fit_their_data_with_every_value(name, data):
    m, rule = DATA[data].clients_per_round, RULES[name]
    for value in (None, *rule.values):
        selector = rule.selector(m, value)
        selector._validate_params()
        params = selector.get_params()
        assert params.get("clients_per_round", m) == m
        assert (params.get("d") or 0) <= DATA[data].n_clients
        if value is not None:
            assert params[rule.parameter] != rule.selector(m).get_params()[rule.parameter]


def test_tiers_are_those_of_the_issue():
    assert {cell.data for cell in SMALL} == {
        "fashion-mnist-0.3",
        "wisdm",
        "synthetic-1-1",
        "flights-carrier",
    }
    assert {cell.condition for cell in SMALL} == {"always", "devices"}
    assert {cell.model for cell in SMALL} == {"linear"}
    assert {cell.data for cell in FULL} == set(DATA)
    assert {cell.condition for cell in FULL} == set(CONDITIONS)
    assert {cell.model for cell in FULL} == {"linear", "mlp"}
    assert len(set(FULL)) == len(FULL)
    assert [n_seeds for _, n_seeds in TIERS.values()] == [3, 5]


def test_rules_for_devices_and_for_priority_are_in_these_conditions_alone():
    everywhere = set(Cell("digits", "linear", "always").suitable)
    assert set(Cell("digits", "linear", "deadline").suitable) - everywhere == {"FedCS", "TiFL"}
    prior = set(Cell("digits", "linear", "priority-kind").suitable)
    assert prior == {RANDOM, "FedALIGN", "FedAvg on priority"}


@pytest.mark.parametrize("cell", FULL, ids=lambda cell: cell.name)
def test_cells_can_be_sent_to_other_processes(cell):
    again = pickle.loads(pickle.dumps(cell))
    assert again.describe() == cell.describe()
    assert again.suitable.keys() == cell.suitable.keys()


def test_cells_are_named_by_three_words_and_all_of_a_kind_by_a_star():
    assert [c.condition for c in named_cells(["wisdm/mlp/*"])] == list(CONDITIONS)
    for wrong in ("wisdm", "wisdm/linear/never", "wisdm/linear/always/1"):
        with pytest.raises(ValueError, match=f"no cell {wrong}: --list"):
            named_cells([wrong])

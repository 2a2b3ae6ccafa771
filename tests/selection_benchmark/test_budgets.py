"""Values within budgets, and costs to a target, on a table made by hand."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.selection.budgets import costs, reached

CELL = {"data": "digits", "model": "linear", "condition": "devices", "seed": 0}


def runs(rule, rounds, megabytes, seconds, accuracies, **more):
    """Return the rows of a run."""
    columns = {"rule": rule, "round": rounds, "bytes": megabytes, "seconds": seconds}
    figures = {"mean_accuracy": accuracies, "priority_accuracy": np.nan, "polls": 0}
    others = {"worst_accuracy": 0.0, "pooled_accuracy": 0.0}
    return pd.DataFrame({**CELL, **columns, **figures, **others, **more})


#: R is 8: random selection has spent 40 and 400 at its last round up to 4.
RANDOM = runs("random", [1, 4, 5, 8], [10, 40, 50, 80], [100, 400, 500, 800], [0.2, 0.5, 0.6, 0.8])
#: Twice the bytes a round, half the seconds.
OTHER = runs("other", [1, 4, 5, 8], [20, 80, 100, 160], [50, 200, 250, 400], [0.3, 0.7, 0.76, 0.9])


def within(table, budget, rule, figure="counts"):
    found = reached(table)
    (value,) = found.loc[(found["budget"] == budget) & (found["rule"] == rule), figure]
    return value


def test_budgets_are_those_of_random_selection():
    table = pd.concat([RANDOM, OTHER])
    assert within(table, "rounds", "random") == 0.8 and within(table, "rounds", "other") == 0.9
    assert within(table, "bytes", "random") == 0.5 and within(table, "bytes", "other") == 0.3
    assert within(table, "seconds", "random") == 0.5 and within(table, "seconds", "other") == 0.9


def test_a_rule_that_measures_nothing_within_a_budget_has_no_value():
    dear = OTHER.assign(bytes=OTHER["bytes"] + 30)
    assert np.isnan(within(pd.concat([RANDOM, dear]), "bytes", "other"))


def test_without_devices_there_is_no_budget_of_seconds():
    table = pd.concat([RANDOM, OTHER]).assign(seconds=np.nan, condition="always")
    assert set(reached(table)["budget"]) == {"rounds", "bytes"}


def test_with_priority_the_priority_clients_count():
    table = pd.concat([RANDOM, OTHER]).assign(condition="priority-kind", seconds=np.nan)
    table["priority_accuracy"] = 1 - table["mean_accuracy"]
    assert within(table, "rounds", "other") == pytest.approx(0.1)


def test_limits_are_of_the_same_seed():
    later = RANDOM.assign(seed=1, bytes=2 * RANDOM["bytes"])
    table = pd.concat([RANDOM, OTHER, later, OTHER.assign(seed=1)])
    found = reached(table)
    found = found[(found["budget"] == "bytes") & (found["rule"] == "other")]
    assert found.set_index("seed")["counts"].to_dict() == {0: 0.3, 1: 0.7}


def test_the_cost_to_a_target_is_that_of_the_first_round_that_reaches_it():
    """.95 * .8 = .76."""
    low = OTHER.assign(rule="low", mean_accuracy=0.75)
    found = costs(pd.concat([RANDOM, OTHER, low])).set_index("rule")
    assert found.loc["random", ["round", "bytes", "seconds"]].tolist() == [8, 80, 800]
    assert found.loc["other", ["round", "bytes", "seconds"]].tolist() == [5, 100, 250]
    assert found.loc["low", ["round", "bytes", "seconds"]].isna().all()

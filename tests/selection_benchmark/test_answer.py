"""Differences, intervals, ranks and the first line, on values worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.selection.answer import (
    Difference,
    apart,
    best_rule,
    by_rule,
    over_blocks,
    paired,
    ranks,
)
from benchmarks.selection.page import origin, verdict
from benchmarks.selection.words import anchor, points


def table(n_cells=6, n_seeds=3, budget="rounds", **gains):
    """Return values of rules that are better than random selection by so much in each cell.

    Random selection differs by cell and seed, which pairing takes out.
    """
    rows = []
    for cell in range(n_cells):
        for seed in range(n_seeds):
            base = 0.5 + 0.03 * cell + 0.01 * seed
            for rule, gain in {"random": 0.0, **gains}.items():
                value = base + (gain(cell, seed) if callable(gain) else gain)
                names = {"data": f"d{cell}", "model": "linear", "condition": "always"}
                rows.append({**names, "seed": seed, "rule": rule, "counts": value})
    return pd.DataFrame(rows).assign(budget=budget)


def test_differences_are_to_random_selection_of_the_same_cell_and_seed():
    found = paired(table(good=0.02))
    np.testing.assert_allclose(found.loc[found["rule"] == "good", "points"], 2.0)
    assert (found.loc[found["rule"] == "random", "points"] == 0).all()


def test_the_mean_is_over_blocks_and_each_counts_alike():
    found = paired(table(2, 2, good=lambda cell, seed: 0.01 if cell else 0.03))
    more = pd.concat([found, found[found["data"] == "d1"]])  # twice as many seeds there
    assert by_rule(more)["good"].mean == pytest.approx(2.0)


def test_the_interval_of_one_cell_is_students_over_seeds():
    """Of 1, 2 and 3 it is 2 ± 4.3027 / sqrt(3)."""
    found = by_rule(paired(table(1, 3, good=lambda cell, seed: 0.01 * (seed + 1))))["good"]
    assert (found.mean, found.n_blocks) == (pytest.approx(2.0), 1)
    assert (found.low, found.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)


def test_the_interval_of_few_cells_is_students_over_their_means():
    found = by_rule(paired(table(3, 3, good=lambda cell, seed: 0.01 * (cell + 1))))["good"]
    assert (found.low, found.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)


def test_a_rule_with_the_same_runs_under_two_conditions_is_no_surer():
    frame = table(3, 3, good=lambda cell, seed: 0.01 * (cell + 1))
    twice = pd.concat([frame, frame.assign(condition="devices")])
    assert by_rule(paired(twice))["good"] == by_rule(paired(frame))["good"]


def test_conditions_with_other_numbers_of_seeds_count_alike():
    """One is 1 point better with five seeds, the other 3 worse with three: the mean is -1."""
    five = table(1, 5, good=0.01)
    three = table(1, 3, good=-0.03).assign(condition="devices")
    found = by_rule(paired(pd.concat([five, three])))["good"]
    assert (found.mean, found.n_blocks) == (pytest.approx(-1.0), 1)


def test_cells_of_other_data_keep_their_own_numbers_of_seeds():
    gains = [0.01, 0.02, 0.03, 0.06, 0.08]  # means 2 of three, 4 of five
    frame = table(2, 5, good=lambda cell, seed: gains[seed])
    found = paired(frame[(frame["data"] == "d0") | (frame["seed"] < 3)])
    assert by_rule(found)["good"].mean == pytest.approx(3.0)


def test_the_page_says_which_tier_and_which_cells_have_fewer_seeds():
    frame = pd.concat(
        table(1, n).assign(data=data, condition=condition)
        for data, condition, n in [
            ("wisdm", "always", 3),
            ("wisdm", "devices", 3),
            ("adult", "always", 5),
        ]
    )
    text = origin(frame)
    assert "of the full tier: 3 of " in text
    assert "5 seeds, but 3 in `wisdm/linear/always`, `wisdm/linear/devices`. Not in yet: " in text
    assert "`digits/linear/always`" in text and text.count("adult") == 0
    small = origin(frame[frame["data"] == "wisdm"])
    assert "of the small tier: 2 of 8 cells (data/model/condition), 3 seeds. Not in yet: " in small


def test_the_bootstrap_of_many_cells_is_as_wide_as_the_error_of_their_mean():
    rng = np.random.default_rng(0)
    gains = rng.normal(size=(40, 3)) * 0.01
    found = by_rule(paired(table(40, 3, good=lambda cell, seed: gains[cell, seed])))["good"]
    error = 100 * gains.std() / np.sqrt(gains.size)
    assert (found.high - found.low) / (2 * 1.96 * error) == pytest.approx(1.2, abs=0.25)
    again = by_rule(paired(table(40, 3, good=lambda cell, seed: gains[cell, seed])))["good"]
    assert again == found


def test_a_value_that_is_missing_is_left_out_and_a_rule_without_any_has_none():
    frame = table(1, 3, good=0.02)
    good = frame["rule"] == "good"
    part = frame.assign(counts=frame["counts"].mask(good & (frame["seed"] == 0)))
    assert by_rule(paired(part))["good"].mean == pytest.approx(2.0)
    none = by_rule(paired(frame.assign(counts=frame["counts"].mask(good))))["good"]
    assert none.n_blocks == 0 and points(none) == "-"
    assert best_rule({"good": none}) is None


def test_cells_are_counted_whose_interval_is_on_one_side_of_zero():
    """Of 1, 2 and 3 the interval has zero in it; of 11, 12 and 13 it has not."""
    gains = {0: 0.0, 1: 0.1, 2: -0.14}  # points 1 to 3, 11 to 13, -13 to -11
    found = paired(table(3, 3, rule=lambda cell, seed: gains[cell] + 0.01 * (seed + 1)))
    assert apart(found.query("rule == 'rule'")) == (1, 1)


def test_controls_are_never_the_best_rule():
    found = {"lowest losses": Difference(9, 8, 10, 1), "Oort": Difference(-1, -2, 0, 1)}
    assert best_rule(found)[0] == "Oort"


def test_the_first_line_says_so_if_no_rule_is_better():
    noise = np.random.default_rng(0).normal(size=(6, 3)) * 0.02
    none = table(6, 3, bad=-0.02, even=lambda cell, seed: noise[cell, seed])
    assert verdict(none) == (
        "**No rule is better than tuned random selection over the cells of this page.**"
    )
    some = pd.concat([table(6, 3, good=0.02), table(6, 3, "bytes", good=-0.02)])
    assert verdict(some) == (
        "**Better than tuned random selection, over the cells of this page: within the same "
        "rounds: good.**"
    )


def test_the_first_line_names_what_is_better_under_one_condition():
    kind = table(1, 3, good=0.04).assign(condition="priority-kind")
    frame = pd.concat([table(6, 3, good=-0.02), kind])
    assert verdict(frame) == (
        "**No rule is better than tuned random selection over the cells of this page.** Better "
        "under one condition: a tenth of the clients, of one kind, with priority (1 cell): good."
    )
    everywhere = pd.concat([table(6, 3, good=0.02), kind])
    assert verdict(everywhere).endswith("within the same rounds: good.**")


def test_ranks_are_means_over_blocks_of_the_rules_that_are_in_all_of_them():
    pytest.importorskip("scikit_posthocs", reason="needs the extra benchmarks")
    frame = table(6, 3, good=0.02, bad=-0.02, mixed=lambda cell, seed: 0.04 if cell < 3 else 0.01)
    partly = frame[frame["data"] == "d0"].query("rule == 'good'").assign(rule="partly")
    found = ranks(pd.concat([frame, partly]), "rounds")
    assert found.means.to_dict() == {"good": 1.5, "mixed": 1.5, "random": 3, "bad": 4}
    assert found.n_blocks == 6
    assert found.friedman == pytest.approx(0.00103, abs=1e-5)  # chi-squared 16.2, 3 degrees
    assert found.nemenyi.loc["good", "bad"] < 0.05 < found.nemenyi.loc["good", "random"]


def test_a_rule_without_a_value_is_last_and_one_cell_has_no_ranks():
    pytest.importorskip("scikit_posthocs", reason="needs the extra benchmarks")
    frame = table(2, 1, good=0.02, bad=-0.02)
    gone = frame.assign(counts=frame["counts"].mask(frame["rule"] == "good"))
    assert ranks(gone, "rounds").means.to_dict() == {"random": 1, "bad": 2, "good": 3}
    assert ranks(table(1, 3, good=0.1, bad=0), "rounds") is None


def test_differences_over_no_cells_have_no_interval():
    assert over_blocks(paired(table(1, 1, good=0.02)).query("rule == 'none'")).n_blocks == 0
    assert points(by_rule(paired(table(1, 1, good=0.02)))["good"]) == "+2.0"


def test_anchors_are_words():
    assert anchor("always", "Clustered by size") == "always-clustered-by-size"

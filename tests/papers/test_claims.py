"""Claims and their verdicts, with values worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.papers.claims import (
    Bound,
    Direction,
    Equal,
    Figure,
    NoHigher,
    final_gain,
    final_mean,
    gain_over,
    mean_over,
    ratio_to,
    rounds_to,
)


def table(**curves):
    """Return a table of results with an accuracy by strategy, seed and round."""
    return pd.DataFrame(
        [
            {"strategy": strategy, "seed": seed, "round": t, "accuracy": value}
            for strategy, seeds in curves.items()
            for seed, values in enumerate(seeds)
            for t, value in enumerate(values)
        ]
    )


RUNS = table(
    slow=[[0.1, 0.3, 0.5, 0.6], [0.1, 0.2, 0.3, 0.4]],
    fast=[[0.5, 0.6, 0.55, 0.7], [0.6, 0.6, 0.6, 0.6]],
)


def test_rounds_to_a_level_count_from_one_and_are_nan_if_it_is_not_reached():
    np.testing.assert_array_equal(rounds_to(RUNS, "slow", "accuracy", 0.6), [4, np.nan])
    np.testing.assert_array_equal(rounds_to(RUNS, "fast", "accuracy", 0.6), [2, 1])
    falling = table(loss=[[3.0, 2.0, 1.0]])
    np.testing.assert_array_equal(rounds_to(falling, "loss", "accuracy", 2.0, falling=True), [2])
    own = np.array([0.3, 0.4])  # a level for each seed
    np.testing.assert_array_equal(rounds_to(RUNS, "slow", "accuracy", own), [2, 4])


def test_rounds_that_are_not_measured_are_left_out():
    sparse = table(a=[[0.1, np.nan, 0.7]])
    np.testing.assert_array_equal(rounds_to(sparse, "a", "accuracy", 0.6), [3])
    np.testing.assert_allclose(final_mean(sparse, "a", "accuracy"), [0.4])


def test_a_baseline_that_never_reaches_the_level_counts_with_all_its_rounds():
    np.testing.assert_allclose(ratio_to("fast", "slow", "accuracy", 0.6)(RUNS), [2 / 4, 1 / 4])


def test_the_final_mean_is_over_the_last_ten_rounds():
    long = table(a=[[0.0] * 10 + [1.0] * 5 + [0.5] * 5])
    np.testing.assert_allclose(final_mean(long, "a", "accuracy"), [0.75])


def test_gains_are_by_seed():
    ends = final_gain("fast", "slow", "accuracy", 100)(RUNS)
    np.testing.assert_allclose(ends, [58.75 - 37.5, 60 - 25])
    middle = gain_over("fast", "slow", "accuracy", 0.25, 0.75)(RUNS)
    np.testing.assert_allclose(middle, [0.575 - 0.4, 0.6 - 0.25])


def test_rounds_that_are_not_measured_are_interpolated_in_a_mean_over_rounds():
    """Else the last rounds, all of them measured, would have more weight than the others."""
    sparse = table(a=[[0.0, np.nan, 1.0, 1.0, 1.0]])
    np.testing.assert_allclose(mean_over(sparse, "a", "accuracy", 0, 1), [3.5 / 5])
    np.testing.assert_allclose(mean_over(sparse, "a", "accuracy", 0, 0.4), [0.25])
    diverged = table(a=[[0.0, 1.0, np.nan, np.nan]])
    assert np.isnan(mean_over(diverged, "a", "accuracy", 0, 1)).all()


def verdict(claim, *values, **given):
    given = {"words": "", "place": "", "paper": ""} | given
    return claim(measure=lambda _: np.array(values), **given).check(RUNS).verdict


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([12, 12], "holds"),
        ([9, 11], "holds"),  # 10 ± 1 for 10
        ([8, 9], "holds partly"),  # 8.5 ± 0.5
        ([2, 3], "holds partly"),
        ([2, 2.9], "does not hold"),  # less than a quarter of it
        ([-1, 1], "does not hold"),
        ([-5, -4], "does not hold"),
        ([np.nan, 12], "does not hold"),
    ],
)
def test_a_figure_above_neutral(values, expected):
    assert verdict(Figure, *values, claimed=10) == expected


def test_a_figure_below_neutral():
    share = {"claimed": 0.5, "neutral": 1}
    assert verdict(Figure, 0.4, 0.4, **share) == "holds"
    assert verdict(Figure, 0.7, 0.8, **share) == "holds partly"
    assert verdict(Figure, 0.9, 0.92, **share) == "does not hold"  # less than a quarter of it
    assert verdict(Figure, 0.9, 1.2, **share) == "does not hold"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2, 3], "holds"),
        ([-1, 2], "holds partly"),  # 0.5 ± 1.5
        ([0.1, 0, 0], "holds partly"),  # one seed's effect is its standard error
        ([0.07, 0, 0], "holds partly"),
        ([0, 0], "does not hold"),  # identical runs are no gain
        ([-2, 1], "does not hold"),
    ],
)
def test_a_direction_must_be_beyond_the_error(values, expected):
    assert verdict(Direction, *values) == expected
    mirrored = [-value for value in values]
    assert verdict(Direction, *mirrored, more=False) == expected


def test_no_higher_allows_a_standard_error_and_a_bound_does_not():
    assert verdict(NoHigher, -5, -4) == verdict(NoHigher, 0, 0) == "holds"
    assert verdict(NoHigher, -1, 2) == "holds"  # 0.5 ± 1.5
    assert verdict(NoHigher, 1, 2) == "does not hold"
    assert verdict(Bound, 0.6, 0.8, limit=0.75) == verdict(Bound, 0.5, limit=0.5) == "holds"
    assert verdict(Bound, 0.6, 0.8, limit=0.69) == "does not hold"
    assert verdict(Bound, -1, 0, limit=-0.5, at_most=False) == "holds"
    assert verdict(Bound, -1, -0.5, limit=-0.5, at_most=False) == "does not hold"


def test_equal_is_two_sided():
    assert verdict(Equal, -1, 1.5, tolerance=1) == "holds"
    assert verdict(Equal, 0, 0, tolerance=1) == "holds"
    for value in (0.9, -0.9):
        assert verdict(Equal, value, value, tolerance=1) == "holds partly"
    for value in (10, -10):
        assert verdict(Equal, value, value, tolerance=1) == "does not hold"


def test_the_measured_value_has_its_standard_error():
    def measured(*values):
        claim = Equal(words="", place="", paper="", measure=lambda _: np.array(values), tolerance=1)
        return claim.check(RUNS).measured

    assert measured(0.7, 0.8) == "0.75 ± 0.05"
    assert measured(0.7) == "0.70"
    assert measured(np.nan, 0.8) == "not reached in 1 of 2 runs"


def test_a_seed_that_diverges_is_nan_and_others_are_not():
    mixed = table(a=[[1.0] * 20, [1.0] * 12 + [np.nan] * 8])
    np.testing.assert_array_equal(rounds_to(mixed, "a", "accuracy", 1.0), [1, 1])
    assert final_mean(mixed, "a", "accuracy")[0] == 1
    gone = table(a=[[1.0] * 20, [1.0] * 10 + [np.nan] * 10])
    np.testing.assert_array_equal(final_mean(gone, "a", "accuracy"), [1, np.nan])

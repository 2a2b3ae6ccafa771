"""Whether a claim holds, worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.papers.claims import (
    Claim,
    gain_in_the_end,
    gain_over,
    in_the_end,
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


def test_rounds_to_a_level_count_from_one_and_may_never_be_enough():
    np.testing.assert_array_equal(rounds_to(RUNS, "slow", "accuracy", 0.6), [4, np.nan])
    np.testing.assert_array_equal(rounds_to(RUNS, "fast", "accuracy", 0.6), [2, 1])
    falling = table(loss=[[3.0, 2.0, 1.0]])
    np.testing.assert_array_equal(rounds_to(falling, "loss", "accuracy", 2.0, falling=True), [2])


def test_rounds_that_are_not_measured_are_left_out():
    sparse = table(a=[[0.1, np.nan, 0.7]])
    np.testing.assert_array_equal(rounds_to(sparse, "a", "accuracy", 0.6), [3])
    np.testing.assert_allclose(in_the_end(sparse, "a", "accuracy"), [0.4])


def test_a_yardstick_that_never_gets_there_counts_as_all_its_rounds():
    np.testing.assert_allclose(ratio_to("fast", "slow", "accuracy", 0.6)(RUNS), [2 / 4, 1 / 4])


def test_in_the_end_is_the_mean_of_the_last_ten():
    long = table(a=[[0.0] * 10 + [1.0] * 5 + [0.5] * 5])
    np.testing.assert_allclose(in_the_end(long, "a", "accuracy"), [0.75])


def test_gains_are_by_seed():
    ends = gain_in_the_end("fast", "slow", "accuracy", 100)(RUNS)
    np.testing.assert_allclose(ends, [58.75 - 37.5, 60 - 25])
    middle = gain_over("fast", "slow", "accuracy", 0.25, 0.75)(RUNS)
    np.testing.assert_allclose(middle, [0.575 - 0.4, 0.6 - 0.25])


@pytest.mark.parametrize(
    ("values", "strict", "verdict"),
    [
        ([12, 12], False, "holds"),
        ([9, 11], False, "holds"),  # 10 ± 1 for 10
        ([8, 9], False, "holds partly"),  # 8.5 ± 0.5
        ([-1, 1], False, "does not hold"),
        ([-5, -4], False, "does not hold"),
        ([np.nan, 12], False, "does not hold"),
        ([12, 12], True, "holds"),
        ([9, 11], True, "holds partly"),  # not beyond 10 by more than its error
        ([-1, 0], True, "does not hold"),
    ],
)
def test_verdicts_on_ten_more(values, strict, verdict):
    claim = Claim("", "", lambda _: np.array(values), claimed=10, neutral=0, strict=strict)
    assert claim.check(RUNS).verdict == verdict


def test_a_claim_may_be_of_less():
    def check(*values):
        claim = Claim("", "", lambda _: np.array(values), claimed=0.5, neutral=1)
        return claim.check(RUNS)

    assert check(0.4, 0.4).verdict == "holds"
    assert check(0.7, 0.8).verdict == "holds partly"
    assert check(0.9, 1.2).verdict == "does not hold"
    assert check(0.7, 0.8).measured == "0.75 ± 0.05"
    assert check(np.nan, 0.8).measured == "not reached in 1 of 2 runs"

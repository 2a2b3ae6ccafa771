"""The devices that are fitted to power-of-choice's seconds, and what is measured in seconds."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.papers import seconds
from benchmarks.papers.power_of_choice._time import (
    Printed,
    computing,
    seconds_a_round,
    seconds_over,
    seconds_to,
)
from benchmarks.papers.power_of_choice.seconds_a_round import EXPERIMENT, ROWS_PER_SECOND, SPREAD
from benchmarks.papers.power_of_choice.seconds_to_60 import SETTING
from benchmarks.papers.seconds import fit, mean_seconds

# Two seeds of "a" that reach 60% in the second round, one of "b" that never does.
TABLE = pd.DataFrame(
    {
        "strategy": ["a"] * 6 + ["b"] * 6,
        "seed": [0, 0, 0, 1, 1, 1] * 2,
        "round": [0, 1, 2] * 4,
        "test_accuracy": [0.1, 0.6, 0.5, 0.2, 0.7, 0.8, 0.1, 0.2, 0.3, 0.2, 0.6, 0.4],
        "elapsed": [2.0, 4.0, 6.0, 1.0, 3.0, 9.0, 1.0, 2.0, 8.0, 1.0, 5.0, 6.0],
    }
)


def test_seconds_of_rounds_and_to_an_accuracy():
    assert seconds_a_round(TABLE, "a").tolist() == [2.0, 3.0]
    assert seconds_to(TABLE, "a", 0.6).tolist() == [4.0, 3.0]
    np.testing.assert_array_equal(seconds_to(TABLE, "b", 0.6), [np.nan, 5.0])
    assert seconds_over("a", "b", 0.6)(TABLE).tolist() == [4.0 / 8.0, 3.0 / 5.0]


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [(0.374, "holds"), (0.377, "holds partly"), (0.42, "holds partly"), (0.43, "does not hold")],
)
def test_half_of_the_last_printed_digit_is_allowed(mean, verdict):
    claim = Printed(
        words="", place="", measure=lambda table: table, paper="", neutral=0.37, tolerance=0.05
    )
    assert claim.verdict(mean, 0.001) == verdict


def drawn(m, n_rounds=200):
    """Return trainings of 10 rows by m of many clients, on devices with a spread of 1."""
    slower = np.exp(np.random.default_rng(m).standard_normal(n_rounds * m))
    rounds = np.arange(n_rounds).repeat(m)
    clients = np.tile(np.arange(m), n_rounds)
    frame = pd.DataFrame({"round": rounds, "client": clients, "rows": 10, "seconds": 10 * slower})
    return pd.concat({0: frame}, names=["seed"])


def test_rate_and_spread_of_known_devices_are_found(monkeypatch):
    """At a spread of 0.5 and 50 rows a second."""
    few, many = drawn(3), drawn(10)
    wanted = {3: mean_seconds(few, 0.5).mean() / 50, 10: mean_seconds(many, 0.5).mean() / 50}
    monkeypatch.setattr(seconds, "WANTED", wanted)
    assert fit(few, many) == (50.0, 0.5)


def test_a_client_drawn_twice_trains_on_the_rows_of_both():
    frame = pd.DataFrame({"round": 0, "client": [1, 1, 2], "rows": 10, "seconds": [40, 40, 30]})
    trained = pd.concat({0: frame}, names=["seed"])
    assert mean_seconds(trained, 1.0).tolist() == [40.0]
    assert mean_seconds(trained, 0.0).tolist() == [20.0]


def test_devices_are_the_fitted_ones_and_messages_take_no_time():
    devices = EXPERIMENT.panels[0].setting.training["devices"]
    assert repr(devices) == repr(computing(ROWS_PER_SECOND, SPREAD))
    log = (seconds.HERE / "seconds.md").read_text(encoding="utf-8")
    assert f"Fitted: {ROWS_PER_SECOND:,.0f} rows a second" in log
    assert f"standard deviation of {SPREAD:g} of the logarithm" in log


def test_deadlines_are_of_every_strategy():
    alone = {k: v for k, v in SETTING.strategies.items() if not k.endswith(", deadline")}
    assert len(SETTING.strategies) == 2 * len(alone) == 12
    for name, given in alone.items():
        late = SETTING.strategies[f"{name}, deadline"]
        assert late == given | {"deadline": 10.0}


@pytest.mark.papers
def test_the_quick_command_writes_its_log(tmp_path, capsys):
    assert seconds.main(["--quick", "--out", str(tmp_path)]) == 0
    log = (tmp_path / "seconds.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip().endswith(log.strip())  # after its progress
    rows = [line for line in log.splitlines() if line.startswith("| ")]
    assert sum(": seconds a round" in row for row in rows) == 18

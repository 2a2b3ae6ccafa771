"""The search for a learning rate at which random selection takes a number of rounds."""

import numpy as np
import pytest

from benchmarks.papers import calibration
from benchmarks.papers.calibration import FULL, Trial, closest, find_rate
from benchmarks.papers.power_of_choice._images import RAND_10


def inversely(alpha, lr):
    """Take rounds in inverse proportion to the rate, twice as many at alpha=2."""
    rounds = 0.06 / lr * (2 if alpha == 2 else 1)
    return Trial(alpha, lr, np.array([0.999, 1.001]) * rounds, np.zeros(2))


def test_rounds_in_inverse_proportion_are_found_in_one_step():
    """0.06 / lr = 172 at 0.000349; of two digits."""
    trials = find_rate(inversely, 0.3, 172, (0.00025, 0.0005))
    assert [trial.lr for trial in trials] == [0.00025, 0.0005, 0.00035]
    assert closest(trials, 172).lr == 0.00035


def test_the_bracket_is_narrowed_on_both_sides():
    """Rounds that fall faster than the rate rises need more than one step."""

    def steep(alpha, lr):
        rounds = 300 if lr < 0.0004 else 100
        return Trial(alpha, lr, np.array([0.999, 1.001]) * rounds, np.zeros(2))

    rates = [trial.lr for trial in find_rate(steep, 0.3, 200, (0.00025, 0.0005))]
    assert rates == [0.00025, 0.0005, 0.00032, 0.00038, 0.00042, 0.00039, 0.0004]


def test_a_target_outside_the_bracket_is_an_error():
    with pytest.raises(ValueError, match="240 and 120 rounds at rates 0.00025 and 0.0005"):
        find_rate(inversely, 0.3, 300, (0.00025, 0.0005))


def test_only_random_selection_can_be_run():
    setting = FULL.setting(0.3, 0.0004)
    assert list(setting.strategies) == [RAND_10]
    assert str(setting.strategies[RAND_10]["selector"]) == "RandomSelector(clients_per_round=10)"
    assert setting.training["local_steps"] == 30


@pytest.mark.papers
def test_the_quick_command_writes_its_log(tmp_path, capsys):
    assert calibration.main(["--quick", "--out", str(tmp_path)]) == 0
    log = (tmp_path / "calibration.md").read_text()
    assert capsys.readouterr().out.strip().endswith(log.strip())  # after its progress
    assert "Only `RandomSelector(clients_per_round=10)` was run" in log
    assert log.count("Closest: ") == 1
    tables = {path.name for path in tmp_path.rglob("*.csv.xz")}
    assert tables == {"rand-C-0.1.csv.xz"}  # nothing else was run

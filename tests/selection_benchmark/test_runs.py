"""Runs of small cells: from trials to the table, the page and pictures."""

import sys

import numpy as np
import pandas as pd
import pytest
from in_a_thread import runs_in_a_thread

from benchmarks.runs.tables import Tables
from benchmarks.selection import __main__ as command
from benchmarks.selection import table
from benchmarks.selection.campaign import n_runs, run_cells
from benchmarks.selection.cells import Cell, scores
from benchmarks.selection.conditions import CONDITIONS
from benchmarks.selection.estimate import OTHERS, announce, seconds_a_run
from benchmarks.selection.page import page
from benchmarks.selection.rules import LOWEST, RULES, TWIN, LowestLosses, Twin, outside_rule
from benchmarks.selection.tuning import N_TRIALS, SEED
from skfed import RandomSelector
from skfed.selection import BaseSelector, Cohort
from skfed.selection._mock_round import mock_round

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of short runs

SEEDS = range(2)


def without_clock(frames):
    return [frame.drop(columns=[c for c in frame if c.startswith("wall_")]) for frame in frames]


def assert_equal(some, others):
    for one, other in zip(without_clock(some), without_clock(others), strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_each_rule_has_six_trials_and_a_run_for_each_seed(cell, finished):
    results, trials = table.collect(finished, [cell])
    assert trials.groupby("rule").size().to_dict() == dict.fromkeys(cell.rules, N_TRIALS)
    assert trials.groupby("rule")["chosen"].sum().eq(1).all()
    assert results.groupby("rule")["seed"].unique().map(list).tolist() == [[0, 1]] * 3
    assert results.groupby(["rule", "seed"])["round"].unique().map(list).iloc[0] == [1, 2, 3, 4]
    runs = finished.read(cell)[["strategy", "seed"]].drop_duplicates()
    assert len(runs) == n_runs(cell, 2) == 3 * (6 + 2)


def test_what_is_chosen_is_the_best_by_validation_and_has_seen_no_test_row(cell, finished):
    found = finished.read(cell)
    tried = found[found["seed"] == SEED]
    assert tried.filter(like="test_").isna().all(axis=None)
    _, trials = table.collect(finished, [cell])
    for _, own in trials.groupby("rule"):
        assert own.loc[own["chosen"], "score"].item() == own["score"].max()


def test_a_second_time_gives_the_same_table_but_for_the_clock(cell, finished, tmp_path):
    again = Tables(tmp_path / "again")
    run_cells(again, [cell], SEEDS, 1)
    assert_equal(table.collect(again, [cell]), table.collect(finished, [cell]))


@pytest.mark.parametrize("n_kept", [13, 17])
def test_runs_that_were_cut_go_on(n_kept, cell, finished, tmp_path, monkeypatch):
    """After the first further trial, and before the last trial."""
    tables, made = Tables(tmp_path / "cut"), []

    def append(self, setting, run, whole=Tables.append):
        if len(made) == n_kept:
            raise KeyboardInterrupt
        made.append((run["strategy"].iloc[0], run["seed"].iloc[0]))
        whole(self, setting, run)

    with monkeypatch.context() as patch:
        patch.setattr(Tables, "append", append)
        with pytest.raises(KeyboardInterrupt):
            run_cells(tables, [cell], SEEDS, 1)
        n_kept = 1000
        run_cells(tables, [cell], SEEDS, 1)
    assert len(made) == len(set(made)) == n_runs(cell, 2)
    assert_equal(table.collect(tables, [cell]), table.collect(finished, [cell]))


def test_rules_whose_runs_are_not_finished_are_left_out(cell, finished):
    finished.path(cell, "round robin, lr=0.1").unlink()
    results, trials = table.collect(finished, [cell])
    assert set(results["rule"]) == set(trials["rule"]) == {"random", "power-of-choice"}


def test_a_rule_that_fails_does_not_keep_others_from_their_runs(cell, tmp_path, monkeypatch):
    def run(self, strategy, *of, whole=Cell.run):
        if strategy == "round robin, lr=0.03":
            raise FloatingPointError("a rule's own")
        return whole(self, strategy, *of)

    monkeypatch.setattr(Cell, "run", run)
    tables = Tables(tmp_path)
    with runs_in_a_thread(), pytest.raises(FloatingPointError, match="a rule's own"):
        run_cells(tables, [cell], range(1), 1)
    results, _ = table.collect(tables, [cell])
    assert set(results["rule"]) == {"random", "power-of-choice"}


def test_tables_are_the_same_bytes_and_read_as_they_were_written(cell, finished, tmp_path):
    made = table.collect(finished, [cell])
    for folder in (tmp_path / "a", tmp_path / "b"):
        table.write(folder, *made)
    for name in (table.RESULTS, table.TRIALS):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    for one, other in zip(table.read(tmp_path / "a"), made, strict=True):
        pd.testing.assert_frame_equal(one, other, check_dtype=False)


def test_tables_keep_cells_that_are_run_elsewhere_and_replace_those_that_are_run_again(
    cell, finished, tmp_path
):
    out = tmp_path / "out"
    made = table.collect(finished, [cell])
    others = [frame.assign(data="wisdm") for frame in made]
    stale = [frame.assign(rule="stale") for frame in made]
    table.write(out, *(pd.concat(two) for two in zip(stale, others, strict=True)))
    found = table.with_others(out, *made)
    for one, new, other in zip(found, made, others, strict=True):
        assert one["data"].unique().tolist() == ["wisdm", "small"]  # the order of DATA
        kept = one[one["data"] == "wisdm"].reset_index(drop=True)
        pd.testing.assert_frame_equal(kept, other, check_dtype=False)
        replaced = one[one["data"] == "small"].reset_index(drop=True)
        pd.testing.assert_frame_equal(replaced, new, check_dtype=False)


def test_cells_without_results_yet_do_not_replace_those_of_the_tables(cell, finished, tmp_path):
    out = tmp_path / "out"
    results, trials = table.collect(finished, [cell])
    table.write(out, results, trials)
    before = (out / table.TRIALS).read_bytes()
    table.write(out, *table.with_others(out, results[:0], trials[trials["rule"] == "random"]))
    assert (out / table.TRIALS).read_bytes() == before
    assert len(table.read(out)[0]) == len(results)


def test_a_command_adds_its_cells_to_the_tables_of_its_folder(
    cell, finished, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    made = table.collect(finished, [cell])
    table.write(out, *(frame.assign(data="wisdm") for frame in made))
    finished.folder.rename(out / "runs")
    monkeypatch.setattr(command, "chosen", lambda given: (cell.rules, [cell], 2))
    monkeypatch.setattr(command, "report", lambda folder: 0)
    assert command.main(["--cells", cell.name, "--out", str(out), "--jobs", "1"]) == 0
    results, trials = table.read(out)
    for frame in (results, trials):
        assert frame["data"].unique().tolist() == ["wisdm", "small"]
    assert len(results) == 2 * len(made[0])


def test_costs_are_sums_over_rounds(cell):
    run = cell.run("power-of-choice, lr=0.1", 0)
    assert run["polls"].tolist() == [6, 12, 18, 24]  # d = 2 m = 6
    assert (np.diff(run["bytes"]) > 0).all() and (np.diff(run["seconds"]) > 0).all()


def test_accuracies_are_means_over_clients_with_rows():
    """Client a has 1 of 4 right, b 1 of 1: the mean is 5 / 8, the worst tenth is a."""
    right = np.array([True, False, False, False, True])
    found = scores(right, np.array(["a"] * 4 + ["b"]), np.array(["b", "c"]))
    assert found == {
        "mean_accuracy": 0.625,
        "worst_accuracy": 0.25,
        "pooled_accuracy": 0.4,
        "priority_accuracy": 1.0,
    }


def cohorts(selector, losses=(1.0,) * 8):
    """Return what a rule chooses in rounds of eight clients of 1 to 8 rows, seed by seed."""
    rounds = (
        mock_round(losses, sizes=np.arange(1, 9), rng=np.random.default_rng(seed))
        for seed in range(300)
    )
    return [selector.select(round).clients.tolist() for round in rounds]


def test_random_under_another_name_draws_others_by_the_same_chances():
    twin = RULES[TWIN].selector(3)
    assert isinstance(twin, Twin)
    own, other = cohorts(RandomSelector(3)), cohorts(twin)
    assert sum(a == b for a, b in zip(own, other, strict=True)) < 30
    counts = [np.bincount(np.concatenate(many), minlength=8) for many in (own, other)]
    assert abs(counts[0] - counts[1]).max() < 60  # four deviations of a difference at most
    # By size: client 7 is drawn 3 * 8 / 36 times a round.
    assert counts[1][7] / 300 == pytest.approx(2 / 3, abs=0.17)


def test_the_lowest_losses_are_those_that_power_of_choice_leaves_of_all():
    losses = np.array([5.0, 1, 7, 3, 2, 8, 6, 4])
    low, high = RULES[LOWEST].selector(4), RULES["power-of-choice"].selector(4)
    assert isinstance(low, LowestLosses)
    assert {tuple(one) for one in cohorts(low, losses)} == {(1, 3, 4, 7)}
    assert {tuple(one) for one in cohorts(high, losses)} == {(0, 2, 5, 6)}


class Outside(BaseSelector):
    """The first clients in reach: a rule of somebody else."""

    uses_priority = False

    def __init__(self, clients_per_round=None):
        self.clients_per_round = clients_per_round

    def _select(self, round):
        ready = np.flatnonzero(round.available)
        return Cohort.mean(round.rng.permutation(ready)[: self.clients_per_round or 2])


@pytest.fixture
def package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mypackage", sys.modules[__name__])


def test_a_rule_from_outside_is_checked_and_takes_part(package, monkeypatch):
    checked = []
    monkeypatch.setattr("benchmarks.selection.rules.check_selector", checked.append)
    name, rule = outside_rule("mypackage:Outside()")
    assert name == "Outside" and isinstance(checked[0], Outside)
    assert rule.selector(7).clients_per_round == 7
    given = command.parse(["--quick", "--rule", "mypackage:Outside(3)"])
    rules, cells, _ = command.chosen(given)
    assert "Outside" in rules and "Outside" in cells[0].suitable
    assert not rules["Outside"].suits(CONDITIONS["priority-kind"])  # its class says so
    assert rules["Outside"].selector(7).clients_per_round == 3


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("mypackage", ValueError, "must be like mypackage:MySelector"),
        ("mypackage:cohorts", TypeError, "is no BaseSelector"),
    ],
)
def test_what_is_no_rule_is_refused(text, error, message, package):
    with pytest.raises(error, match=message):
        outside_rule(text)


def test_the_page_and_pictures_are_made_from_the_table_alone(cell, finished, tmp_path, capsys):
    pytest.importorskip("scikit_posthocs", reason="needs the extra benchmarks")
    out = tmp_path / "out"
    table.write(out, *table.collect(finished, [cell]))
    assert command.main(["--report", "--out", str(out)]) == 0
    text = (out / "RESULTS.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in text
    assert text == page(*table.read(out))
    assert "### small/linear/devices" in text
    assert (out / "pictures" / "differences.png").stat().st_size > 1000
    for link in (part.split(")")[0] for part in text.split("](#")[1:]):
        assert f'<a id="{link}"></a>' in text


def test_options_that_name_nothing_are_refused(tmp_path, capsys):
    assert command.main(["--cells", "wisdm/linear/never"]) == 2
    assert "there is no cell wisdm/linear/never" in capsys.readouterr().err
    assert command.main(["--rules", "none"]) == 2
    assert "unknown rules: none" in capsys.readouterr().err
    assert command.main(["--report", "--out", str(tmp_path)]) == 1
    assert "is missing: run something first" in capsys.readouterr().err
    assert command.main(["--list"]) == 0
    assert "synthetic-1-1/linear/always" in capsys.readouterr().out


def test_cells_of_data_that_are_not_there_are_left_out(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.selection.data.find_spec", lambda name: None)
    names = ["flights-carrier/linear/always", "wisdm/linear/always"]
    _, cells, _ = command.chosen(command.parse(["--cells", *names]))
    assert [cell.name for cell in cells] == names[1:]
    assert "flights-carrier/linear/always is left out: it needs" in capsys.readouterr().err


def test_a_cell_of_other_rounds_has_other_runs(cell, finished):
    longer = Cell(cell.data, cell.model, cell.condition, cell.rules, rounds=5)
    with pytest.raises(ValueError, match=r"another configuration: n_rounds was 4, and is 5"):
        finished.read(longer)


HERE = command.HERE
NO_TABLES = pytest.mark.skipif(
    not (HERE / table.RESULTS).exists(), reason="needs the committed tables of results"
)


@NO_TABLES
def test_the_committed_page_is_what_the_committed_tables_say():
    pytest.importorskip("scikit_posthocs", reason="needs the extra benchmarks")
    assert (HERE / "RESULTS.md").read_text(encoding="utf-8") == page(*table.read(HERE))


@NO_TABLES
def test_committed_tables_are_small_and_tune_every_rule_alike():
    paths = [HERE / name for name in (table.RESULTS, table.TRIALS)]
    assert sum(path.stat().st_size for path in paths) < 3_000_000
    _, trials = table.read(HERE)
    assert set(trials.groupby([*table.CELL, "rule"]).size()) == {N_TRIALS}


def test_the_time_left_is_told_from_first_runs_and_then_from_all(cell, finished, tmp_path):
    tables = Tables(tmp_path)
    assert announce(tables, [cell], 2, 1).startswith("22 runs to make: about ")
    clock = tables.read(cell).groupby("strategy")["wall_run"].last()
    assert seconds_a_run(tables, cell) == OTHERS * clock.min()
    assert announce(finished, [cell], 2, 1).startswith("0 runs to make: about 0.0 minutes")
    clock = finished.read(cell).groupby(["strategy", "seed"])["wall_run"].last()
    assert seconds_a_run(finished, cell) == clock.mean()

"""The command line: every experiment, quickly, and from its tables alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.papers.__main__ import main
from benchmarks.papers.catalogue import experiments, shortened

ROOT = Path(__file__).parents[2]


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.papers", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_every_experiment_of_both_papers_is_there():
    names = experiments()
    for figure in range(1, 7):
        assert f"fedalign-fig{figure}" in names
    assert "fedalign-eps-decay" in names
    for figure in range(2, 16):
        assert f"power-of-choice-fig{figure}" in names
    assert {"power-of-choice-table1", "power-of-choice-table2"} <= names.keys()


def test_settings_of_one_name_are_the_same_setting():
    described = {}
    for experiment in experiments().values():
        for panel in experiment.panels:
            setting = panel.setting
            assert described.setdefault(setting.name, setting.describe()) == setting.describe()
            assert set(panel.strategies) <= set(setting.strategies)


def test_list_and_unknown_names(capsys):
    assert main(["--list"]) == 0
    assert "fedalign-fig1" in capsys.readouterr().out
    assert main(["fedalign-fig99"]) == 2
    assert "fedalign-fig99" in capsys.readouterr().err


def test_seeds_and_rounds_can_be_chosen():
    experiment = shortened(experiments()["fedalign-fig1"], 2, 7)
    assert experiment.n_seeds == 2
    assert {panel.setting.n_rounds for panel in experiment.panels} == {7}


@pytest.mark.slow
def test_a_table_makes_a_picture_again_without_a_run(tmp_path, capsys):
    short = "--seeds", "1", "--rounds", "10", "--out", str(tmp_path)
    told = run("power-of-choice-fig4", *short)
    assert "minutes" in told.stderr + told.stdout
    assert "rounds to loss 0.7" in told.stdout
    picture = tmp_path / "pictures" / "power-of-choice-fig4.png"
    before = picture.read_bytes()
    picture.unlink()
    assert main(["power-of-choice-fig4", *short, "--report"]) == 0
    assert picture.read_bytes() == before
    assert "rounds to loss 0.7" in capsys.readouterr().out
    assert not (tmp_path / "RESULTS.md").exists()

    # Of an experiment without tables, what RESULTS.md says stays, at its place.
    kept = "## FedALIGN, Figure 1: two priority clients\n\nwhat was found before"
    (tmp_path / "RESULTS.md").write_text(f"# Results\n\n{kept}\n\n## Not run\n\nmuch.\n")
    assert main([*short, "--report"]) == 0
    _, first, second, not_run = (tmp_path / "RESULTS.md").read_text().split("\n## ")
    assert f"## {first}".strip() == kept
    assert second.startswith("Power-of-choice, Figure 4")
    assert "`fedalign-fig2`" in not_run and "`fedalign-fig1`" not in not_run


@pytest.mark.slow
def test_everything_quickly(data_home, tmp_path):
    run("all", "--quick", "--out", tmp_path)
    names = [name for name, one in experiments().items() if not one.needs or one.needs()]
    for name in names:
        assert 0 < (tmp_path / "pictures" / f"{name}.png").stat().st_size < 200_000
    assert main(["--quick", "--out", str(tmp_path), "--report"]) == 0
    results = (tmp_path / "RESULTS.md").read_text()
    assert all(f"benchmarks.papers {name}`" in results for name in names)
    assert all(f"](pictures/{name}.png)" in results for name in names)


def test_results_are_not_overwritten_by_nothing(tmp_path, capsys):
    (tmp_path / "RESULTS.md").write_text("all that was found")
    with pytest.raises(ValueError, match="no complete experiment: run some first"):
        main(["--report", "--out", str(tmp_path)])
    assert main(["fedalign-fig1", "--report", "--out", str(tmp_path)]) == 1
    assert "fedalign-fig1 has not been run" in capsys.readouterr().err
    assert (tmp_path / "RESULTS.md").read_text() == "all that was found"


def test_experiments_without_their_data_are_left_out(monkeypatch, tmp_path, capsys):
    known = experiments()
    assert known["fedalign-fig1-cifar10"].needs is not None
    monkeypatch.setenv("SKFED_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="run some first"):
        main(["--report", "--out", str(tmp_path)])
    assert "fedalign-fig1-cifar10" in capsys.readouterr().err

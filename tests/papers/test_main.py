"""The command line: short runs of every experiment, and reports from tables alone."""

import inspect
import runpy
import sys
from dataclasses import replace

import pandas as pd
import pytest

from benchmarks.papers import calibration, catalogue
from benchmarks.papers.__main__ import HERE, main
from benchmarks.papers.catalogue import experiments, shortened
from benchmarks.papers.report import draw, report, tables_of
from benchmarks.runs import runner
from benchmarks.runs.settings import Setting
from benchmarks.runs.tables import Tables

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of short runs


def test_every_figure_and_table_of_both_papers_has_an_experiment():
    names = experiments()
    for figure in range(1, 7):
        assert f"fedalign-fig{figure}" in names
    assert "fedalign-eps-decay" in names
    for figure in range(2, 16):
        assert f"power-of-choice-fig{figure}" in names
    assert {"power-of-choice-table1", "power-of-choice-table2"} <= names.keys()
    for figure in (9, 10, 14, 15):  # at the paper's learning rate, and at a reproduction's
        rates = [f"power-of-choice-fig{figure}", f"power-of-choice-fig{figure}-lower-rate"]
        assert [rates_of(names[rate]) for rate in rates] == [{0.005}, {0.0005}]


def rates_of(experiment):
    return {panel.setting.net().lr for panel in experiment.panels}


@pytest.mark.parametrize("of", ["fig5", "fig6", "fig8", *(f"fig{n}" for n in range(11, 16))])
def test_claims_are_judged_at_the_calibrated_rate_too(of):
    names = experiments()
    stated, calibrated = (names[f"power-of-choice-{of}{more}"] for more in ("", "-calibrated"))
    assert rates_of(calibrated) == {0.0003}
    assert calibrated.n_seeds == 5
    at_the_stated_rate = [p for p in stated.panels if p.setting.net().lr == 0.005]
    for one, other in zip(at_the_stated_rate, calibrated.panels, strict=True):
        assert (one.claims, one.strategies) == (other.claims, other.strategies)


def test_settings_with_the_same_name_are_equal():
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
    with pytest.raises(SystemExit, match="^2$"):
        main(["fedalign-fig1", "--seeds", "0"])
    assert "--seeds: must be at least 1, got 0" in capsys.readouterr().err


def test_seeds_and_rounds_can_be_chosen():
    experiment = shortened(experiments()["fedalign-fig1"], 2, 7)
    assert experiment.n_seeds == 2
    assert {panel.setting.n_rounds for panel in experiment.panels} == {7}


def test_an_experiment_with_less_than_its_own_is_shortened():
    whole = experiments()["fedalign-fig1"]
    n_rounds = whole.panels[0].setting.n_rounds
    for fewer in ((1, None), (None, n_rounds - 1), (None, None, 10)):
        assert shortened(whole, *fewer).is_shortened
    for as_many in ((None, None), (whole.n_seeds + 1, n_rounds + 1)):
        assert not shortened(whole, *as_many).is_shortened


def test_a_picture_is_drawn_again_from_its_table_without_a_run(tmp_path, capsys, in_this_process):
    short = "--seeds", "1", "--rounds", "3", "--out", str(tmp_path)
    assert main(["power-of-choice-fig4", *short]) == 0
    output = capsys.readouterr().out
    assert "minutes" in output
    assert "rounds to loss 0.7" in output
    assert "*shortened* |" in output and "*holds" not in output
    picture = tmp_path / "pictures" / "power-of-choice-fig4.png"
    before = picture.read_bytes()
    picture.unlink()
    assert main(["power-of-choice-fig4", *short, "--report"]) == 0
    assert picture.read_bytes() == before
    output = capsys.readouterr().out
    assert "rounds to loss 0.7" in output
    assert not (tmp_path / "RESULTS.md").exists()
    assert main([*short, "--report"]) == 0
    assert output.strip() in (tmp_path / "RESULTS.md").read_text()


def test_experiments_without_tables_are_named(tmp_path):
    tables = Tables(tmp_path / "tables")
    known = experiments()
    named = {name: known[f"fedalign-{name}"] for name in ("fig1", "fig1-cifar10", "fig3", "fig4")}
    run = named["fig4"]
    for panel in run.panels:
        for strategy in panel.strategies:
            runs = [measured(strategy, seed) for seed in range(5)]
            tables.append(panel.setting, pd.concat(runs))
    assert list(report(named, tables, tmp_path)) == ["fig4"]
    text = (tmp_path / "RESULTS.md").read_text()
    assert "of 1 of 3 experiments" in text  # without CIFAR-10, which cannot be downloaded
    *_, section, not_run = text.split("\n## ")
    assert section.startswith(run.title)
    assert not_run == "Not run\n\n`fig1`, `fig3`.\n"


def without_runs(tmp_path, monkeypatch):
    """Make a folder with the committed tables alone, where no experiment can be run."""
    (tmp_path / "tables").symlink_to(HERE / "tables")
    monkeypatch.setattr(runner, "ProcessPoolExecutor", None)
    monkeypatch.setenv("SKFED_DATA", str(tmp_path / "nothing"))


NO_TABLES = pytest.mark.skipif(
    not (HERE / "tables").exists(), reason="an sdist has no tables of results"
)


@NO_TABLES
def test_a_clean_clone_writes_the_committed_results_without_a_run(tmp_path, monkeypatch):
    """RESULTS.md is bit for bit what --report makes of the committed tables, with all sections."""
    without_runs(tmp_path, monkeypatch)
    monkeypatch.setattr("benchmarks.papers.report.draw", lambda *of: None)
    assert main(["--report", "--out", str(tmp_path)]) == 0
    written = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert written == (HERE / "RESULTS.md").read_text(encoding="utf-8")
    for name, experiment in experiments().items():
        assert (f"\n## {experiment.title}\n" in written) == (not experiment.needs), name


@NO_TABLES
def test_the_committed_calibration_is_written_without_a_run(tmp_path, monkeypatch, capsys):
    """Its log is of random selection alone: it is all that the calibration's tables have."""
    without_runs(tmp_path, monkeypatch)
    assert calibration.main(["--out", str(tmp_path)]) == 0
    committed = HERE / "calibration.md"
    assert (tmp_path / "calibration.md").read_bytes() == committed.read_bytes()
    tables = (HERE / "tables" / "calibration").rglob("*.csv.xz")
    assert {path.name for path in tables} == {"rand-C-0.1.csv.xz"}


@NO_TABLES
@pytest.mark.slow
@pytest.mark.papers
def test_a_clean_clone_draws_each_picture_without_a_run(tmp_path, monkeypatch):
    without_runs(tmp_path, monkeypatch)
    tables = Tables(HERE / "tables")
    for name, experiment in experiments().items():
        if experiment.needs:
            continue
        found = tables_of(experiment, tables)
        assert found is not None, name
        draw(name, experiment, found, tmp_path)
        assert 0 < (tmp_path / "pictures" / f"{name}.png").stat().st_size < 200_000
        assert (HERE / "pictures" / f"{name}.png").exists()


def measured(strategy, seed):
    """Return made-up results of a run."""
    columns = ["test_accuracy", "global_loss", "n_trained", "models_down", "models_up"]
    run = pd.DataFrame({"strategy": strategy, "seed": seed, "round": range(10)})
    return run.assign(**dict.fromkeys(columns, 0.5))


@pytest.mark.slow
@pytest.mark.papers
def test_a_quick_run_of_all_draws_and_reports_each(
    data_home, tmp_path, monkeypatch, capsys, in_this_process
):
    """Of each experiment the first panel, at one rate; runs of a setting share its data."""
    chosen = {
        name: replace(one, panels=one.panels[:1])
        for name, one in experiments().items()
        if not name.endswith(("-lower-rate", "-calibrated")) and (not one.needs or one.needs())
    }
    monkeypatch.setattr(catalogue, "experiments", lambda: chosen)
    make, made = Setting.data, {}

    def data(setting, seed):
        if setting.name not in made:
            made[setting.name] = make(setting, seed)
        return made[setting.name]

    monkeypatch.setattr(Setting, "data", data)
    command = ["benchmarks.papers", "all", "--quick", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="^0$"):
        runpy.run_path(inspect.getfile(main), run_name="__main__")
    tables = [*tmp_path.rglob("tables/*/*.csv.xz")]
    assert tables and all(path.parent.name.endswith("-thin10") for path in tables)
    assert {len(pd.read_csv(path)) for path in tables} == {2}  # rounds of a seed: it is quick
    output = capsys.readouterr().out
    assert "*shortened* |" in output  # two rounds tell nothing of a claim
    assert not [word for word in ("holds", "does not") if f"| *{word}" in output]
    for name in chosen:
        assert 0 < (tmp_path / "pictures" / f"{name}.png").stat().st_size < 200_000
        assert f"benchmarks.papers {name}`" in output
        assert f"](pictures/{name}.png)" in output


def test_a_report_without_tables_does_not_overwrite_results(tmp_path, capsys):
    (tmp_path / "RESULTS.md").write_text("all that was found")
    assert main(["--report", "--out", str(tmp_path)]) == 1
    assert "no complete experiment: run some first" in capsys.readouterr().err
    assert main(["fedalign-fig1", "--report", "--out", str(tmp_path)]) == 1
    assert "fedalign-fig1 has not been run" in capsys.readouterr().err
    assert (tmp_path / "RESULTS.md").read_text() == "all that was found"


def test_experiments_whose_data_are_missing_are_left_out(monkeypatch, tmp_path, capsys):
    known = experiments()
    assert known["fedalign-fig1-cifar10"].needs is not None
    monkeypatch.setenv("SKFED_DATA", str(tmp_path))
    assert main(["all", "fedalign-fig1", "--report", "--out", str(tmp_path)]) == 1
    assert "fedalign-fig1-cifar10" in capsys.readouterr().err

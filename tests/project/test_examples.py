"""What the README and the examples promise."""

import functools
import importlib.util
import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def quickstart():
    path = ROOT / "examples" / "getting_started" / "plot_quickstart.py"
    spec = importlib.util.spec_from_file_location("quickstart", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_fedalign_ends_above_both_baselines_over_5_seeds(quickstart):
    fits = {
        name: [quickstart.train(selector, seed) for seed in range(5)]
        for name, selector in quickstart.SELECTORS.items()
    }
    final = {
        name: np.mean([model.history_["val_score"].iloc[-1] for model in models])
        for name, models in fits.items()
    }
    assert final["FedALIGN"] > final["paying users only"]
    assert final["FedALIGN"] > final["all users"]
    (shown,) = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
    printed = quickstart.tabulate(fits).splitlines()
    assert shown.splitlines()[0] == printed[0]
    for line, now in zip(shown.splitlines(), printed, strict=True):
        numbers, others = (re.findall(r"\d+\.\d+", text) for text in (line, now))
        # Two machines round differently, and a client may then just match or not.
        assert [*map(float, numbers)] == pytest.approx([*map(float, others)], rel=0.02, abs=0.003)
    quickstart.plot(fits).canvas.draw()


GALLERY = runpy.run_path(str(ROOT / "doc" / "_ext" / "gallery.py"))
NEEDS_DATA, NEEDS = GALLERY["NEEDS_DATA"], GALLERY["NEEDS"]
EXAMPLES = sorted(p for p in ROOT.glob("examples/*/plot_*.py") if p.stem != "plot_quickstart")


IN_FULL = {"plot_resume"}  # whose other processes train as many rounds


def in_few_rounds(fit):
    """Return a fit of at most 10 rounds."""

    @functools.wraps(fit)
    def short(self, *arguments, **named):
        n_rounds, self.n_rounds = self.n_rounds, min(self.n_rounds, 10)
        try:
            return fit(self, *arguments, **named)
        finally:
            self.n_rounds = n_rounds

    return short


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.cluster] * (p.stem in NEEDS), id=p.stem) for p in EXAMPLES],
)
@pytest.mark.slow
def test_examples_run(path, monkeypatch, capsys, request):
    if path.stem in NEEDS_DATA:
        request.getfixturevalue("data_home")
    if path.stem in NEEDS:
        extra = path.stem.removeprefix("plot_")
        pytest.importorskip(NEEDS[path.stem], reason=f"needs pip install 'skfed[{extra}]'")
    if path.stem not in IN_FULL:
        monkeypatch.setattr(FederatedClassifier, "fit", in_few_rounds(FederatedClassifier.fit))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    # An example may turn metadata routing on, or choose a style.
    with sklearn.config_context(), plt.rc_context():
        runpy.run_path(str(path), run_name="__main__")
    assert plt.get_fignums(), "an example ends in a picture"
    plt.close("all")
    assert SAID.get(path.stem, "") in capsys.readouterr().out


def test_the_example_of_a_killed_script_says_why_its_script_fails():
    text = (ROOT / "examples" / "clusters" / "plot_resume.py").read_text(encoding="utf-8")
    broken = text.replace('SCRIPT = """', 'SCRIPT = """raise OSError("no disk")')
    with pytest.raises(RuntimeError, match=r"the script has failed: (?s:.*)OSError: no disk"):
        exec(broken, {})


def test_the_example_of_sites_reads_wisdm(data_home, monkeypatch, capsys):
    """With a simulation in place of the processes, which -m federation runs."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "federation")
    example = runpy.run_path(str(ROOT / "examples" / "federation" / "run.py"))
    files = []

    def run_federation(folder, sites, rounds, log):
        files.extend(path.name for site in sites.values() for path in site.iterdir())
        X, y, clients = example["read_all"](sites)
        return example["make_estimator"](rounds).fit(X, y, clients=clients)

    main = example["main"]
    monkeypatch.setitem(main.__globals__, "run_federation", run_federation)
    monkeypatch.setattr("sys.argv", ["run.py", "--rounds", "1"])
    main()
    assert sorted(files) == [f"user-{user:02d}.csv" for user in range(1, 37)]
    over_processes, in_one = capsys.readouterr().out.strip("\n").split("\n\n")
    assert over_processes.splitlines()[0].endswith("processes")
    assert over_processes.splitlines()[1:] == in_one.splitlines()[1:]
    assert len(in_one.splitlines()) == 4
    assert in_one.splitlines()[-1].startswith("accuracy on all rows: 0.")


TUTORIALS = sorted(ROOT.glob("doc/tutorials/plot_*.py"))
SITES = "plot_notebook_to_sites"


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run_and_end_as_their_first_lines_say(path, monkeypatch, capsys):
    if path.stem == SITES:
        monkeypatch.syspath_prepend(ROOT / "examples" / "federation")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    namespace = runpy.run_path(str(path))
    plt.close("all")
    CONCLUSIONS[path.stem](namespace, capsys.readouterr().out)


def conclude_first_federation(found, said):
    means = found["scores"].loc["mean"]
    assert means["alone"] < means["federated"]
    better = found["better"]
    assert better[~better].index.tolist() == ["Graz"]  # "four of the five hospitals"
    assert means["federated"] == pytest.approx(means["all rows in one place"], abs=0.02)
    rounds = found["rounds"]
    assert rounds["FedALIGN"]["Nice trained"] == 0 < rounds["FedALIGN"]["Rome trained"]
    score = "accuracy for the five"
    assert rounds["FedALIGN"][score] > rounds["all seven"][score] + 0.05


def conclude_compare_rules(found, said):
    means = found["means"]
    assert means.idxmin()[["rounds", "MB", "seconds"]].eq("rpow-d").all()
    assert means.loc["pow-d", "MB"] > 2 * means.loc["random", "MB"]
    assert means.loc["pow-d", "seconds"] > means.loc["random", "seconds"]
    assert found["stopped"].n_rounds_ < 100
    assert "bit for bit: True" in said


def conclude_write_a_rule(found, said):
    assert said.startswith("check_ties_are_broken_at_random: FirstMedian()")
    assert "NearMedian passes every check" in said
    fits = found["fits"].items()
    final = {k: np.mean([m.history_["val_score"].tail(10).mean() for m in ms]) for k, ms in fits}
    assert final["near the median"] > final["random"] > final["power-of-choice"]
    wrong = {name: int(share) for name, share in re.findall(r"^(.*): (\d+)%$", said, re.MULTILINE)}
    assert wrong.keys() == final.keys()
    assert max(wrong, key=wrong.get) == "power-of-choice"
    assert "{'weight': tensor([2.])}" in said


def conclude_notebook_to_sites(found, said):
    """The page's output of processes is that of the simulation; -m federation runs them."""
    output = (ROOT / "doc" / "tutorials" / "sites_output.txt").read_text(encoding="utf-8")
    processes, one = output.rstrip("\n").split("\n\n")
    assert processes.splitlines()[1:] == one.splitlines()[1:]
    assert one.splitlines()[1:] == said.rstrip("\n").splitlines()[-5:]
    cohorts = found["simulation"][-1].history_["cohort"]
    assert not any("site 5" in cohort for cohort in cohorts)


CONCLUSIONS = {
    "plot_compare_rules": conclude_compare_rules,
    "plot_first_federation": conclude_first_federation,
    "plot_notebook_to_sites": conclude_notebook_to_sites,
    "plot_write_a_rule": conclude_write_a_rule,
}


SAID = {"plot_own_selector": "AboveAverage passes every check"}


def test_the_readmes_two_commands():
    (block,) = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    install = "python -m pip install -c constraints.txt -e"
    assert block.splitlines() == [
        f'{install} ".[plot]" && python examples/getting_started/plot_quickstart.py',
        f'{install} ".[test]" && python -m pytest -n 2',
    ]


def test_the_readmes_python_is_twelve_lines_and_runs():
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in block.splitlines() if line]) == 12
    namespace: dict = {}
    exec(block, namespace)
    shown = re.search(r"clients=sites_test\)  # (.*)", README)[1]
    given = (namespace[name] for name in ("X_test", "y_test"))
    score = namespace["model"].score(*given, clients=namespace["sites_test"])
    # Exact, since no row is near a tie: the two highest probabilities of each of the 35 rows differ
    # by 0.18 or more, and those of the two engines by less than 1e-6.
    assert f"{score:.2f}" == shown


def test_a_search_finds_fedalign_for_the_paying_users(quickstart):
    """The larger d, the more often power-of-choice trains those whose labels are random."""
    X, y, clients, _, _ = quickstart.split_digits(seed=0)
    model = quickstart.train(FedAlignSelector(warmup=1.0), seed=0)
    grid = [
        {"selector": [FedAlignSelector(warmup=0.2)], "selector__eps": [0, 0.2, 4]},
        {
            "selector": [PowerOfChoice(clients_per_round=4, ignore_priority=True)],
            "selector__d": [4, 12, 40],
        },
    ]
    with sklearn.config_context(enable_metadata_routing=True):
        model.set_score_request(clients=True)  # score on the priority clients' rows
        search = GridSearchCV(model, grid, cv=3).fit(X, y, clients=clients)
    scores = search.cv_results_["mean_test_score"]
    assert (scores[3:] < scores[1]).all()
    best = search.best_params_
    assert (type(best["selector"]).__name__, best["selector__eps"]) == ("FedAlignSelector", 0.2)

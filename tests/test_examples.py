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

from skfed import FederatedClassifier

ROOT = Path(__file__).parents[1]
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
    for name, accuracy in final.items():  # the README's table, but for the rounding of machines
        shown = re.search(rf"^{name} +(\d\.\d+) ± ", README, flags=re.MULTILINE)
        assert float(shown[1]) == pytest.approx(accuracy, abs=0.01)
    quickstart.plot(fits).canvas.draw()


NEEDS_DATA = "plot_wisdm_pipeline"
NEEDS = {"plot_dask": "distributed", "plot_ray": "ray"}  # packages of extras
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
    if path.stem == NEEDS_DATA:
        request.getfixturevalue("data_home")
    if path.stem in NEEDS:
        extra = path.stem.removeprefix("plot_")
        pytest.importorskip(NEEDS[path.stem], reason=f"needs pip install 'skfed[{extra}]'")
    if path.stem not in IN_FULL:
        monkeypatch.setattr(FederatedClassifier, "fit", in_few_rounds(FederatedClassifier.fit))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    with sklearn.config_context():  # an example may turn metadata routing on
        runpy.run_path(str(path), run_name="__main__")
    assert plt.get_fignums(), "an example ends in a picture"
    plt.close("all")
    assert SAID.get(path.stem, "") in capsys.readouterr().out


SAID = {"plot_own_selector": "AboveAverage passes every check"}


def test_the_readmes_first_two_commands():
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    install = "python -m pip install -c constraints.txt -e"
    assert (
        blocks[0] == f'{install} ".[plot]" && python examples/getting_started/plot_quickstart.py\n'
    )
    assert blocks[1] == f'{install} ".[test]" && python -m pytest -n 2\n'


def test_the_readmes_python_runs(monkeypatch):
    """The blocks share one namespace, as a reader's session does."""
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    namespace: dict = {}
    for block in blocks:
        exec(block, namespace)
    scores = namespace["search"].cv_results_["mean_test_score"]
    model, shown = namespace["model"], re.search(r"y_test\)  # (.*)", README)[1]
    assert model.score(namespace["X_test"], namespace["y_test"]) == pytest.approx(
        float(shown), abs=0.02
    )
    shown = re.search(r'"mean_test_score"].*# (.*)', README)[1]
    shown = [float(score) for score in re.split("[,;] ", shown)]
    # Those of power-of-choice hang on who is last, and so on a machine's rounding.
    assert scores[:3] == pytest.approx(shown[:3], abs=0.03)
    assert (scores[3:] < scores[1]).all()
    best = namespace["search"].best_params_
    assert (type(best["selector"]).__name__, best["selector__eps"]) == ("FedAlignSelector", 0.2)

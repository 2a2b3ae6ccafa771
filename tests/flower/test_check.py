"""A dry run of a site says what it would send, or what is wrong, and sends nothing."""

import re
import runpy
import socket
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from skfed.flower import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "federation"
SITE = """
    import numpy as np
    from skfed import FederatedClassifier, FederatedRegressor
    from skfed.flower import client_app
    from skfed.privacy import GaussianMechanism

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), np.arange(40) % 2
    model, load_data = FederatedClassifier(random_state=0), lambda context: (X, y)
"""
NAME = 'client-name="site 1"'


@pytest.fixture
def site(tmp_path, monkeypatch, capsys):
    """Return a function that checks a site of some code; it returns status, output and errors."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the file changes within a second
    monkeypatch.chdir(tmp_path)

    def connect(*_):
        raise AssertionError("something is sent")

    monkeypatch.setattr(socket.socket, "connect", connect)

    def run(code, *options, node_config=NAME, app="own_site:app"):
        sys.modules.pop("own_site", None)
        made = "app = client_app(model, load_data)\n"
        (tmp_path / "own_site.py").write_text(f"{textwrap.dedent(SITE)}{code}\n{made}")
        status = check.main([app, "--node-config", node_config, *options])
        return status, *capsys.readouterr()

    yield run
    sys.modules.pop("own_site", None)


def losses(text):
    return [float(one) for one in re.findall(r"\d\.\d{4}", text)]


def kinds(text):
    return re.findall(r"^  ((?:query\.|train)\S*) +\d+ +[\d,]+ +[\d,]+  ", text, re.MULTILINE)


def test_the_examples_site_says_what_it_would_send(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLE)
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 3)), columns=["x", "y", "z"])
    k = rng.integers(3, size=60)
    table["x"] += 3 * k
    table.loc[3, "y"] = np.nan
    table.assign(activity=np.array(["Jogging", "Sitting", "Walking"])[k]).to_csv(tmp_path / "1.csv")
    config = f'{NAME} data="{tmp_path}"'
    assert check.main(["phones.client_app:app", "--node-config", config]) == 0
    out, _ = capsys.readouterr()
    assert re.search(r"name +site 1\n +rows +60\n", out)
    assert "columns          Unnamed: 0, x, y, z\n" in out
    assert "'Jogging', 'Sitting', 'Walking'\n" in out
    of_train = ["query.skfed_moments", "query.skfed_poll", "train"]
    assert kinds(out) == ["query.skfed_hello", "query.skfed_steps", *of_train]
    assert "module.linear.weight (3, 4)" in out
    before, after = losses(out)
    assert after < before == pytest.approx(np.log(3), abs=1e-4)


def test_bytes_are_those_of_a_models_arrays(site):
    _, small, _ = site("")
    _, large, _ = site("X = rng.normal(size=(40, 1003))")
    sent = [
        int(re.search(r"train +1 +\S+ +(\S+)", out)[1].replace(",", "")) for out in (small, large)
    ]
    assert 0 <= sent[1] - sent[0] - 1000 * 2 * 4 < 50  # float32 of two classes


@pytest.mark.parametrize("mechanism", ["update_privacy", "loss_privacy"])
def test_labels_that_privacy_keeps_are_not_reported(mechanism, site):
    noise = "GaussianMechanism(clip=1.0, noise_multiplier=1.0)"
    status, out, _ = site(f"model.set_params({mechanism}={noise})")
    assert status == 0
    assert "labels           not reported, so the server has to name all" in out


def test_a_regressor_has_no_labels(site):
    status, out, _ = site("model, y = FederatedRegressor(random_state=0), X[:, 0]")
    assert status == 0
    assert "labels" not in out and "query.skfed_norms" in kinds(out)


def test_the_server_may_name_the_labels(site):
    status, out, _ = site("", "--classes", "[0, 1, 2]")
    assert status == 0 and "weight (3, 3)" in out
    status, _, errors = site("", "--classes", "[0, 2]")
    assert status == 1 and "error: in answer to query.skfed_moments: ValueError: " in errors
    assert errors.endswith("Here classes_ are those of --classes '[0, 2]': add the label.\n")
    for wrong in ("0,1", "3"):
        status, _, errors = site("", "--classes", wrong)
        assert status == 1
        assert errors.startswith(f"error: --classes '{wrong}' must be a JSON list of all labels")


MISTAKES = {
    "no name": ("", "", "own_site:app", "its node has no client-name: start it with"),
    "lengths": ("y = y[:-1]", NAME, "own_site:app", "client 'site 1' has 40 rows of X and 39 of y"),
    "no rows": ("X, y = X[:0], y[:0]", NAME, "own_site:app", "client 'site 1' has 0 rows of X"),
    "NaN": ("X[3, 1] = np.nan", NAME, "own_site:app", "using an imputer transformer"),
    "text": (
        "X = np.full((40, 2), 'a')",
        NAME,
        "own_site:app",
        "Convert your data to numeric values",
    ),
    "no module": (
        "",
        NAME,
        "own_sites:app",
        "there is no module 'own_sites': run this in the folder",
    ),
    "its import": (
        "import nothing_like_it",
        NAME,
        "own_site:app",
        "No module named 'nothing_like_it'",
    ),
    "no app": (
        "",
        NAME,
        "own_site:ap",
        "own_site:ap is nothing: name what skfed.flower.client_app",
    ),
    "another app": ("", NAME, "own_site:model", "own_site:model is a FederatedClassifier: name"),
    "no colon": ("", NAME, "own_site", "'own_site' must be MODULE:APP"),
    "unquoted": ("", "client-name=site 1", "own_site:app", "--node-config 'client-name=site 1': "),
    "key": (
        "load_data = lambda context: context.node_config['data']",
        *(NAME, "own_site:app"),
        "KeyError: 'data': --node-config has no such value, only ['client-name']",
    ),
}


@pytest.mark.parametrize(("code", "node_config", "app", "told"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told_with_the_way_out(code, node_config, app, told, site):
    status, out, errors = site(code, node_config=node_config, app=app)
    assert (status, out) == (1, "")
    assert told in errors[errors.index("error: ") :]


def test_only_errors_without_a_known_way_out_have_a_traceback(site):
    _, _, errors = site("y = y[:-1]")
    assert "Traceback" not in errors
    _, _, errors = site("load_data = lambda context: 1 / 0")
    assert "Traceback" in errors and "own_site.py" in errors


def test_it_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check", "no_such_module:app"])
    monkeypatch.delitem(sys.modules, check.__name__)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(check.__name__, run_name="__main__")
    assert ended.value.code == 1
    assert "there is no module 'no_such_module'" in capsys.readouterr().err

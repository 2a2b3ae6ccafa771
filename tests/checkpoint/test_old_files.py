"""Files that earlier versions have written, in saved/, are read."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from skfed import FederatedClassifier, FederatedRegressor, PowerOfChoice
from skfed.aggregation import Scaffold, ServerOptimizer
from skfed.privacy import GaussianMechanism
from skfed.utils import _files

SAVED = Path(__file__).parent / "saved"
CLIENTS = np.repeat(list("abc"), [6, 8, 10])
X = np.random.default_rng(0).normal(size=(24, 2))
Y = (X[:, 0] > 0).astype(int)


def classifier(**params):
    given = {"selector": PowerOfChoice(2, 1), "aggregator": Scaffold(), "n_rounds": 3}
    return FederatedClassifier(**given, random_state=0, **params)


def private():
    return classifier(loss_privacy=GaussianMechanism(clip=1.0, noise_multiplier=0.1))


def regressor():
    adam = ServerOptimizer(torch.optim.Adam, lr=0.1)
    return FederatedRegressor(n_rounds=3, server_optimizer=adam, random_state=0)


def goes_on_alike(one, other, y):
    """Compare up to rounding, since another machine has written the files."""
    for model in (one, other):
        model.partial_fit(X, y, clients=CLIENTS)
    assert one.n_rounds_ == other.n_rounds_ == 4
    np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=1e-5)
    columns = ["train_loss", "objective", "models_up", "cohort", "polled"]
    pd.testing.assert_frame_equal(one.history_[columns], other.history_[columns], rtol=1e-5)


def test_classifiers_of_format_1():
    loaded = private().load(SAVED / "classifier-1.safetensors")
    expected = [[0.51450634, 0.4854936], [0.45987853, 0.54012156]]
    np.testing.assert_allclose(loaded.predict_proba(X[:2]), expected, rtol=1e-5)
    goes_on_alike(loaded, private().fit(X, Y, clients=CLIENTS), Y)


def test_regressors_of_format_1():
    loaded = regressor().load(SAVED / "regressor-1.safetensors")
    np.testing.assert_allclose(loaded.predict(X[:2]), [-0.30194828, -0.04809208], rtol=1e-5)
    loaded.partial_fit(X, X[:, 0], clients=CLIENTS)  # its rate, and first intercept, were others
    assert loaded.n_rounds_ == 4


@pytest.fixture
def directory(tmp_path):
    return shutil.copytree(SAVED / "checkpoint-1", tmp_path / "checkpoint")


@pytest.mark.parametrize("prefix", ["", "v2-", "v10-"])
def test_runs_described_in_another_format_begin_anew_with_a_warning(directory, prefix):
    (old,) = directory.iterdir()
    old.rename(directory / f"{prefix}{old.name}")
    model = classifier(warm_start=True, checkpoint=directory)
    with pytest.warns(UserWarning, match="1 runs in .* are not resumed"):
        model.fit(X, Y, clients=CLIENTS)
    again = classifier(warm_start=True, checkpoint=directory).fit(X, Y, clients=CLIENTS)
    assert again.history_.equals(model.history_)  # times and all
    assert len(list(directory.iterdir())) == 2


def test_the_state_of_a_checkpoint_of_format_1_is_read(directory):
    """Its folder is given the name that the run has today."""
    (old,) = directory.iterdir()
    with pytest.warns(UserWarning, match="not resumed"):
        classifier(warm_start=True, checkpoint=directory).fit(X, Y, clients=CLIENTS)
    (new,) = directory.glob("v3-*")
    shutil.copytree(old, new, dirs_exist_ok=True)
    found = classifier(warm_start=True, checkpoint=directory).fit(X, Y, clients=CLIENTS)
    rows = (old / "history-0.jsonl").read_text().splitlines()
    assert len(rows) == found.n_rounds_ == 3
    assert all(
        f'["train_seconds", {s}]' in row
        for s, row in zip(found.history_.train_seconds, rows, strict=True)
    )
    goes_on_alike(found, classifier(warm_start=True).fit(X, Y, clients=CLIENTS), Y)


DEFAULTS = {
    "reported": {},
    "optimizer_state": None,
    "variates": [{}, {}],
    "told": [],
    "messages": {},
    "private_rounds": (),
    "stopped": 0,
    "proven": None,
    "net_history": [],
    "net_rates": [{"lr": 0.1}],
    "callbacks": None,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_field_that_a_file_lacks_has_its_default(tmp_path, name):
    fitted = _files.read(SAVED / "classifier-1.safetensors")
    models = []
    for change in (
        fitted["state"].pop,
        lambda name: fitted["state"].update({name: DEFAULTS[name]}),
    ):
        change(name)
        _files.write(tmp_path / "m", fitted)
        models.append(private().load(tmp_path / "m"))
    goes_on_alike(*models, Y)


def test_fields_of_a_later_version_are_refused(tmp_path):
    fitted = _files.read(SAVED / "classifier-1.safetensors")
    fitted["state"]["sketches"] = {}
    _files.write(tmp_path / "m", fitted)
    with pytest.raises(ValueError, match="sketches: a later version wrote it"):
        private().load(tmp_path / "m")

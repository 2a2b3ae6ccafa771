"""Callbacks that get the record of each round."""

import csv
import doctest
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from joblib import parallel_config
from sklearn.base import clone
from sklearn.callback import ScoringMonitor
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, EarlyStopping

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.callbacks import RoundCallback
from skfed.callbacks._sklearn import callbacks_of
from skfed.devices import ConstantDevices
from skfed.modules import SoftmaxRegression

GUIDE = Path(__file__).parents[2] / "doc" / "user_guide" / "estimator.rst"


class Records(RoundCallback):
    """Keeps the records, and raises after one round."""

    def __init__(self, fail_after=None):
        self.records, self.estimators, self.fail_after = [], [], fail_after

    def on_round_end(self, estimator, record):
        self.records.append(record)
        self.estimators.append(estimator)
        if record["round"] == self.fail_after:
            raise OSError("the disk is full")

    @property
    def rounds(self):
        return [record["round"] for record in self.records]


def assert_history(records, history):
    pd.testing.assert_frame_equal(pd.DataFrame(records.records), history)


def model_with(*callbacks, **params):
    given = {"selector": RandomSelector(3), "n_rounds": 4, "random_state": 0} | params
    return FederatedClassifier(**given).set_callbacks(*callbacks)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"engine": "loop", "n_jobs": 2},
        {"selector": FedAlignSelector(), "priority": ["a", "b"]},
        {"devices": ConstantDevices(10.0, 1e6, 1e6)},
    ],
    ids=["plain", "n_jobs", "FedALIGN", "devices"],
)
def test_records_are_the_rows_of_the_history(blobs, params):
    X, y, clients = blobs
    records = Records()
    with parallel_config(backend="loky"):
        model = model_with(records, **params).fit(X, y, clients=clients, X_val=X, y_val=y)
    assert records.rounds == [0, 1, 2, 3]
    assert_history(records, model.history_)
    assert all(estimator is model for estimator in records.estimators)


def test_a_regressor_and_a_pipeline(blobs):
    X, _, clients = blobs
    records = Records()
    model = FederatedRegressor(n_rounds=2, random_state=0).set_callbacks(records)
    pipeline = make_pipeline(StandardScaler(), model)
    pipeline.fit(X, X[:, 0], federatedregressor__clients=clients)
    assert_history(records, model.history_)


def test_what_has_no_rounds_refuses_it_with_the_way_out(blobs):
    X, y, clients = blobs
    pipeline = make_pipeline(StandardScaler(), model_with()).set_callbacks(Records())
    with pytest.raises(TypeError, match=r"Records .*Pipeline has none: call set_callbacks of the"):
        pipeline.fit(X, y, federatedclassifier__clients=clients)
    search = GridSearchCV(model_with(), {"local_epochs": [1]}).set_callbacks(Records())
    with pytest.raises(TypeError, match=r"GridSearchCV has none: call set_callbacks"):
        search.fit(X, y, clients=clients)


@pytest.mark.parametrize("given", [[Records()], [("named", Records())], Records(), [Records]])
def test_a_net_refuses_it_with_the_way_out(blobs, given):
    X, y, clients = blobs
    net = NeuralNetClassifier(SoftmaxRegression(5, 3), callbacks=given)
    model = model_with(estimator=net)
    with pytest.raises(TypeError, match=r"callbacks have Records, .*call set_callbacks\(Records\("):
        model.fit(X, y, clients=clients)


def test_a_net_that_is_fitted_on_refuses_it(blobs):
    X, y, clients = blobs
    model = model_with(estimator=NeuralNetClassifier(SoftmaxRegression(5, 3)))
    model.partial_fit(X, y, clients=clients).set_params(estimator__callbacks=[Records()])
    with pytest.raises(TypeError, match="callbacks have Records"):
        model.partial_fit(X, y, clients=clients)


class OfBoth(Callback, Records):
    """A callback of the net and of the federated estimator."""


def test_a_net_takes_what_is_a_callback_of_skorch_too(blobs):
    X, y, clients = blobs
    callback = OfBoth()
    net = NeuralNetClassifier(
        SoftmaxRegression(5, 3), criterion=torch.nn.CrossEntropyLoss, callbacks=[callback]
    )
    model_with(callback, estimator=net).fit(X, y, clients=clients)
    assert callback.rounds == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (EarlyStopping(), r"EarlyStopping, which is a callback of skorch: give it to the net"),
        (EarlyStopping, r"EarlyStopping, which is a callback of skorch: give it to the net"),
        (Records, "the class Records: pass an instance"),
        ([Records()], "a list: pass instances .* each as an argument"),
        (print, r"a builtin_function_or_method: .*skfed\.callbacks\.RoundCallback"),
    ],
)
def test_other_objects_are_refused_with_the_way_out(given, message):
    model, records = FederatedClassifier(), Records()
    model.set_callbacks(records)
    with pytest.raises(TypeError, match=f"set_callbacks got {message}"):
        model.set_callbacks(Records(), given)
    assert callbacks_of(model) == [records]


def test_a_record_may_be_changed(blobs):
    X, y, clients = blobs

    class Clearing(RoundCallback):
        def on_round_end(self, estimator, record):
            record.clear()

    records = Records()
    model = model_with(Clearing(), records).fit(X, y, clients=clients)
    assert len(model.history_) == 4
    assert_history(records, model.history_)


def test_partial_fit_and_a_warm_start_report_new_rounds(blobs):
    X, y, clients = blobs
    records = Records()
    model = model_with(records, n_rounds=3, warm_start=True)
    model.partial_fit(X, y, clients=clients).fit(X, y, clients=clients)
    model.partial_fit(X, y, clients=clients)
    assert records.rounds == [0, 1, 2, 3]


def test_the_last_record_has_the_validation_of_a_fit_that_was_stopped(blobs):
    X, y, clients = blobs
    stopper = EarlyStopping(monitor="train_loss", patience=1, threshold=9, threshold_mode="abs")
    net = NeuralNetClassifier(
        SoftmaxRegression(5, 3), criterion=torch.nn.CrossEntropyLoss, callbacks=[stopper]
    )
    records = Records()
    model = model_with(records, estimator=net, validate_every=50, n_rounds=50)
    model.fit(X, y, clients=clients, X_val=X, y_val=y)
    assert model.n_rounds_ < 50
    assert np.isfinite(records.records[-1]["val_score"])
    assert records.records[-1]["val_score"] == model.history_["val_score"].iloc[-1]


def test_it_changes_no_result_and_works_beside_other_callbacks(blobs, same_model):
    X, y, clients = blobs

    class Drawing(RoundCallback):
        def on_round_end(self, estimator, record):
            torch.manual_seed(record["round"])

    monitor = ScoringMonitor(scoring="accuracy")
    model = model_with(monitor, Drawing()).fit(X, y, clients=clients)
    plain = model_with().fit(X, y, clients=clients)
    assert same_model(model, plain)
    assert (monitor.get_logs().data_as_pandas["task_name"] == "round").sum() == 4


def test_an_error_names_the_callback_and_keeps_the_round(blobs, same_model):
    X, y, clients = blobs
    records = Records(fail_after=1)
    model = model_with(records)
    with (
        pytest.raises(OSError, match="the disk is full") as raised,
        pytest.warns(UserWarning, match="last finished round, 2 of 4, is kept"),
    ):
        model.fit(X, y, clients=clients)
    assert raised.value.__notes__ == ["Records.on_round_end, called after round 1, raised this"]
    assert model.n_rounds_ == len(model.history_) == 2
    assert same_model(model, model_with(n_rounds=2).fit(X, y, clients=clients))
    model.set_params(warm_start=True).fit(X, y, clients=clients)
    assert records.rounds == [0, 1, 2, 3]
    assert same_model(model, model_with().fit(X, y, clients=clients))


def test_an_error_in_partial_fit_keeps_the_round(blobs):
    X, y, clients = blobs
    model = model_with(Records(fail_after=0))
    with pytest.raises(OSError, match="disk"), pytest.warns(UserWarning, match="1 of 4"):
        model.partial_fit(X, y, clients=clients)
    assert model.partial_fit(X, y, clients=clients).n_rounds_ == 2


def test_rounds_read_from_a_checkpoint_are_not_reported_again(blobs, tmp_path, same_model):
    X, y, clients = blobs
    records = Records(fail_after=2)
    with pytest.raises(OSError, match="disk"), pytest.warns(UserWarning, match="3 of 4"):
        model_with(records, checkpoint=tmp_path).fit(X, y, clients=clients)
    # The round was written before the callback raised, so another process goes on after it.
    resumed = model_with(records, checkpoint=tmp_path).fit(X, y, clients=clients)
    assert records.rounds == [0, 1, 2, 3]
    assert_history(records, resumed.history_)
    assert same_model(resumed, model_with().fit(X, y, clients=clients))
    model_with(records, checkpoint=tmp_path).fit(X, y, clients=clients)
    assert records.rounds == [0, 1, 2, 3]


def test_a_round_that_is_run_again_is_reported_again(blobs, tmp_path):
    X, y, clients = blobs
    params = {"checkpoint": tmp_path, "checkpoint_every": 2}
    records = Records(fail_after=2)
    with pytest.raises(OSError, match="disk"), pytest.warns(UserWarning, match="3 of 4"):
        model_with(records, **params).fit(X, y, clients=clients)
    records.fail_after = None
    model_with(records, **params).fit(X, y, clients=clients)
    assert records.rounds == [0, 1, 2, 2, 3]


def test_a_round_that_fails_is_not_reported(blobs):
    X, y, clients = blobs

    class Failing(RandomSelector):
        def _select(self, round):
            if round.index == 1:
                raise RuntimeError("no")
            return super()._select(round)

    records = Records()
    with pytest.raises(RuntimeError, match="no"):
        model_with(records, selector=Failing(3)).fit(X, y, clients=clients)
    assert records.rounds == [0]


def test_on_round_end_is_required():
    with pytest.raises(TypeError, match="on_round_end"):
        type("Empty", (RoundCallback,), {})()


def guide(name):
    """Return a class that the guide defines."""
    examples = doctest.DocTestParser().get_examples(GUIDE.read_text(encoding="utf-8"))
    (source,) = [one.source for one in examples if one.source.startswith(f"class {name}(")]
    names = {"RoundCallback": RoundCallback, "csv": csv, "Path": Path, "__name__": __name__}
    exec(source, names)
    return names[name]


def test_the_csv_of_the_guide(blobs, tmp_path):
    X, y, clients = blobs
    path = tmp_path / "rounds.csv"
    model = clone(model_with(guide("ToCSV")(path))).fit(X, y, clients=clients)
    read = pd.read_csv(path)
    assert read.columns.tolist() == model.history_.columns.tolist()
    numbers = model.history_.select_dtypes("number")
    pd.testing.assert_frame_equal(read[numbers.columns], numbers, check_dtype=False)


def test_fits_with_other_columns_do_not_shift_the_csv_of_the_guide(blobs, tmp_path):
    X, y, clients = blobs
    path = tmp_path / "rounds.csv"
    model = model_with(guide("ToCSV")(path), n_rounds=1)
    model.fit(X, y, clients=clients, X_val=X, y_val=y).fit(X, y, clients=clients)
    read = pd.read_csv(path)
    assert read["val_score"].isna().tolist() == [False, True]
    assert read["bytes_up"].iloc[1] == model.history_["bytes_up"].iloc[0]
    model.set_params(selector=FedAlignSelector(), priority=["a"])
    with pytest.raises(ValueError, match=r"fields not in fieldnames: 'eps'"), pytest.warns():
        model.fit(X, y, clients=clients)


class ToFolder(RoundCallback):
    """Writes a file a round, from any process."""

    def __init__(self, folder):
        self.folder = folder

    def on_round_end(self, estimator, record):
        path = self.folder / f"{estimator.n_rounds}-{record['round']}.txt"
        with path.open("a") as file:
            file.write("x")


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_a_search_reports_each_candidate(blobs, tmp_path, n_jobs):
    X, y, clients = blobs
    search = GridSearchCV(
        model_with(ToFolder(tmp_path)),
        {"n_rounds": [1, 2]},
        cv=KFold(2, shuffle=True, random_state=0),
        refit=False,
        n_jobs=n_jobs,
    )
    search.fit(X, y, clients=clients)
    written = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    assert written == {"1-0": "xx", "2-0": "xx", "2-1": "xx"}


def test_the_mlflow_of_the_guide(blobs, monkeypatch):
    X, y, clients = blobs
    logged = []
    stand_in = SimpleNamespace(log_metrics=lambda numbers, step: logged.append((step, numbers)))
    monkeypatch.setitem(sys.modules, "mlflow", stand_in)
    model = model_with(guide("ToMLflow")()).fit(X, y, clients=clients)
    assert [step for step, _ in logged] == [0, 1, 2, 3]
    numbers = model.history_.select_dtypes("number")
    assert logged[-1][1].keys() == set(numbers.columns)
    assert all(type(value) in (int, float) for _, row in logged for value in row.values())

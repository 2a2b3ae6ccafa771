"""scikit-learn's callbacks: each round is a task."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.model_selection import GridSearchCV, KFold

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector


class Recorder:
    """Records its calls and the fitted estimators, and stops after some rounds."""

    def __init__(self, stop_after=None):
        self.calls, self.fitted, self.stop_after = [], [], stop_after

    def setup(self, estimator, context):
        self.calls.append("setup")

    def teardown(self, estimator, context):
        self.calls.append("teardown")

    def on_fit_task_begin(self, estimator, context, *, X=None):
        self.calls.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        self.calls.append(f"end {context.task_name}")
        self.fitted.append(fitted_estimator)
        return self.stop_after is not None and len(self.fitted) == self.stop_after


def test_tasks_are_rounds(blobs):
    X, y, clients = blobs
    recorder = Recorder()
    model = FederatedClassifier(n_rounds=2, random_state=0).set_callbacks(recorder)
    model.fit(X, y, clients=clients)
    assert recorder.calls == [
        "setup", "begin fit", "begin round", "end round", "begin round", "end round", "end fit",
        "teardown",
    ]  # fmt: skip
    one = FederatedClassifier(n_rounds=1, random_state=0).fit(X, y, clients=clients)
    first, last = recorder.fitted[0], recorder.fitted[-1]
    np.testing.assert_array_equal(first.predict_proba(X), one.predict_proba(X))
    assert len(first.history_) == 1
    np.testing.assert_array_equal(last.predict_proba(X), model.predict_proba(X))


def test_progress_bar(blobs, capsys):
    X, y, clients = blobs
    FederatedClassifier(n_rounds=3).set_callbacks(ProgressBar()).fit(X, y, clients=clients)
    assert "FederatedClassifier" in capsys.readouterr().out


def test_a_callback_stops_fit(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=9).set_callbacks(Recorder(stop_after=3))
    assert model.fit(X, y, clients=clients).n_rounds_ == 3


class Failing(RandomSelector):
    def _select(self, round):
        raise RuntimeError("no")


def test_callbacks_are_torn_down_when_fit_fails(blobs):
    X, y, clients = blobs
    recorder = Recorder()
    model = FederatedClassifier(selector=Failing()).set_callbacks(recorder)
    with pytest.raises(RuntimeError, match="no"):
        model.fit(X, y, clients=clients)
    assert recorder.calls[-1] == "teardown"
    assert not [name for name in vars(model) if name.startswith("_callback")]


def test_scoring_monitor_logs_each_round(blobs):
    X, y, clients = blobs
    monitor = ScoringMonitor(scoring=["accuracy", "neg_log_loss"])
    model = FederatedClassifier(n_rounds=5, random_state=0).set_callbacks(monitor)
    model.fit(X, y, clients=clients, X_val=X, y_val=y)
    log = monitor.get_logs().data_as_pandas
    rounds = log[log["task_name"] == "round"]
    np.testing.assert_allclose(rounds["accuracy"], model.history_["val_score"])
    np.testing.assert_allclose(rounds["neg_log_loss"], -model.history_["val_loss"], rtol=1e-4)


def test_scoring_monitor_of_a_regressor(blobs):
    X, _, clients = blobs
    monitor = ScoringMonitor(scoring="r2")
    model = FederatedRegressor(n_rounds=3, random_state=0).set_callbacks(monitor)
    model.fit(X, X[:, 0], clients=clients)
    assert monitor.get_logs().data[-1]["r2"] == pytest.approx(model.score(X, X[:, 0]))


def test_rounds_are_numbered_on_in_a_warm_start(blobs):
    X, y, clients = blobs
    monitor = ScoringMonitor(scoring="accuracy")
    model = FederatedClassifier(n_rounds=2, warm_start=True, random_state=0).set_callbacks(monitor)
    for n_rounds in (2, 5):
        model.set_params(n_rounds=n_rounds).fit(X, y, clients=clients)
    runs = [log.data_as_pandas for log in monitor.get_logs("all")]
    rounds = [log["task_id"][log["task_name"] == "round"].tolist() for log in runs]
    assert rounds == [[0, 1], [2, 3, 4]]


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_scoring_monitor_logs_each_candidate_of_a_search(blobs, n_jobs):
    X, y, clients = blobs
    monitor = ScoringMonitor(scoring="accuracy")
    search = GridSearchCV(
        FederatedClassifier(random_state=0).set_callbacks(monitor),
        {"n_rounds": [2, 3]},
        cv=KFold(2, shuffle=True, random_state=0),
        n_jobs=n_jobs,
    )
    search.fit(X, y, clients=clients)
    log = monitor.get_logs().data_as_pandas
    refit = search.best_params_["n_rounds"]
    assert (log["task_name"] == "round").sum() == 2 * (2 + 3) + refit


def test_callbacks_do_not_change_the_result_and_survive_clone(blobs):
    X, y, clients = blobs
    observed = FederatedClassifier(n_rounds=3, random_state=0).set_callbacks(Recorder())
    plain = clone(observed).set_callbacks().fit(X, y, clients=clients)
    observed.fit(X, y, clients=clients)
    np.testing.assert_array_equal(observed.predict_proba(X), plain.predict_proba(X))

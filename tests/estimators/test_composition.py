"""What scikit-learn allows, call by call: the table of the user guide, held to its word.

``doc/user_guide/sklearn_table.csv`` has Python calls, and for metadata routing off and on either
"works" or what is raised and what to write instead. The calls, and those to write instead, are run.
"""

import csv
import functools
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
    cross_val_predict,
    cross_validate,
    learning_curve,
    validation_curve,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.metrics import priority_accuracy
from skfed.model_selection import WithinClientKFold
from skfed.pipeline import FederatedPipeline
from skfed.preprocessing import FederatedSimpleImputer, FederatedStandardScaler, pooled

CALLED = [
    BaggingClassifier,
    CalibratedClassifierCV,
    GridSearchCV,
    HalvingGridSearchCV,
    Pipeline,
    RandomizedSearchCV,
    StackingClassifier,
    VotingClassifier,
    WithinClientKFold,
    cross_val_predict,
    cross_validate,
    learning_curve,
    validation_curve,
]
TABLE = Path(__file__).parents[2] / "doc" / "user_guide" / "sklearn_table.csv"
with TABLE.open(encoding="utf-8", newline="") as file:
    ROWS = {row["call"].strip("`"): row for row in csv.DictReader(file)}

CODES = np.arange(120) % 4
IDS = np.array(list("abcd"))[CODES]
fits = []  # of each fit since the last call: whether each client has its own rows


class Watched(FederatedClassifier):
    """Notes whether the rows that come with a client are that client's: X's last column says."""

    def fit(self, X, y, clients=None, *, sample_weight=None, **given):
        own = pd.Series(np.asarray(X)[:, -1]).groupby(np.asarray(clients))
        fits.append(own.nunique().eq(1).all() and own.ngroups == 4)
        return super().fit(X, y, clients, sample_weight=sample_weight, **given)


def by_row(model, X, y):
    """Score by client without routing: the frame's index says whose row it is."""
    return priority_accuracy(model, X, y, clients=IDS[X.index])


def names():
    """Return what the calls of the table speak of."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    X = np.column_stack([rng.normal(size=(120, 3)) + np.eye(3)[y], CODES])
    selector = RandomSelector(2, ignore_priority=True)
    model = Watched(
        selector=selector, priority=["a", "b"], n_rounds=1, engine="loop", random_state=0
    )
    pipeline = Pipeline([("scale", StandardScaler()), ("model", model)])
    scaled = ColumnTransformer([("x", StandardScaler(), ["x0", "x1"])], remainder="passthrough")
    by_site = ColumnTransformer(
        [("x", FederatedStandardScaler(), ["x0", "x1"])], remainder="passthrough"
    )
    return {
        **{called.__name__: called for called in CALLED},
        "by_row": by_row,
        "priority_accuracy": priority_accuracy,
        "X": X,
        "y": y,
        "ids": IDS,
        "weights": 1.0 + CODES,
        "frame": pd.DataFrame(X).add_prefix("x"),
        "model": model,
        "pipeline": pipeline,
        "federated": FederatedPipeline([("scale", pooled(StandardScaler())), ("model", model)]),
        "raw": FederatedPipeline([("fill", FederatedSimpleImputer()), ("model", model)]),
        "sites": FederatedPipeline([("scale", by_site), ("model", model)]),
        "columns": Pipeline([("scale", scaled), ("model", model)]),
        "two": [("first", model), ("second", pipeline)],
        "grid": {"selector__clients_per_round": [2, 4]},
        "steps": {"model__n_rounds": [1, 2]},
        "both": {
            "fill__strategy": ["mean", "median"],
            "model__selector": [FedAlignSelector()],
            "model__selector__eps": [0.1, 0.5],
        },
        "mixed": [
            {"selector": [FedAlignSelector()], "selector__eps": [0.1, 0.5]},
            {"selector": [PowerOfChoice(d=2, ignore_priority=True)], "selector__d": [2, 4]},
        ],
    }


def run(call):
    """Run a call as a script would, but for warnings, which end it."""
    fits.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return eval(call, names())


@functools.cache
def works(call, routing):
    """Return what a call returns, once it is sure that every fit had rows and clients together."""
    result = run(call)
    assert all(fits), "rows and clients do not go together"
    assert fits or "n_jobs" in call or "request" in call
    return result


@pytest.fixture
def routing(request):
    with sklearn.config_context(enable_metadata_routing=request.param == "routing on"):
        yield request.param


both_modes = pytest.mark.parametrize("routing", ["routing off", "routing on"], indirect=True)


@both_modes
@pytest.mark.parametrize("call", ROWS)
def test_the_table_holds(call, routing):
    cell = ROWS[call][routing]
    if cell == "works":
        works(call, routing)
        return
    error, remedy = re.fullmatch(r"(\w+)[^:]*: (.+)", cell).groups()
    with pytest.raises(Exception) as raised:
        run(call)
    assert type(raised.value).__name__ == error
    if remedy == "turn routing on":
        assert routing == "routing off" and not ROWS[call]["routing on"].endswith(remedy)
    else:
        works(re.fullmatch("write ``(.+)``", remedy)[1], routing)


@both_modes
def test_a_search_gives_the_same_in_parallel(routing):
    serial = works("GridSearchCV(model, mixed).fit(X, y, clients=ids)", routing)
    parallel = works("GridSearchCV(model, mixed, n_jobs=2).fit(X, y, clients=ids)", routing)
    for name, scores in serial.cv_results_.items():
        if "score" in name and "time" not in name:
            np.testing.assert_array_equal(scores, parallel.cv_results_[name])
    assert parallel.best_params_.keys() == serial.best_params_.keys()
    frames = [search.best_estimator_.history_["objective"] for search in (serial, parallel)]
    pd.testing.assert_series_equal(*frames)


@pytest.mark.filterwarnings("ignore:One or more of the test scores")
def test_a_scorer_that_gets_no_clients_leaves_no_score():
    call = "GridSearchCV(model, grid, scoring=priority_accuracy).fit(X, y, clients=ids)"
    assert "scores are NaN" in ROWS[call]["routing off"]
    with pytest.warns(UserWarning, match="enable_metadata_routing=True.*scorers; then call"):
        search = eval(call, names())
    assert np.isnan(search.cv_results_["mean_test_score"]).all()


def test_scores_by_row_without_routing_are_the_scorers_with_it():
    by_row, by_client = (
        "GridSearchCV(model, grid, scoring=by_row).fit(frame, y, clients=ids)",
        "GridSearchCV(model, grid, scoring=priority_accuracy).fit(frame, y, clients=ids)",
    )
    without = works(by_row, "routing off").cv_results_["mean_test_score"]
    with sklearn.config_context(enable_metadata_routing=True):
        routed = works(by_client, "routing on").cv_results_["mean_test_score"]
    np.testing.assert_array_equal(without, routed)

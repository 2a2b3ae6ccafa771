"""Federated evaluation over Flower: on rows that clients keep aside, as in the simulation."""

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import MetricRecord
from local_grid import is_kind
from mishaps import estimator, node_of, reply
from sklearn.base import clone

import skfed
from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor
from skfed.evaluation import FederatedEvaluation
from skfed.flower._messages import HELD_OUT_QUERY
from skfed.metrics import client_evaluations, client_exchanges, cross_client_scores
from skfed.preprocessing import FederatedStandardScaler
from skfed.privacy import GaussianMechanism

KEPT = np.arange(140) % 3 == 0  # the rows that clients keep aside; b keeps none
METRICS = ["loss", "accuracy", "neg_log_loss"]


@pytest.fixture
def parts(blobs):
    """Return X, y and clients of training rows, and those kept aside."""
    X, y, clients = blobs
    y = np.array(["x", "y", "z"])[y]
    kept = KEPT & (clients != "b")
    return (X[~kept], y[~kept], clients[~kept]), (X[kept], y[kept], clients[kept])


@pytest.fixture
def run(federate, parts):
    """Return a function that fits an estimator over Flower; it returns the model and the grid."""

    load = loader(parts)

    def start(model, spoil=lambda grid: None, **params):
        strategy, grid = federate(model, load=load, **params)
        spoil(grid)
        strategy.start(grid)
        return strategy.model_, grid

    return start


def loader(parts):
    """Return the ``load_data`` of clients."""

    def load(context):
        name = context.node_config["client-name"]
        mine, kept = ([rows[part[2] == name] for rows in part[:2]] for part in parts)
        return (*mine, *kept) if len(kept[1]) else tuple(mine)

    return load


def simulated(model, parts):
    (X, y, clients), (X_val, y_val, clients_val) = parts
    return model.fit(X, y, clients=clients, X_val=X_val, y_val=y_val, clients_val=clients_val)


def evaluated(metrics=METRICS, **params):
    params = {"n_rounds": 3, "random_state": 0, "engine": "loop", **params}
    return FederatedClassifier(evaluation=FederatedEvaluation(metrics), **params)


ESTIMATORS = {
    "default": evaluated(),
    "FedALIGN": evaluated(selector=FedAlignSelector(eps=0.2), priority=["a", "c"]),
    "seldom": evaluated(n_rounds=5, validate_every=2),
    "class weights": evaluated(class_weight={"x": 5.0}),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_metrics_and_ledger_are_those_of_the_simulation(name, run, parts):
    model, _ = run(ESTIMATORS[name])
    expected = simulated(
        skfed.FederatedClassifier(**ESTIMATORS[name].get_params(deep=False)), parts
    )
    columns = [c for c in expected.history_ if not c.endswith("seconds") and c[:3] != "val"]
    pd.testing.assert_frame_equal(model.history_[columns], expected.history_[columns])
    pd.testing.assert_frame_equal(client_evaluations(model), client_evaluations(expected))
    assert set(client_evaluations(model)["client"]) == set("acdef")


def test_each_asked_client_gets_one_message_with_the_new_model(run):
    model, grid = run(evaluated(n_rounds=1, estimator=torch.nn.Linear(5, 3)))
    asked = [m.content for m in grid.sent if is_kind(m, HELD_OUT_QUERY)]
    assert sorted(content["request"]["client"] for content in asked) == list("acdef")
    for content in asked:
        assert content["request"]["metrics"] == METRICS
        weight = content["state"]["module.weight"].numpy()
        np.testing.assert_array_equal(weight, model.net_.module_.weight.detach().numpy())
    table = client_exchanges(model)
    table = table[table["kind"] == "evaluation"]
    assert table["bytes_up"].tolist() == [3 * 8] * 5


def test_raw_rows_pass_through_the_fitted_steps(run, parts):
    def pipeline():
        return skfed.make_pipeline(FederatedStandardScaler(), evaluated(n_rounds=2))

    model, _ = run(pipeline())
    (X, y, clients), (X_val, y_val, clients_val) = parts
    expected = pipeline().fit(
        *(X, y),
        clients=clients,
        X_val=X_val,
        y_val=y_val,
        clients_val=clients_val,
    )
    pd.testing.assert_frame_equal(client_evaluations(model), client_evaluations(expected))


def test_numbers_are_in_units_of_y(federate, parts):
    """The net learns standardised targets."""
    (X, _, clients), (X_val, _, clients_val) = parts
    y, y_val = 50 + 9 * X[:, 0], 50 + 9 * X_val[:, 0]

    def load(context):
        mine, kept = (of == context.node_config["client-name"] for of in (clients, clients_val))
        return X[mine], y[mine], X_val[kept], y_val[kept]

    model = FederatedRegressor(
        standardize_targets=True,
        evaluation=FederatedEvaluation(["neg_mean_absolute_error"]),
        n_rounds=2,
        random_state=0,
        engine="loop",
    )
    strategy, grid = federate(model, load=load)
    strategy.start(grid)
    error = -np.abs(strategy.model_.predict(X_val) - y_val).mean()
    last = strategy.model_.history_.iloc[-1]
    assert last["eval_neg_mean_absolute_error"] == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_each_site_s_own_model_is_evaluated_by_every_site(metric, federate, parts):
    load = loader(parts)
    strategy, grid = federate(evaluated(n_rounds=2), load=load)
    strategy.start(grid)
    scores = strategy.cross_client_scores(metric)
    model = simulated(evaluated(n_rounds=2), parts)
    expected = cross_client_scores(model, *parts[0], *parts[1], metric=metric)
    pd.testing.assert_frame_equal(scores, expected)
    assert scores.index.tolist() == ["global", *"abcdef"]
    assert scores.columns[scores.isna().all()].tolist() == ["b"]  # it keeps nothing aside
    last = client_evaluations(strategy.model_).query("round == 1").set_index("client")
    assert scores.loc["global", list("acdef")].tolist() == last[metric].tolist()
    node_of(grid, "d").answer = lambda m: None
    without = strategy.cross_client_scores(metric)
    assert without["d"].isna().all() and without.loc["d"].isna().all()
    others = [name for name in "acef"]
    assert without.loc[["global", *others], others].notna().all(axis=None)


def spoiled(**metrics):
    def spoil(grid):
        node = node_of(grid, "d")
        node.answer = lambda m: (
            reply(m, metrics=MetricRecord(metrics))
            if is_kind(m, HELD_OUT_QUERY)
            else node.app(m, node.context)
        )

    return spoil


@pytest.mark.parametrize(
    ("metrics", "cause"),
    [
        ({"loss": np.nan, "accuracy": 0.5, "neg_log_loss": -1.0}, "is NaN or infinite"),
        ({"loss": 1.0, "accuracy": 0.5}, "no number 'neg_log_loss'"),
        ({"loss": [1.0], "accuracy": 0.5, "neg_log_loss": -1.0}, "no number 'loss'"),
    ],
)
def test_an_invalid_answer_is_named_and_the_others_count(metrics, cause, run):
    model, _ = run(evaluated(n_rounds=2), spoiled(**metrics))
    history = model.history_
    assert history["failed"].tolist() == [("d",)] * 2
    assert all(cause in causes[0] for causes in history["causes"])
    assert history["n_evaluated"].tolist() == [4, 4]
    assert np.isfinite(history["eval_loss"]).all()
    assert history["n_aggregated"].tolist() == [6, 6]


def test_a_client_with_loss_privacy_refuses(federate, parts):
    (X, y, clients), _ = parts

    def load(context):
        rows = clients == context.node_config["client-name"]
        return X[rows], y[rows], X[rows], y[rows]

    model = evaluated(n_rounds=1, estimator=torch.nn.Linear(5, 3))
    at_client = clone(model).set_params(evaluation=None, loss_privacy=GaussianMechanism(1.0, 1.0))
    strategy, grid = federate(model, at_client=at_client, load=load, classes=["x", "y", "z"])
    strategy.start(grid)
    (row,) = strategy.model_.history_.to_dict("records")
    assert row["n_evaluated"] == 0 and np.isnan(row["eval_loss"])
    assert "its loss_privacy does not cover metrics" in row["causes"][0]


def test_without_rows_that_anybody_keeps_aside_it_is_refused(federate):
    strategy, grid = federate(evaluated())
    with pytest.raises(ValueError, match="let load_data return X, y, X_val and y_val"):
        strategy.start(grid)


def test_load_data_returns_two_or_four(federate, parts):
    (X, y, _), _ = parts
    strategy, grid = federate(estimator(), load=lambda context: (X, y, X))
    with pytest.raises(
        ValueError, match="load_data returns 3 values: return X and y, or X, y, X_val"
    ):
        strategy.start(grid)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (X[["w", "v", "x", "y", "z"]], y), "X_val with columns"),
        (lambda X, y: (X[["v", "w"]], y), r"X_val with shape \(2,\)"),
        (lambda X, y: (X, y[:-1]), "rows of X_val and"),
    ],
)
def test_rows_kept_aside_are_like_those_of_the_training(change, message, federate, parts):
    load = loader(parts)

    def load_changed(context):
        loaded = [pd.DataFrame(one, columns=list("vwxyz")) for one in load(context)[::2]]
        X, X_val = loaded if len(loaded) == 2 else (loaded[0], loaded[0])
        return X, np.zeros(len(X)), *change(X_val, np.zeros(len(X_val)))

    strategy, grid = federate(estimator(), load=load_changed, timeout=0.2)
    with pytest.raises(ValueError, match=message):
        strategy.start(grid)

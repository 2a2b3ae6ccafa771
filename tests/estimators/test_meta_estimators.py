"""Meta-estimators of scikit-learn: scores by client are those of their predictions."""

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.multioutput import MultiOutputRegressor, RegressorChain
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skfed
from skfed import FederatedClassifier, FederatedRegressor
from skfed.metrics import (
    client_scores,
    free_accuracy,
    mean_client_accuracy,
    mean_client_r2,
    priority_accuracy,
    priority_neg_log_loss,
    priority_r2,
    worst_client_accuracy,
)


@pytest.fixture(autouse=True)
def _routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def table(n_rows=240):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 4))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=n_rows) > 0.5, "yes", "no")
    return X, y, np.array(list("abcd"))[np.arange(n_rows) % 4]


def base(weights=False, **params):
    model = FederatedClassifier(
        **{"n_rounds": 4, "priority": ["a", "b"], "random_state": 0} | params
    )
    return model.set_fit_request(clients=True, sample_weight=weights or None)


MODELS = {
    "fixed threshold": lambda: FixedThresholdClassifier(base(), threshold=0.9, pos_label="yes"),
    "tuned threshold": lambda: TunedThresholdClassifierCV(
        base(), scoring=mean_client_accuracy, thresholds=5, cv=2
    ),
    "sigmoid": lambda: CalibratedClassifierCV(base(), cv=2),
    "isotonic": lambda: CalibratedClassifierCV(base(), cv=2, method="isotonic"),
    "temperature": lambda: CalibratedClassifierCV(base(), cv=2, method="temperature"),
    "not an ensemble": lambda: CalibratedClassifierCV(base(), cv=2, ensemble=False),
    "in a pipeline": lambda: make_pipeline(StandardScaler(), FixedThresholdClassifier(base())),
    "bagging": lambda: BaggingClassifier(base(weights=True), n_estimators=2, random_state=0),
    "voting": lambda: VotingClassifier(
        [("own", base(priority=None)), ("other", LogisticRegression())], voting="soft"
    ),
}
SAVED = [name for name in MODELS if name not in ("bagging", "voting")]


@pytest.mark.parametrize("kind", MODELS)
def test_scores_are_those_of_predictions(kind):
    X, y, clients = table()
    model = MODELS[kind]().fit(X, y, clients=clients)
    right, first = model.predict(X) == y, np.isin(clients, ["a", "b"])
    scores = client_scores(model, X, y, clients)
    for client in "abcd":
        assert scores.loc[client, "accuracy"] == right[clients == client].mean()
    p = model.predict_proba(X)[np.arange(len(y)), (y == "yes").astype(int)]
    np.testing.assert_allclose(
        scores["loss"], [-np.log(p[clients == k]).mean() for k in "abcd"], rtol=1e-5
    )
    assert mean_client_accuracy(model, X, y, clients=clients) == scores["accuracy"].mean()
    assert worst_client_accuracy(model, X, y, clients=clients) == scores["accuracy"].min()
    if kind != "voting":  # its step has no priority clients of its own
        assert scores["priority"].tolist() == [True, True, False, False]
        assert priority_accuracy(model, X, y, clients=clients) == right[first].mean()
        assert free_accuracy(model, X, y, clients=clients) == right[~first].mean()
        assert priority_neg_log_loss(model, X, y, clients=clients) == pytest.approx(
            np.log(p[first]).mean(), rel=1e-5
        )


@pytest.mark.parametrize("kind", SAVED)
def test_they_are_saved(kind, tmp_path):
    X, y, clients = table()
    model = MODELS[kind]()
    like = clone(model)
    model.fit(X, y, clients=clients)
    skfed.save(model, tmp_path / "model")
    loaded = skfed.load(like, tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert client_scores(loaded, X, y, clients).equals(client_scores(model, X, y, clients))


def test_a_threshold_is_tuned_for_the_mean_of_clients():
    """A client with few rows counts as much as a large one."""
    X, y, _ = table()
    clients = np.where(np.arange(len(y)) % 12 == 0, "small", "large")
    found = {}
    for scoring in (mean_client_accuracy, worst_client_accuracy):
        tuned = TunedThresholdClassifierCV(
            base(priority=None), scoring=scoring, store_cv_results=True, cv=2, thresholds=20
        )
        tuned.fit(X, y, clients=clients)
        found[scoring] = tuned.cv_results_["scores"]
        assert tuned.best_score_ == found[scoring].max()
    assert (found[mean_client_accuracy] >= found[worst_client_accuracy]).all()


def test_a_threshold_cannot_be_tuned_for_priority_clients():
    X, y, clients = table()
    tuned = TunedThresholdClassifierCV(base(), scoring=priority_accuracy, cv=2)
    with pytest.raises(TypeError, match="priority_accuracy needs the fitted model.*mean_client"):
        tuned.fit(X, y, clients=clients)


def test_bagging_leaves_out_clients_without_a_drawn_row():
    X, y, _ = table()
    clients = np.where(np.arange(len(y)) < 6, np.arange(len(y)), 7)
    bag = BaggingClassifier(base(weights=True, priority=None), n_estimators=3, random_state=0)
    bag.fit(X, y, clients=clients)
    assert bag.score(X, y) > 0.75
    assert min(len(one.clients_) for one in bag.estimators_) < 7
    assert len(client_scores(bag, X, y, clients)) == 7


def test_frozen_models_are_scored():
    X, y, clients = table()
    fitted = base().fit(X, y, clients=clients)
    for model in (
        CalibratedClassifierCV(FrozenEstimator(fitted)),
        FixedThresholdClassifier(FrozenEstimator(fitted), threshold=0.9, pos_label="yes"),
    ):
        model.fit(X, y)
        scores = client_scores(model, X, y, clients)
        right = model.predict(X) == y
        assert scores["accuracy"].tolist() == [right[clients == k].mean() for k in "abcd"]
        assert scores["priority"].tolist() == [True, True, False, False]


def test_transformed_targets_are_scored_in_their_units():
    X, _, clients = table()
    y = np.exp(X[:, 0])
    regressor = FederatedRegressor(n_rounds=20, random_state=0).set_fit_request(clients=True)
    model = TransformedTargetRegressor(regressor, func=np.log, inverse_func=np.exp)
    model.fit(X, y, clients=clients)
    scores = client_scores(model, X, y, clients)
    for k in "abcd":
        own = clients == k
        assert scores.loc[k, "r2"] == pytest.approx(model.score(X[own], y[own]))
        assert scores.loc[k, "r2"] > 0.9


@pytest.mark.parametrize("kind", [MultiOutputRegressor, RegressorChain])
def test_models_with_a_regressor_a_target_are_scored(kind):
    X, _, clients = table()
    y = X[:, :2] @ [[1.0, 2.0], [0.5, -1.0]]
    inner = FederatedRegressor(n_rounds=4, priority=["a", "b"], random_state=0)
    model = make_pipeline(StandardScaler(), kind(inner.set_fit_request(clients=True)))
    model.fit(X, y, clients=clients)
    scores, predicted = client_scores(model, X, y, clients=clients), model.predict(X)
    for k in "abcd":
        own = clients == k
        assert scores.loc[k, "r2"] == pytest.approx(r2_score(y[own], predicted[own]))
        assert scores.loc[k, "loss"] == pytest.approx(((y - predicted)[own] ** 2).mean())
    assert mean_client_r2(model, X, y, clients=clients) == pytest.approx(scores["r2"].mean())
    assert priority_r2(model, X, y, clients=clients) == pytest.approx(
        r2_score(y[scores.loc[clients, "priority"]], predicted[scores.loc[clients, "priority"]])
    )
    with pytest.raises(ValueError, match=r"y has the shape \(240,\), but the 2 targets of fit"):
        client_scores(model, X, y[:, 0], clients=clients)

"""Scorers by client, in searches with metadata routing on and off."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, PowerOfChoice
from skfed.metrics import priority_accuracy, priority_neg_log_loss, worst_client_accuracy
from skfed.model_selection import LeaveClientsOut, WithinClientKFold

FOLDS = KFold(2, shuffle=True, random_state=0)
SCORERS = [priority_accuracy, worst_client_accuracy, priority_neg_log_loss]


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture
def model():
    return FederatedClassifier(priority=["b", "d"], n_rounds=10, random_state=0)


def test_scores_by_hand(blobs, model):
    X, y, clients = blobs
    model.fit(X, y, clients=clients)
    right = model.predict(X) == y
    own = np.isin(clients, ["b", "d"])
    assert priority_accuracy(model, X, y, clients=clients) == right[own].mean()
    assert priority_accuracy(model, X, y, clients=clients) == model.score(X, y, clients=clients)
    worst = min(right[clients == k].mean() for k in "abcdef")
    assert worst_client_accuracy(model, X, y, clients=clients) == worst
    loss = log_loss(y[own], model.predict_proba(X[own]), labels=model.classes_)
    assert priority_neg_log_loss(model, X, y, clients=clients) == pytest.approx(-loss)


def test_the_federated_step_is_found_in_pipelines_and_searches(blobs, model, routing):
    X, y, clients = blobs
    pipeline = make_pipeline(StandardScaler(), clone(model)).fit(X, y, clients=clients)
    score = priority_accuracy(pipeline, X, y, clients=clients)
    assert score == pipeline.score(X[np.isin(clients, ["b", "d"])], y[np.isin(clients, ["b", "d"])])
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        {"federatedclassifier__n_rounds": [1, 5]},
        scoring=priority_accuracy,
        cv=WithinClientKFold(2, random_state=0),
    ).fit(X, y, clients=clients)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert worst_client_accuracy(search, X, y, clients=clients) <= search.score(
        X, y, clients=clients
    )
    with pytest.raises(TypeError, match="no federated step"):
        priority_accuracy(LogisticRegression().fit(X, y), X, y, clients=clients)


def test_one_array_serves_splitter_estimator_and_scorers(blobs, model, routing):
    X, y, clients = blobs
    results = cross_validate(
        model,
        X,
        y,
        params={"clients": clients},
        cv=LeaveClientsOut(2, priority=["b", "d"], random_state=0),
        scoring={"accuracy": "accuracy", "worst": worst_client_accuracy},
        return_estimator=True,
    )
    assert np.isfinite(results["test_worst"]).all()
    for fitted in results["estimator"]:
        assert {"b", "d"} <= set(fitted.clients_) < set("abcdef")


def test_a_mixed_search_picks_by_the_priority_clients(blobs, routing):
    X, y, clients = blobs
    base = FederatedClassifier(priority=["b", "d"], n_rounds=5, random_state=0)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), base),
        [
            {
                "federatedclassifier__selector": [FedAlignSelector(warmup=0)],
                "federatedclassifier__selector__eps": [0.1, 0.5],
            },
            {
                "federatedclassifier__selector": [PowerOfChoice(d=2, ignore_priority=True)],
                "federatedclassifier__selector__d": [2, 4],
            },
        ],
        scoring=SCORERS[2],
        cv=WithinClientKFold(2, random_state=0),
    ).fit(X, y, clients=clients)
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_with_routing_off_it_says_what_to_do(blobs, model):
    X, y, clients = blobs
    search = GridSearchCV(
        model, {"n_rounds": [1]}, scoring=priority_accuracy, cv=FOLDS, error_score="raise"
    )
    with pytest.raises(ValueError, match=r"enable_metadata_routing=True.*score by hand"):
        search.fit(X, y, clients=clients)
    # By hand it works.
    model.fit(X, y, clients=clients)
    assert 0 <= priority_accuracy(model, X, y, clients=clients) <= 1


def test_with_routing_off_splitters_take_groups(blobs, model):
    X, y, clients = blobs
    search = GridSearchCV(model, {"n_rounds": [1, 2]}, cv=WithinClientKFold(2, random_state=0))
    search.fit(X, y, groups=clients, clients=clients)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_a_fold_without_priority_rows_is_told(blobs, model):
    X, y, clients = blobs
    model.fit(X, y, clients=clients)
    others = ~np.isin(clients, ["b", "d"])
    with pytest.raises(ValueError, match="no row of a priority client"):
        priority_accuracy(model, X[others], y[others], clients=clients[others])


@pytest.mark.parametrize("scorer", SCORERS, ids=repr)
def test_scorers_are_single_objects(scorer):
    assert pickle.loads(pickle.dumps(scorer)) is scorer
    assert repr(scorer).startswith("skfed.metrics.")
    assert scorer.get_metadata_routing().score.requests == {"clients": True}


@pytest.mark.parametrize("scorer", SCORERS, ids=repr)
def test_a_regressor_is_told_what_to_use(blobs, scorer, routing):
    X, y, clients = blobs
    selector = FedAlignSelector(eps=10.0)  # in units of the squared error
    model = FederatedRegressor(selector=selector, priority=["b", "d"], n_rounds=2, random_state=0)
    model.set_params(engine="loop")
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y, clients=clients)
    with pytest.raises(TypeError, match=r"a FederatedRegressor: score.*set_score_request\(clients"):
        scorer(pipeline, X, y, clients=clients)
    # As it says:
    model.set_score_request(clients=True)
    search = GridSearchCV(model, {"n_rounds": [1, 2]}, cv=FOLDS).fit(X, y, clients=clients)
    own = np.isin(clients, ["b", "d"])
    assert search.score(X, y, clients=clients) == search.best_estimator_.score(X[own], y[own])


def test_scoring_in_parallel(blobs, model, routing):
    X, y, clients = blobs
    given = {"cv": FOLDS, "scoring": priority_accuracy, "params": {"clients": clients}}
    serial = cross_validate(model, X, y, **given)
    parallel = cross_validate(model, X, y, n_jobs=2, **given)
    np.testing.assert_array_equal(serial["test_score"], parallel["test_score"])

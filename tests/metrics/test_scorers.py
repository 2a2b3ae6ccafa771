"""Scorers by client, in searches with metadata routing on and off."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, PowerOfChoice
from skfed.metrics import (
    free_accuracy,
    free_r2,
    mean_client_accuracy,
    mean_client_r2,
    priority_accuracy,
    priority_neg_log_loss,
    priority_r2,
    worst_client_accuracy,
    worst_client_r2,
)
from skfed.model_selection import LeaveClientsOut, WithinClientKFold

FOLDS = KFold(2, shuffle=True, random_state=0)
SCORERS = [priority_accuracy, worst_client_accuracy, priority_neg_log_loss]
SCORERS += [free_accuracy, mean_client_accuracy]
R2 = [priority_r2, free_r2, mean_client_r2, worst_client_r2]


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
    assert free_accuracy(model, X, y, clients=clients) == right[~own].mean()
    each = [right[clients == k].mean() for k in "abcdef"]
    assert worst_client_accuracy(model, X, y, clients=clients) == min(each)
    assert mean_client_accuracy(model, X, y, clients=clients) == pytest.approx(np.mean(each))
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


def test_the_error_with_routing_off_says_what_to_do(blobs, model):
    X, y, clients = blobs
    search = GridSearchCV(
        model, {"n_rounds": [1]}, scoring=priority_accuracy, cv=FOLDS, error_score="raise"
    )
    with pytest.raises(ValueError, match=r"enable_metadata_routing=True.*call priority_acc"):
        search.fit(X, y, clients=clients)
    # The call works.
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


@pytest.mark.parametrize("scorer", SCORERS + R2, ids=repr)
def test_scorers_are_single_objects(scorer):
    assert pickle.loads(pickle.dumps(scorer)) is scorer
    assert repr(scorer).startswith("skfed.metrics.")
    assert scorer.get_metadata_routing().score.requests == {"clients": True}


def test_the_error_of_folds_without_priority_rows_names_other_scorers(blobs, model, routing):
    """LeaveClientsOut holds out free clients, so that no priority client is tested."""
    X, y, clients = blobs
    leave_out = LeaveClientsOut(2, priority=["b", "d"], random_state=0)
    given = {"params": {"clients": clients}, "cv": leave_out}
    for scorer in (priority_accuracy, priority_neg_log_loss):
        with pytest.warns(UserWarning, match="Scoring failed") as caught:
            scores = cross_val_score(model, X, y, scoring=scorer, **given)
        assert np.isnan(scores).all()
        for warning in caught:
            assert str(warning.message).strip().splitlines()[-1] == (
                f"ValueError: {scorer.name}: clients has no row of a priority client (the test "
                "folds of LeaveClientsOut have none): use free_accuracy or mean_client_accuracy."
            )
    # Those that it names:
    for scorer in (free_accuracy, mean_client_accuracy, worst_client_accuracy):
        assert (cross_val_score(model, X, y, scoring=scorer, **given) > 0.5).all()


def test_the_error_without_free_clients_names_other_scorers(blobs, model):
    X, y, clients = blobs
    model.set_params(priority=None).fit(X, y, clients=clients)
    message = "^free_accuracy: clients has no row of a free client: use priority_accuracy or mean_"
    with pytest.raises(ValueError, match=message):
        free_accuracy(model, X, y, clients=clients)
    unseen = np.where(clients == "c", "new", clients)  # unseen clients are free
    expected = model.score(X[clients == "c"], y[clients == "c"])
    assert free_accuracy(model, X, y, clients=unseen) == expected


def test_scores_of_a_regressor_by_hand(blobs):
    X, _, clients = blobs
    y = X @ [1.0, -1.0, 0.5, 0.0, 0.0] + 1
    selector = FedAlignSelector(eps=np.inf)
    model = FederatedRegressor(selector=selector, priority=["b", "d"], n_rounds=5, random_state=0)
    model.fit(X, y, clients=clients)
    own, predicted = np.isin(clients, ["b", "d"]), model.predict(X)
    assert priority_r2(model, X, y, clients) == pytest.approx(r2_score(y[own], predicted[own]))
    assert free_r2(model, X, y, clients) == pytest.approx(r2_score(y[~own], predicted[~own]))
    each = [r2_score(y[clients == k], predicted[clients == k]) for k in "abcdef"]
    assert mean_client_r2(model, X, y, clients) == pytest.approx(np.mean(each))
    assert worst_client_r2(model, X, y, clients) == pytest.approx(min(each))
    assert priority_r2(model, X, y, clients) == pytest.approx(model.score(X, y, clients=clients))


def test_clients_without_an_r2_are_left_out(blobs):
    """A client of one row, and one all of whose targets are equal."""
    X, _, _ = blobs
    clients = np.array(["equal"] * 3 + ["one"] + ["more"] * 136)
    y = np.where(clients == "equal", 2.0, X[:, 0])
    model = FederatedRegressor(n_rounds=2, random_state=0).fit(X, y, clients=clients)
    more = clients == "more"
    expected = pytest.approx(r2_score(y[more], model.predict(X[more])))
    assert worst_client_r2(model, X, y, clients) == expected
    assert mean_client_r2(model, X, y, clients) == expected
    for scorer in (worst_client_r2, mean_client_r2, priority_r2):
        with pytest.raises(ValueError, match=f"^{scorer.name} needs two rows of.*more rows"):
            scorer(model, X[:3], y[:3], clients[:3])


def test_scorers_of_a_regressor_in_pipelines_and_searches(blobs, routing):
    X, _, clients = blobs
    y = X[:, 0] - X[:, 1]
    selector = FedAlignSelector(eps=np.inf)
    model = FederatedRegressor(selector=selector, priority=["b", "d"], n_rounds=2, random_state=0)
    pipeline = make_pipeline(StandardScaler(), model)
    scoring = {scorer.name: scorer for scorer in R2}
    search = GridSearchCV(
        pipeline,
        {"federatedregressor__n_rounds": [1, 3]},
        scoring=scoring,
        refit="worst_client_r2",
        cv=WithinClientKFold(2, random_state=0),
    ).fit(X, y, clients=clients)
    for name, scorer in scoring.items():
        assert np.isfinite(search.cv_results_[f"mean_test_{name}"]).all()
        best = scorer(search.best_estimator_, X, y, clients)
        assert scorer(search, X, y, clients) == best
    leave_out = {"params": {"clients": clients}, "cv": LeaveClientsOut(2, priority=["b", "d"])}
    assert np.isfinite(cross_val_score(model, X, y, scoring=free_r2, **leave_out)).all()


@pytest.mark.parametrize("scorer", SCORERS, ids=repr)
def test_the_error_for_a_regressor_names_its_scorers(blobs, scorer, routing):
    X, y, clients = blobs
    selector = FedAlignSelector(eps=10.0)  # in units of the squared error
    model = FederatedRegressor(selector=selector, priority=["b", "d"], n_rounds=2, random_state=0)
    model.set_params(engine="loop")
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y, clients=clients)
    with pytest.raises(TypeError, match=r"a FederatedRegressor: use \w+_r2\.$") as raised:
        scorer(pipeline, X, y, clients=clients)
    # The one that it names:
    instead = {other.name: other for other in R2}[str(raised.value).split()[-1].strip(".")]
    assert np.isfinite(instead(pipeline, X, y, clients=clients))
    # Or by its own score:
    model.set_score_request(clients=True)
    search = GridSearchCV(model, {"n_rounds": [1, 2]}, cv=FOLDS).fit(X, y, clients=clients)
    own = np.isin(clients, ["b", "d"])
    assert search.score(X, y, clients=clients) == search.best_estimator_.score(X[own], y[own])


@pytest.mark.parametrize("scorer", R2, ids=repr)
def test_the_error_for_a_classifier_names_its_scorers(blobs, model, scorer):
    X, y, clients = blobs
    model.fit(X, y, clients=clients)
    expected = rf"^{scorer.name} scores regressors.*Classifier: use {scorer.group}_accuracy\.$"
    with pytest.raises(TypeError, match=expected):
        scorer(model, X, y, clients=clients)


def test_scoring_in_parallel(blobs, model, routing):
    X, y, clients = blobs
    given = {"cv": FOLDS, "scoring": priority_accuracy, "params": {"clients": clients}}
    serial = cross_validate(model, X, y, **given)
    parallel = cross_validate(model, X, y, n_jobs=2, **given)
    np.testing.assert_array_equal(serial["test_score"], parallel["test_score"])

"""Scores by client of a list of models: the mean and the deviation over them."""

from copy import copy
from math import exp, sqrt

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.metrics import client_scores, summarise_clients

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
CLIENTS = ["a", "a", "a", "a", "b", "b"]
MEASURES = ["n_samples", "priority", "loss", "accuracy"]


def fit(y=Y, clients=CLIENTS, priority=None, kind=FederatedClassifier, seed=0):
    model = kind(selector=FedAlignSelector(), priority=priority, n_rounds=1, random_state=seed)
    return model.fit(X, y, clients=clients)


def answering(model, right, loss):
    """Return a copy of a model that is right in some rows, and has one loss in all."""
    model, rows = copy(model), np.arange(len(Y))
    model.predict = lambda X: np.where(right, Y, 1 - Y)
    probabilities = np.full((len(Y), 2), 1 - exp(-loss))
    probabilities[rows, Y] = exp(-loss)
    model.predict_proba = lambda X: probabilities
    return model


@pytest.fixture(scope="module")
def three():
    """Return models with accuracies of 1, 1/2, 3/4 at "a", 1/2, 1/2, 1 at "b"."""
    model = fit(priority=["b"])
    return [
        answering(model, [True, True, True, True, True, False], 1.0),
        answering(model, [True, False, True, False, True, False], 2.0),
        answering(model, [True, True, True, False, True, True], 6.0),
    ]


def test_the_mean_and_the_deviation_are_those_by_hand(three):
    scores = client_scores(three, X, Y, CLIENTS)
    assert scores.columns.tolist() == [*MEASURES, "loss_std", "accuracy_std"]
    assert scores.index.tolist() == ["a", "b"] and scores.index.name == "client"
    assert scores["n_samples"].tolist() == [4, 2]
    assert scores["priority"].tolist() == [False, True] and scores["priority"].dtype == bool
    assert scores["accuracy"].tolist() == pytest.approx([3 / 4, 2 / 3])
    # Of n - 1: the roots of (1/16 + 1/16 + 0) / 2, of (1/36 + 1/36 + 1/9) / 2, of (4 + 1 + 9) / 2.
    assert scores["accuracy_std"].tolist() == pytest.approx([1 / 4, sqrt(1 / 12)])
    assert scores["loss"].tolist() == pytest.approx([3, 3])
    assert scores["loss_std"].tolist() == pytest.approx([sqrt(7)] * 2)
    pd.testing.assert_frame_equal(client_scores(tuple(three), X, Y, CLIENTS), scores)
    spread = summarise_clients(scores)
    assert spread.loc["all", ("accuracy", 0.0)] == pytest.approx(2 / 3)
    assert spread.loc["free", ("accuracy_std", "mean")] == pytest.approx(1 / 4)


def test_a_list_of_one_model_has_its_scores_and_no_deviation(three):
    scores, alone = (client_scores(given, X, Y, CLIENTS) for given in (three[:1], three[0]))
    assert alone.columns.tolist() == MEASURES
    pd.testing.assert_frame_equal(scores[MEASURES], alone)
    assert scores[["loss_std", "accuracy_std"]].isna().all(axis=None)


def test_without_a_value_of_one_model_there_is_no_mean(three):
    wrong = copy(three[1])
    wrong.predict_proba = lambda X: np.full((6, 2), 2.0)
    with pytest.warns(UserWarning, match="loss is NaN"):
        scores = client_scores([three[0], wrong], X, Y, CLIENTS)
    assert scores[["loss", "loss_std"]].isna().all(axis=None)
    assert scores["accuracy"].tolist() == [3 / 4, 1 / 2]


def test_r2_of_several_regressors():
    targets, clients = X[:, 0] ** 2, ["one", *CLIENTS[1:]]
    fits = [fit(targets, clients, kind=FederatedRegressor, seed=seed) for seed in range(2)]
    fits[1].predict = lambda X: np.zeros(len(X))  # so that the fits differ
    scores = client_scores(fits, X, targets, clients)
    first, second = (client_scores(model, X, targets, clients) for model in fits)
    assert scores.columns.tolist()[2:] == ["loss", "r2", "loss_std", "r2_std"]
    both = pd.DataFrame({0: first["r2"], 1: second["r2"]})
    assert both.loc["a", 0] != both.loc["a", 1]
    assert scores["r2"].to_dict() == pytest.approx(both.mean(axis=1).to_dict(), nan_ok=True)
    apart = ((both[0] - both[1]).abs() / sqrt(2)).to_dict()
    assert scores["r2_std"].to_dict() == pytest.approx(apart, nan_ok=True)
    assert scores["r2_std"].isna().to_dict() == {"a": False, "b": False, "one": True}


def test_lists_of_meta_estimators():
    step = FederatedClassifier(selector=RandomSelector(1), n_rounds=2)
    pipe = make_pipeline(StandardScaler(), step)
    pipes = [
        clone(pipe)
        .set_params(federatedclassifier__random_state=seed)
        .fit(X, Y, federatedclassifier__clients=CLIENTS)
        for seed in range(2)
    ]
    scores = client_scores(pipes, X, Y, CLIENTS)
    single = [client_scores(model, X, Y, CLIENTS)["loss"] for model in pipes]
    assert scores["loss"].tolist() == pytest.approx(np.mean(single, axis=0).tolist())


def test_the_clients_of_a_vote_are_those_of_all_its_models():
    def vote(*clients):
        model = VotingClassifier([])
        model.estimators_ = [fit(clients=ids) for ids in clients]
        model.classes_ = np.array([0, 1])
        model.predict = lambda X: Y
        return model

    one, other = vote(CLIENTS, [1] * 6), vote([1] * 6, CLIENTS)
    assert client_scores([one, other], X, Y, CLIENTS)["accuracy"].tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"model\[0\] has the client 1, which model\[1\] has"):
        client_scores([one, vote(CLIENTS, ["1"] * 6)], X, Y, CLIENTS)


def test_clients_are_told_apart_by_type_and_value():
    clients = [1, 1.0, True, "1", 1, 1.0]
    fits = [fit(clients=clients, priority=[1.0], seed=seed) for seed in range(2)]
    scores = client_scores(fits, X, Y, clients)
    assert [*map(repr, scores.index)] == ["True", "1.0", "1", "'1'"]
    assert scores["n_samples"].tolist() == [1, 2, 2, 1]
    assert scores["priority"].tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"y": [0, 1, 2, 1, 0, 1]}, r"model\[2\] has the class 2, which model\[0\] has not"),
        ({"y": [0] * 6}, r"model\[0\] has the class 1, which model\[2\] has not"),
        ({"kind": FederatedRegressor}, r"model\[0\] has the class 0, which model\[2\] has not"),
        ({"clients": list("aaaabc")}, r"model\[2\] has the client 'c', which model\[0\] has not"),
        ({"clients": list("aaaaaa")}, r"model\[0\] has the client 'b', which model\[2\] has not"),
        ({"priority": ["b"]}, r"model\[0\] has the priority client 'a', which model\[2\] has not"),
    ],
    ids=str,
)
def test_models_that_differ_are_an_error(other, message):
    same = fit()
    with pytest.raises(ValueError, match=f"{message}: pass models with the same classes, clients"):
        client_scores([same, same, fit(**other)], X, Y, CLIENTS)


def test_errors_say_of_which_model_they_are():
    with pytest.raises(ValueError, match="model is empty: pass at least one fitted model"):
        client_scores([], X, Y, CLIENTS)
    two = fit(np.c_[Y, Y], kind=FederatedRegressor)
    for others, error in (
        ([fit(), FederatedClassifier()], NotFittedError),
        ([fit(), "model"], TypeError),
        ([fit(kind=FederatedRegressor), two], ValueError),  # of two targets
    ):
        with pytest.raises(error) as raised:
            client_scores(others, X, Y, CLIENTS)
        assert raised.value.__notes__ == ["raised for model[1]"]

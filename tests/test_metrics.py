import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.metrics import client_scores, summarise_clients, usefulness

ALL = RandomSelector(1.0, probability="uniform", replace=False, ignore_priority=True)


@pytest.fixture(scope="module")
def fitted(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(selector=ALL, priority=["a", "b"], n_rounds=20, random_state=0)
    return model.fit(X, y, clients=clients)


def test_scores_of_each_client(fitted, blobs):
    X, y, clients = blobs
    scores = client_scores(fitted, X, y, clients)
    assert scores.index.tolist() == list("abcdef")
    assert scores["n_samples"].tolist() == [10, 20, 15, 30, 25, 40]
    assert scores["priority"].tolist() == [True, True, False, False, False, False]
    for client, row in scores.iterrows():
        own = clients == client
        assert row["accuracy"] == pytest.approx(fitted.score(X[own], y[own]))
        expected = log_loss(y[own], fitted.predict_proba(X[own]), labels=[0, 1, 2])
        assert row["loss"] == pytest.approx(expected, rel=1e-5)


def test_labels_that_do_not_fit_are_told(fitted, blobs):
    X, y, clients = blobs
    with pytest.raises(ValueError, match="y has 139 entries, but X has 140 rows"):
        client_scores(fitted, X, y[1:], clients)


def test_clients_that_the_model_has_not_seen_are_free(fitted, blobs):
    X, y, _ = blobs
    scores = client_scores(fitted, X, y, ["a", *["new"] * 139])
    assert scores["priority"].to_dict() == {"a": True, "new": False}


@pytest.fixture(scope="module")
def piped(blobs):
    """Return a Pipeline, its federated step, and what that step is shown of X."""
    X, y, clients = blobs
    scaler = StandardScaler().fit(X)
    pipeline = make_pipeline(StandardScaler(), FederatedClassifier(n_rounds=3, random_state=0))
    pipeline.fit(X, y, federatedclassifier__clients=clients)
    return pipeline, pipeline[-1], scaler.transform(X)


def test_x_passes_through_the_earlier_steps_of_a_pipeline(piped, blobs):
    pipeline, step, scaled = piped
    X, y, clients = blobs
    expected = client_scores(step, scaled, y, clients)
    pd.testing.assert_frame_equal(client_scores(pipeline, X, y, clients), expected)
    useful = usefulness(step, scaled, y, clients, scaled, y, clients)
    pd.testing.assert_frame_equal(usefulness(pipeline, X, y, clients, X, y, clients), useful)
    nested = GridSearchCV(clone(pipeline), {"federatedclassifier__n_rounds": [3]}, cv=2)
    nested.fit(X, y, federatedclassifier__clients=clients)
    pd.testing.assert_frame_equal(client_scores(nested, X, y, clients), expected)


def test_what_is_no_federated_classifier_is_told(blobs):
    X, y, clients = blobs
    regressor = FederatedRegressor(n_rounds=1, engine="loop").fit(X, X[:, 0], clients=clients)
    for score, data in ((client_scores, (X, y, clients)), (usefulness, (X, y, clients) * 2)):
        with pytest.raises(TypeError, match=f"{score.__name__} scores classifiers.*Regressor"):
            score(regressor, *data)
        with pytest.raises(TypeError, match=r"LogisticRegression\(\) has no.*pass a fitted Fed"):
            score(LogisticRegression().fit(X, y), *data)
        with pytest.raises(NotFittedError):
            score(make_pipeline(StandardScaler(), FederatedClassifier()), *data)


def test_the_spread_over_clients_by_hand():
    scores = pd.DataFrame(
        {"priority": [True, True, False, False, False], "accuracy": [0.5, 0.7, 0.0, 0.4, 1.0]},
        index=list("abcde"),
    )
    spread = summarise_clients(scores)
    assert spread.loc["priority", ("accuracy", "mean")] == pytest.approx(0.6)
    assert spread.loc["free", ("accuracy", 0.0)] == 0.0  # the worst client
    assert spread.loc["free", ("accuracy", 0.5)] == 0.4
    assert spread.loc["all", ("accuracy", 1.0)] == 1.0
    assert spread.loc["all", ("accuracy", "mean")] == pytest.approx(0.52)
    assert summarise_clients(scores[scores["priority"]]).index.tolist() == ["priority", "all"]


def test_the_global_model_is_useful_to_clients_with_little_data():
    """Clients of 6 rows each of one easy task, and one client whose labels are turned around."""
    rng = np.random.default_rng(0)

    def draw(n_rows):
        y = rng.integers(0, 2, n_rows)
        return rng.normal(size=(n_rows, 20)) + 0.7 * y[:, None], y

    clients, clients_test = np.repeat(np.arange(12), 6), np.repeat(np.arange(12), 40)
    (X, y), (X_test, y_test) = draw(72), draw(480)
    y[clients == 11], y_test[clients_test == 11] = (
        1 - y[clients == 11],
        1 - y_test[clients_test == 11],
    )
    model = FederatedClassifier(
        selector=FedAlignSelector(eps=0.2, warmup=0.1),
        priority=[0, 1, 2],
        n_rounds=30,
        local_epochs=5,
        random_state=0,
    ).fit(X, y, clients=clients)
    table = usefulness(model, X, y, clients, X_test, y_test, clients_test)
    assert table["priority"].sum() == 3
    assert not table.loc[11, "useful"]
    assert table.loc[:10, "useful"].mean() > 0.7
    assert table.loc[11, "local_accuracy"] > 0.5 > table.loc[11, "global_accuracy"]
    shares = summarise_clients(table)["useful", "mean"]
    assert shares.to_dict() == pytest.approx(
        {
            "priority": table.loc[:2, "useful"].mean(),
            "free": table.loc[3:, "useful"].mean(),
            "all": table["useful"].mean(),
        }
    )


def test_alone_a_clients_best_round_counts(blobs):
    X, y, clients = blobs
    net = NeuralNetClassifier(
        nn.Linear,
        module__in_features=5,
        module__out_features=3,
        criterion=nn.CrossEntropyLoss,
        lr=30.0,
        batch_size=2,
    )
    params = {"estimator": net, "n_rounds": 7, "local_steps": 1, "random_state": 0}
    model = FederatedClassifier(selector=ALL, **params).fit(X, y, clients=clients)
    table = usefulness(model, X, y, clients, X, y, clients)
    falls_back = 0
    for client in "adf":
        own = clients == client
        alone = FederatedClassifier(selector=ALL, **params)
        alone.fit(X[own], y[own], clients=np.zeros(own.sum(), int), X_val=X[own], y_val=y[own])
        curve = alone.history_["val_score"]
        assert table.loc[client, "local_accuracy"] == pytest.approx(curve.max())
        falls_back += curve.max() > curve.iloc[-1]
    assert falls_back

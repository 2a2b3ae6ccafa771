"""Each client's own model, scored on the rows of every client."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import log_loss

import skfed
from skfed import FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.metrics import cross_client_scores
from skfed.preprocessing import FederatedStandardScaler
from skfed.privacy import GaussianMechanism
from skfed.selection import Cohort


@pytest.fixture(scope="module")
def parts(blobs):
    X, y, clients = blobs
    test = np.arange(len(y)) % 3 == 0
    return [X[~test], y[~test], clients[~test]], [X[test], y[test], clients[test]]


def test_own_models_are_those_of_a_round_with_one_client(parts):
    """What a client sends is the model of a fit that goes on for a round with it alone."""
    train, (X_test, y_test, clients_test) = parts
    model = FederatedClassifier(n_rounds=3, random_state=0, engine="loop").fit(
        *train[:2], clients=train[2]
    )
    scores = cross_client_scores(model, *train, X_test, y_test, clients_test, metric="accuracy")
    assert scores.index.tolist() == ["global", *"abcdef"]
    assert scores.columns.tolist() == list("abcdef")
    for name in "abcdef":
        rows = clients_test == name
        expected = model.score(X_test[rows], y_test[rows])
        assert scores.loc["global", name] == pytest.approx(expected)
    losses = cross_client_scores(model, *train, X_test, y_test, clients_test)
    alone = clone(model).set_params(n_rounds=4, warm_start=True, selector=OnlyC())
    alone.__dict__.update({k: v for k, v in vars(model).items() if k.endswith("_") or k[0] == "_"})
    alone.fit(*train[:2], clients=train[2])
    rows = clients_test == "e"
    expected = log_loss(y_test[rows], alone.predict_proba(X_test[rows]), labels=[0, 1, 2])
    assert losses.loc["c", "e"] == pytest.approx(expected, rel=1e-4)


class OnlyC(RandomSelector):
    """Chooses client c, at position 2."""

    def _select(self, round):
        return Cohort.mean(np.array([2]))


def test_a_client_without_test_rows_has_no_column_of_numbers(parts):
    train, test = parts
    kept = test[2] != "d"
    model = FederatedClassifier(n_rounds=1, random_state=0).fit(*train[:2], clients=train[2])
    scores = cross_client_scores(model, *train, *(part[kept] for part in test))
    assert scores["d"].isna().all() and scores.drop(columns="d").notna().all(axis=None)
    assert scores.loc["d"].drop("d").notna().all()


def test_numbers_and_steps_before_the_model(parts):
    (X, _, clients), (X_test, _, clients_test) = parts
    pipeline = skfed.make_pipeline(
        FederatedStandardScaler(), FederatedRegressor(n_rounds=2, random_state=0)
    ).fit(X, X[:, 0], clients=clients)
    scores = cross_client_scores(
        *(pipeline, X, X[:, 0], clients, X_test, X_test[:, 0], clients_test),
        metric="neg_mean_absolute_error",
    )
    rows = clients_test == "a"
    error = np.abs(pipeline.predict(X_test[rows]) - X_test[rows, 0]).mean()
    assert scores.loc["global", "a"] == pytest.approx(-error, rel=1e-4)


def test_what_it_refuses(parts):
    train, test = parts
    model = FederatedClassifier(n_rounds=1, random_state=0).fit(*train[:2], clients=train[2])
    with pytest.raises(ValueError, match="'r2', which is not known from those of clients"):
        cross_client_scores(model, *train, *test, metric="r2")
    with pytest.raises(ValueError, match="y_test"):
        cross_client_scores(model, *train, test[0], test[1] + 7, test[2])
    with pytest.raises(ValueError, match="clients_test has no client of clients: 'z'"):
        cross_client_scores(model, *train, *test[:2], ["z"] * len(test[1]))
    private = clone(model).set_params(loss_privacy=GaussianMechanism(1.0, 1.0))
    private.fit(*train[:2], clients=train[2])
    with pytest.raises(ValueError, match="loss_privacy does not cover the scores"):
        cross_client_scores(private, *train, *test)

"""Scores, polls and probabilities are those of what the net predicts, not of its raw outputs."""

import warnings

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor
from skfed.metrics import client_scores, priority_neg_log_loss, usefulness
from skfed.nets import NotProbabilities

ENGINES = pytest.mark.parametrize("engine", ["stacked", "loop"])


def table(n_rows=300):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 4)).astype("float32")
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 1), np.arange(n_rows) % 3


class Energy(nn.Module):
    """Cross-entropy of energies: the lowest is the class."""

    def forward(self, energies, y):
        return nn.functional.cross_entropy(-energies, y)


def boltzmann(energies):
    return (-energies).softmax(1)


class OwnPredict(NeuralNetClassifier):
    def predict(self, X):
        return self.forward(X).argmin(1).numpy()


class OwnProbabilities(NeuralNetClassifier):
    def predict_proba(self, X):
        return boltzmann(self.forward(X)).numpy()


def energies(cls=NeuralNetClassifier, **params):
    torch.manual_seed(0)
    return cls(nn.Linear(4, 3), criterion=Energy, lr=0.3, batch_size=16, **params)


def fit(net, engine="auto", **params):
    X, y, clients = table()
    model = FederatedClassifier(
        net, **{"priority": [0], "n_rounds": 20, "engine": engine, "random_state": 0} | params
    )
    held_out = {"X_val": X, "y_val": y, "clients_val": clients}
    return model.fit(X, y, clients=clients, **held_out)


NETS = {
    "nonlinearity": energies(predict_nonlinearity=boltzmann),
    "predict": energies(OwnPredict),
    "predict_proba": energies(OwnProbabilities),
}


@ENGINES
@pytest.mark.parametrize("kind", NETS)
def test_scores_are_of_what_the_net_predicts(kind, engine):
    X, y, clients = table()
    align = FedAlignSelector(eps=0.3, match="accuracy", warmup=0)
    model = fit(NETS[kind], engine, selector=align)
    expected = model.score(X, y, clients=clients)
    assert expected > 0.75
    last = model.history_.iloc[-1]
    assert last["val_score"] == last["val_score_worst"] == expected
    # The last poll was before the last training: the errors are those of a similar model.
    assert last["n_aggregated"] == 3
    if kind != "predict":
        np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(
            np.exp(model.predict_log_proba(X)), model.predict_proba(X), rtol=1e-4
        )


@ENGINES
def test_polls_of_accuracy_are_of_what_the_net_predicts(engine):
    """At rate 0 the first model, of energies, is wrong where its raw outputs would be right."""
    X, y, clients = table()
    net = energies(predict_nonlinearity=boltzmann)
    net = NeuralNetClassifier(
        fit(net).net_.module_, criterion=Energy, lr=0.0, predict_nonlinearity=boltzmann
    )
    align = FedAlignSelector(eps=0.5, match="accuracy", warmup=0)
    polled = []

    class Watched(FedAlignSelector):
        def _select(self, round):
            polled.append(round.poll(np.arange(3), metric="error"))
            return super()._select(round)

    fit(net, engine, selector=Watched(**align.get_params()), n_rounds=1)
    model = fit(net, engine, selector=align, n_rounds=1)
    errors = 1 - client_scores(model, X, y, clients)["accuracy"]
    np.testing.assert_allclose(polled[0], errors)


@ENGINES
def test_poisson_regression_is_scored_by_its_rates(engine):
    X, _, clients = table()
    y = np.exp(X @ np.array([0.5, -0.3, 0.2, 0.1]))
    torch.manual_seed(0)
    net = NeuralNetRegressor(
        nn.Linear(4, 1),
        criterion=nn.PoissonNLLLoss,
        predict_nonlinearity=torch.exp,
        lr=0.1,
        batch_size=16,
    )
    model = FederatedRegressor(net, n_rounds=20, engine=engine, random_state=0)
    model.fit(X, y, clients=clients, X_val=X, y_val=y, clients_val=clients)
    last = model.history_.iloc[-1]
    assert model.score(X, y) == pytest.approx(last["val_score"]) == pytest.approx(1, abs=1e-3)
    assert last["val_score_worst"] > 0.999
    table_of = usefulness(model, X, y, clients, X, y, clients)
    assert (table_of["local_r2"] > 0.99).all()


@pytest.mark.parametrize("criterion", [nn.MultiMarginLoss, Energy])
def test_logits_are_no_probabilities(criterion):
    X, y, clients = table()
    net = NeuralNetClassifier(nn.Linear(4, 3), criterion=criterion, lr=0.1, batch_size=16)
    model = fit(net)
    assert set(model.predict(X)) <= {0, 1, 2}
    for method in (model.predict_proba, model.predict_log_proba):
        with pytest.raises(NotProbabilities, match=r"no probabilities.*predict_nonlinearity"):
            method(X)
    with pytest.raises(ValueError, match="predict_nonlinearity"):
        priority_neg_log_loss(model, X, y, clients=clients)
    with pytest.warns(UserWarning, match="loss is NaN.*predict_nonlinearity"):
        scores = client_scores(model, X, y, clients)
    assert scores["loss"].isna().all()
    for k in range(3):
        own = clients == k
        assert scores.loc[k, "accuracy"] == np.mean(model.predict(X[own]) == y[own])


def test_known_criteria_give_probabilities_without_a_warning():
    X, y, clients = table()
    for net in (nn.Linear(4, 3), None):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = fit(net)
            client_scores(model, X, y, clients)
        np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1, rtol=1e-5)


class Thresholded(NeuralNetClassifier):
    def predict(self, X):
        return self.predict_proba(X)[:, 1] > 0.9


@ENGINES
def test_an_own_predict_may_return_booleans(engine):
    X, y, clients = table()
    torch.manual_seed(0)
    net = Thresholded(nn.Linear(4, 2), criterion=nn.CrossEntropyLoss, lr=0.3, batch_size=16)
    align = FedAlignSelector(eps=0.5, match="accuracy", warmup=0)
    model = FederatedClassifier(net, priority=[0], selector=align, n_rounds=5, engine=engine)
    model.fit(X, y > 0, clients=clients, X_val=X, y_val=y > 0)
    assert not model.history_["n_failed"].any()
    assert model.history_["val_score"].iloc[-1] == model.score(X, y > 0)
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X)[:, 1] > 0.9)


@ENGINES
@pytest.mark.parametrize("n_targets", [1, 3])
def test_a_regressor_of_shares_predicts_their_sigmoid(n_targets, engine):
    X, _, clients = table()
    y = (X[:, :n_targets] > 0).astype("float32")
    torch.manual_seed(0)
    net = NeuralNetRegressor(
        nn.Linear(4, n_targets), criterion=nn.BCEWithLogitsLoss, lr=1.0, batch_size=16
    )
    model = FederatedRegressor(net, n_rounds=10, engine=engine, random_state=0)
    model.fit(X, y, clients=clients, X_val=X, y_val=y)
    assert model.history_["val_score"].iloc[-1] == pytest.approx(model.score(X, y))
    assert model.score(X, y) > 0.7
    assert 0 <= model.predict(X).min() <= model.predict(X).max() <= 1

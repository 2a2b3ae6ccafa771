"""Classifiers whose loss ends above that of the class shares, or of an earlier model."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, RandomSelector
from skfed.aggregation import Scaffold
from skfed.modules import Standardize


def rare(share=0.05, n_rows=600, n_clients=6):
    """A table whose positives are rare, and its clients."""
    rng = np.random.default_rng(0)
    X, clients = rng.normal(size=(n_rows, 4)), np.arange(n_rows) % n_clients
    y = np.zeros(n_rows, dtype=int)
    y[: int(share * n_rows)] = 1
    return X + y[:, None], y, clients


def entropy(*shares):
    return -sum(p * np.log(p) for p in shares)


def fit_without_warning(model, X, y, clients):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        return model.fit(X, y, clients=clients)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_the_guess_is_the_class_shares_of_the_priority_clients(engine):
    X, y, clients = rare()
    y[clients == 5] = 1
    model = FederatedClassifier(priority=[0, 1], n_rounds=2, engine=engine, random_state=0)
    model.fit(X, y, clients=clients)
    share = y[clients < 2].mean()
    assert model._server.guess.loss == pytest.approx(entropy(share, 1 - share))
    # Each of two clients sends a number for each of two classes, with three for each column.
    asked = model.history_["scalars_up"][0] - model.history_["n_polled"][0]
    assert asked == 2 * (3 * 4 + 2)
    # Weights of classes make them 1 : 1 here.
    weighted = FederatedClassifier(class_weight="balanced", n_rounds=1, random_state=0)
    weighted.fit(X, y, clients=clients)
    assert weighted._server.guess.loss < entropy(0.5, 0.5)


def test_weights_of_rows_weigh_the_shares():
    X, y, clients = rare()
    weights = np.where(y == 1, 19.0, 1.0)
    model = FederatedClassifier(n_rounds=1, random_state=0)
    model.fit(X, y, clients=clients, sample_weight=weights)
    assert model._server.guess.loss == pytest.approx(entropy(0.5, 0.5))


def test_one_class_has_no_shares():
    X, y, clients = rare()
    model = fit_without_warning(FederatedClassifier(n_rounds=3), X, np.zeros_like(y), clients)
    assert set(model.predict(X)) == {0}


def test_rare_positives_that_end_near_equal_probabilities_warn():
    """The loss falls from .693 to .67, slowly; the shares of the classes have .199."""
    X, y, clients = rare()
    model = FederatedClassifier(lr_schedule=3e-4, n_rounds=12, random_state=0)
    match = r"training loss at 0\.6.*above that of .* class shares, 0\.1985.* still falls: train"
    with pytest.warns(ConvergenceWarning, match=match):
        model.fit(X, y, clients=clients)
    fit_without_warning(model.set_params(lr_schedule=None), X, y, clients)


@pytest.mark.parametrize("selector", [RandomSelector(), FedAlignSelector(warmup=0)])
def test_rare_positives_at_too_high_a_rate_keep_the_best_model(selector):
    X, y, clients = rare()
    model = FederatedClassifier(selector=selector, lr_schedule=300, n_rounds=12, random_state=0)
    match = (
        r"above that of .* class shares, 0\.1985.*The loss of .* try lr_schedule=30\. .* is kept"
    )
    with pytest.warns(ConvergenceWarning, match=match):
        model.fit(X, y, clients=clients)


def trained(n_features, n_classes, X, y, clients):
    """A net that was trained in the usual way."""
    torch.manual_seed(0)
    module = nn.Linear(n_features, n_classes)
    model = FederatedClassifier(module, lr_schedule=5.0, n_rounds=60, random_state=0)
    return fit_without_warning(model, X, y, clients).net_.module_


def ten_classes():
    rng = np.random.default_rng(0)
    y, clients = rng.integers(0, 10, 1000), np.arange(1000) % 10
    return rng.normal(size=(10, 8))[y] + rng.normal(size=(1000, 8)), y, clients


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_a_pretrained_net_that_gets_worse_warns_and_is_kept(engine):
    """Its loss stays below that of equal probabilities, and no rule polls."""
    X, y, clients = ten_classes()
    module = trained(8, 10, X, y, clients)
    model = FederatedClassifier(
        module, lr_schedule=12.0, local_steps=1, n_rounds=12, engine=engine, random_state=0
    )
    match = r"ends with objective at .*, above that of round \d, 0\.66.* try lr_schedule=1\.2.*"
    with pytest.warns(ConvergenceWarning, match=match):
        model.fit(X, y, clients=clients)
    last = model.history_.iloc[-1]
    assert 0.9 < last["objective"] < np.log(10)
    # In the last round each client gets the best model, and then that of the round, to train it.
    assert (last["n_polled"], last["models_down"], last["models_up"]) == (20, 20, 10)
    assert log_loss(y, model.predict_proba(X)) < 0.67


@pytest.mark.parametrize("aggregator", [None, Scaffold()])
def test_losses_that_grow_with_skewed_labels_do_not_warn(aggregator):
    """A client of two classes learns them at once, so its training loss says little."""
    X, y, _ = ten_classes()
    clients = y // 2
    torch.manual_seed(0)
    module = nn.Sequential(Standardize(8), nn.Linear(8, 10))
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, batch_size=16, lr=0.05)
    model = FederatedClassifier(net, aggregator=aggregator, n_rounds=20, random_state=0)
    fit_without_warning(model, X, y, clients)
    assert model.score(X, y) > 0.5


def test_short_fits_that_still_fall_do_not_warn():
    X, y, clients = rare()
    model = FederatedClassifier(lr_schedule=3e-4, n_rounds=5, random_state=0)
    fit_without_warning(model, X, y, clients)

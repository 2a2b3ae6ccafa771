"""Fits whose loss ends above that of the class shares, or of an earlier model."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.aggregation import Scaffold
from skfed.availability import BaseAvailability
from skfed.devices import ConstantDevices
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
    # Weights of classes weigh the rows of each client in its shares.
    weighted = FederatedClassifier(class_weight="balanced", n_rounds=1, random_state=0)
    weighted.fit(X, y, clients=clients)
    by_class = len(y) / (2 * np.bincount(y))
    shares = [
        np.average(y[own], weights=by_class[y[own]]) for own in (clients == k for k in range(6))
    ]
    assert weighted._server.guess.loss == pytest.approx(
        entropy(np.mean(shares), 1 - np.mean(shares))
    )
    assert weighted.history_["scalars_up"][0] == 6 * (3 * 4 + 2 + 2)  # with the counts


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
    match = r"objective at 0\.6.*above that of .* class shares, 0\.1985.* still falls: train"
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


class NobodyAtFirst(BaseAvailability):
    """In the first round no client can be reached."""

    def _reachable(self, federation, round, rng, fixed_rng):
        return np.full(len(federation), round > 0)


def growing(n_clients=6, n_rows=600):
    """A regression that a net of one's own diverges on at a rate of .13."""
    rng = np.random.default_rng(0)
    X, clients = 3 * rng.normal(size=(n_rows, 5)), np.arange(n_rows) % n_clients
    torch.manual_seed(0)
    return X, X @ np.ones(5) / 3 + rng.normal(size=n_rows), clients


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"n_rounds": 5, "lr_schedule": 0.16}, "of round 0"),  # few rounds
        ({"priority": [0, 1, 2], "selector": FedAlignSelector(), "n_rounds": 12}, "objective"),
        ({"selector": RandomSelector(2), "n_rounds": 12}, "polled|objective"),
        ({"availability": NobodyAtFirst(), "n_rounds": 11}, "objective"),
    ],
)
def test_other_fits_that_diverge_warn(params, kept):
    X, y, clients = growing()
    params = {"lr_schedule": 0.13, "local_steps": 1, "random_state": 0} | params
    model = FederatedRegressor(nn.Linear(5, 1), **params)
    with pytest.warns(ConvergenceWarning, match=f"{kept}.* is kept"):
        model.fit(X, y, clients=clients)
    assert np.mean((model.predict(X) - y) ** 2) < 50


@pytest.mark.parametrize(("n_clients", "n_cohort", "share"), [(100, 5, 0.05), (60, 3, 0.08)])
def test_old_losses_of_other_clients_do_not_tell(n_clients, n_cohort, share):
    """Most last losses are of early rounds, near that of equal probabilities."""
    rng = np.random.default_rng(0)
    n_rows = n_clients * 30
    y = (rng.random(n_rows) < share).astype(int)
    X = rng.normal(size=(n_rows, 10)) + y[:, None]
    params = {"selector": RandomSelector(n_cohort), "n_rounds": 20, "random_state": 0}
    model = FederatedClassifier(**params)
    fit_without_warning(model, X, y, np.arange(n_rows) % n_clients)
    assert log_loss(y, model.predict_proba(X)) < entropy(share, 1 - share)


def pretrained_case(**params):
    X, y, clients = ten_classes()
    module = trained(8, 10, X, y, clients)
    settings = {"lr_schedule": 12.0, "local_steps": 1, "n_rounds": 12, "random_state": 0}
    return FederatedClassifier(module, **settings | params), X, y, clients


def test_who_is_late_in_the_poll_in_doubt_trains_all_the_same():
    """A poll reads all rows, and takes longer than a step here."""
    devices = ConstantDevices(100, 1e9, 1e9)
    model, X, y, clients = pretrained_case(devices=devices, deadline=0.2, n_rounds=11)
    model.estimator = NeuralNetClassifier(
        model.estimator, criterion=nn.CrossEntropyLoss, batch_size=5, lr=12.0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y, clients=clients)
    last = model.history_.iloc[-1]
    assert (last["n_polled"], last["n_trained"]) == (20, 10)
    assert np.isnan(last["objective"])


def test_a_failure_of_the_poll_in_doubt_does_not_end_the_fit():
    class FailsInEvaluation(nn.Linear):
        def forward(self, X):
            if not self.training and len(X) > 50:
                raise ValueError("too many rows")
            return super().forward(X)

    X, y, clients = growing()
    model = FederatedRegressor(
        FailsInEvaluation(5, 1),
        lr_schedule=0.115,
        local_steps=1,
        n_rounds=12,
        on_client_error="raise",
        engine="loop",
        random_state=0,
    )
    with pytest.warns(ConvergenceWarning, match="the training loss"):
        model.fit(X, y, clients=clients)
    assert model.n_rounds_ == 12
    assert model.history_["n_aggregated"].iloc[-1] == 6


def test_a_callback_that_stops_a_diverging_fit_does_not_hide_it():
    model, X, y, clients = pretrained_case(n_rounds=30)
    stopping = EarlyStopping(monitor="train_loss", patience=8, sink=lambda text: None)
    model.estimator = NeuralNetClassifier(
        model.estimator, criterion=nn.CrossEntropyLoss, lr=12.0, callbacks=[stopping]
    )
    with pytest.warns(ConvergenceWarning, match="above that of round 0.* is kept"):
        model.fit(X, y, clients=clients)
    assert log_loss(y, model.predict_proba(X)) < 0.67

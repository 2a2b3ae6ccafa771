"""The default models on tables of strangers: rare flags, heavy tails, odd clients, later months."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from benchmarks.default_models import CHECKS, ODD, classification, regression
from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor
from skfed.privacy import GaussianMechanism

ENGINES = "stacked", "loop"


def ridge(X, y):
    return make_pipeline(StandardScaler(), Ridge()).fit(X, y).score(X, y)


def with_rare_flag(n_clients, rare):
    """Return rows of clients with a flag that one row of ``rare`` has, and half of the others'."""
    rng = np.random.default_rng(0)
    X, clients = rng.normal(size=(1000, 5)), np.arange(1000) % n_clients
    own = np.isin(clients, rare)
    X[:, -1] = ~own & (rng.random(1000) < 0.5)
    X[np.flatnonzero(own)[3], -1] = 1
    y = X[:, :-1].sum(axis=1) + 3 * X[:, -1] + 0.3 * rng.normal(size=1000)
    return X, y, clients


def regression_table(n_clients=20):
    X, y = make_regression(2000, 10, noise=10, random_state=0)
    return X, y, np.arange(2000) % n_clients


def one_client(change):
    X, y, clients = regression_table()
    X[clients == 3] = change(X[clients == 3])
    return X, y, clients


def large_rows():
    X, y, clients = regression_table()
    X[np.random.default_rng(0).choice(2000, 20, replace=False)] *= 30
    return X, y, clients


def one_column():
    X, y = make_regression(200, 1, noise=10, random_state=0)
    clients = np.arange(200) % 10
    X[clients == 3] *= 5
    return X, y, clients


def lognormal():
    rng = np.random.default_rng(0)
    X = rng.lognormal(sigma=1.5, size=(1000, 5))
    return X, np.log(X).sum(axis=1) + rng.normal(size=1000), np.arange(1000) % 5


TABLES = {
    "a rare flag": (lambda: with_rare_flag(1, [0]), 0.01),
    "one client x10": (lambda: one_client(lambda X: 10 * X), 0.1),
    "one client +20": (lambda: one_client(lambda X: X + 20), 0.15),
    "rows x30": (large_rows, 0.1),
    "one column, one client x5": (one_column, 0.05),
    "lognormal": (lognormal, 0.05),
}


@pytest.mark.parametrize(
    ("name", "engine"),
    [*((name, "stacked") for name in TABLES), ("one column, one client x5", "loop")],
)
def test_the_default_regressor_is_near_ridge(name, engine):
    make, distance = TABLES[name]
    X, y, clients = make()
    model = FederatedRegressor(engine=engine, random_state=0).fit(X, y, clients=clients)
    assert model.score(X, y) > max(0, ridge(X, y) - distance)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("eps", [0.2, np.inf])
def test_a_column_that_is_rare_at_the_priority_clients(engine, eps):
    """Their scale is that of the flag; the free clients train at what is safe for them."""
    X, y, clients = with_rare_flag(4, [0])
    model = FederatedRegressor(
        selector=FedAlignSelector(eps=eps, warmup=0.2),
        priority=[0],
        engine=engine,
        random_state=0,
    ).fit(X, y, clients=clients)
    assert model.score(X, y) > 0.95
    layer = model.net_.module_.standardize
    mean = X[clients == 0, -1].mean()
    assert layer.scale[-1] == pytest.approx((1 - mean) / 10, rel=1e-5)  # a tenth of the largest


def test_no_hospital_has_a_log_loss_of_its_own_from_a_rare_column():
    X, score, clients = with_rare_flag(4, [0])
    rng = np.random.default_rng(1)
    y = (score - np.median(score) + rng.logistic(size=1000) > 0).astype(int)
    model = FederatedClassifier(priority=[0], random_state=0).fit(X, y, clients=clients)
    pooled = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    for k in range(4):
        own = clients == k
        of_pooled = log_loss(y[own], pooled.predict_proba(X[own]))
        assert log_loss(y[own], model.predict_proba(X[own])) < of_pooled + 0.2


@pytest.mark.parametrize("again", ["fit", "partial_fit"])
def test_later_rows_may_be_wider(again):
    X, y, clients = with_rare_flag(5, range(5))
    model = FederatedRegressor(n_rounds=30, warm_start=True, random_state=0)
    model.fit(X, y, clients=clients)
    if again == "fit":
        model.set_params(n_rounds=100).fit(3 * X, y, clients=clients)
    else:
        for _ in range(60):
            model.partial_fit(3 * X, y, clients=clients)
    assert model.score(3 * X, y) > 0.97


def test_months_of_air_data_that_grow_wider():
    """Ozone by temperature and wind; each month has a larger range, and other stations."""
    rng = np.random.default_rng(0)
    model = FederatedRegressor(n_rounds=20, warm_start=True, random_state=0)
    for month in range(6):
        X = rng.normal(size=(400, 3)) * [2 + 2 * month, 3, 50] + [5 * month, 8, 1010]
        y = 30 + 2 * X[:, 0] - X[:, 1] + rng.normal(size=400) * 5
        stations = month + np.arange(400) % 4
        model.set_params(n_rounds=20 * (month + 1)).fit(X, y, clients=stations)
        assert model.score(X, y) > ridge(X, y) - 0.05
    assert model.coef_[:2] == pytest.approx([2, -1], abs=0.3)


def test_a_column_in_another_unit_does_not_carry_its_weight():
    """Seconds since 1970 become milliseconds: what the model would predict is without meaning."""
    rng = np.random.default_rng(0)
    X, clients = rng.normal(size=(400, 2)), np.arange(400) % 4
    y = X.sum(axis=1)
    X[:, 1] = 1.7e9 + 1e4 * X[:, 1]
    model = FederatedRegressor(n_rounds=40, warm_start=True, random_state=0)
    model.fit(X, y, clients=clients).set_params(n_rounds=80)
    X[:, 1] *= 1000
    assert model.fit(X, y, clients=clients).score(X, y) > 0.99


@pytest.mark.slow
def test_drawn_tables_pass_the_checks_of_the_benchmark():
    """Twenty of those of ``python -m benchmarks.default_models``."""
    results = {
        "even": [regression(seed) for seed in range(100, 108)],
        "odd": [regression(100 + seed, ODD[seed % 2]) for seed in range(6)],
        "classes": [classification(seed) for seed in range(100, 106)],
    }
    assert all(np.isfinite(r.score) for rs in results.values() for r in rs)
    for kind, check in CHECKS.values():
        assert [(r.seed, r.score, r.pooled) for r in results[kind] if not check(r)] == []


def test_a_fit_below_zero_warns_and_keeps_the_mean():
    """Client 1 has the opposite slope on rows ten times as wide, so averaging helps nobody.

    Each client's training loss is small, since it improves its own model; the last round asks.
    """
    rng = np.random.default_rng(0)
    X, clients = rng.normal(size=(200, 1)), np.arange(200) % 2
    y = np.where(clients == 0, X[:, 0], -X[:, 0]) + 0.1 * rng.normal(size=200)
    X[clients == 1] *= 10
    model = FederatedRegressor(random_state=0, n_rounds=30, local_epochs=20)
    match = r"ends with objective at .*above that of a model that predicts the mean of the tar.*"
    match += r"The loss of client \d grew first.*The learning rate was .*try lr_schedule=.*is kept"
    with pytest.warns(ConvergenceWarning, match=match):
        model.fit(X, y, clients=clients)
    assert model.score(X, y) > -0.01
    last = model.history_.iloc[-1]
    assert (last["n_polled"], last["scalars_up"]) == (2, 2)
    assert last["objective"] > y.var() > last["train_loss"]


def plane(n_rows=300):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 3))
    return X, X @ [1, 2, 3] + 0.3 * rng.normal(size=n_rows), np.arange(n_rows) % 5


def test_weights_of_rows_weigh_the_targets_that_a_fit_is_compared_with():
    """A seventh of the rows has most of the weight, and other targets."""
    X, y, clients = plane()
    heavy = np.arange(300) % 7 == 0
    y = np.where(heavy, y + 30, y)
    weights = np.where(heavy, 20.0, 1.0)
    shares = weights / np.bincount(clients, weights)[clients] / 5  # in F, of five equal clients
    model = FederatedRegressor(n_rounds=60, random_state=0)
    model.fit(X, y, clients=clients, sample_weight=weights)
    assert model._server.guess.loss == pytest.approx(shares @ np.square(y - shares @ y))
    assert model.score(X, y, sample_weight=weights) > 0.05


def test_new_weights_of_rows_need_another_rate():
    X, y, clients = with_rare_flag(1, [0])
    weights = np.where(X[:, -1] == 1, 500.0, 1.0)
    model = FederatedRegressor(n_rounds=30, warm_start=True, random_state=0)
    model.fit(X, y, clients=clients).set_params(n_rounds=60)
    model.fit(X, y, clients=clients, sample_weight=weights)
    fresh = FederatedRegressor(n_rounds=1, random_state=0)
    fresh.fit(X, y, clients=clients, sample_weight=weights)
    assert model._server.rate == fresh._server.rate < 0.01
    assert model.score(X, y) > 0.5


@pytest.mark.parametrize(
    ("factor", "shift", "standardize"),
    [(1e3, 0, False), (1e3, 0, True), (1e3, 1e5, False), (1e3, 1e5, True), (1, 1e9, False)],
)
def test_later_targets_in_other_units_are_no_divergence(factor, shift, standardize):
    """The losses of the fit before are not compared with those of this one."""
    X, y, clients = plane()
    later = factor * y + shift
    model = FederatedRegressor(
        n_rounds=50, standardize_targets=standardize, warm_start=True, random_state=0
    )
    model.fit(X, y, clients=clients).set_params(n_rounds=150).fit(X, later, clients=clients)
    assert model.score(X, later) > 0.9


@pytest.mark.parametrize("rate", [None, 0.1])
def test_with_update_privacy_each_gradient_is_clipped(rate):
    X, y, clients = plane()
    privacy = GaussianMechanism(clip=1.0, noise_multiplier=0.0)
    model = FederatedRegressor(lr_schedule=rate, update_privacy=privacy, random_state=0)
    model.fit(20 * X, y, clients=clients)
    assert model.history_["scalars_up"].sum() == 0
    assert model.history_["train_loss"].iloc[-1] < 10 * model.history_["train_loss"].iloc[0]


@pytest.mark.parametrize("kind", [FederatedClassifier, FederatedRegressor])
def test_a_column_that_float32_cannot_hold_is_constant(kind):
    X, y, clients = plane()
    X = X * [1e-47, 1, 1]
    y = y if kind is FederatedRegressor else (y > 0).astype(int)
    model = kind(n_rounds=40, random_state=0).fit(X, y, clients=clients)
    assert model.score(X, y) > 0.85
    assert model.net_.module_.standardize.scale[0] == 1


def test_single_rows_do_not_warn_of_divergence():
    X, y, clients = plane(60)
    model = FederatedRegressor(random_state=0)
    for i in range(60):
        model.partial_fit(X[i : i + 1], 100 * y[i : i + 1], clients=clients[i : i + 1])
    assert np.isfinite(model.coef_).all()


@pytest.mark.parametrize("rate", [0.97, 0.99])
def test_a_net_of_ones_own_that_grows_mildly_warns(rate):
    X, y, clients = plane()
    torch.manual_seed(0)
    model = FederatedRegressor(
        nn.Linear(3, 1), lr_schedule=rate, local_steps=1, n_rounds=20, random_state=0
    )
    match = "above that of round .*lr_schedule=0.09.*The model before round .* is kept"
    with pytest.warns(ConvergenceWarning, match=match):
        model.fit(X, y, clients=clients)
    assert model.score(X, y) > 0.7

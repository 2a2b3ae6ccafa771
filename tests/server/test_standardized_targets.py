"""Targets standardised by moments of the priority clients, and predictions in their units."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from skfed import FedAlignSelector, FederatedRegressor, RandomSelector
from skfed.modules import LinearRegression
from skfed.privacy import GaussianMechanism

EVERYBODY = RandomSelector(1.0, "uniform", False)


@pytest.fixture
def houses():
    """Prices of houses in four cities, of other sizes and levels."""
    rng = np.random.default_rng(0)
    cities = np.repeat(list("abcd"), [30, 10, 25, 5])
    X = rng.normal(size=(70, 3)) * [1.0, 10.0, 100.0]
    y = 3e5 + X @ [4e4, 1e3, -200.0] + (cities == "c") * 1e5 + rng.normal(size=70) * 1e4
    return X, y, cities


def regressor(**params):
    given = {"selector": EVERYBODY, "n_rounds": 4, "random_state": 0}
    return FederatedRegressor(standardize_targets=True, **given | params)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_it_learns_scaled_targets_and_predicts_in_their_units(houses, engine):
    X, y, cities = houses
    model = regressor(engine=engine).fit(X, y, clients=cities)
    np.testing.assert_allclose(model.target_mean_, [y.mean()])
    np.testing.assert_allclose(model.target_scale_, [y.std()])
    plain = clone(model).set_params(standardize_targets=False)
    plain.fit(X, (y - y.mean()) / y.std(), clients=cities)
    np.testing.assert_allclose(model.predict(X), plain.predict(X) * y.std() + y.mean())
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_, rtol=1e-5)
    same = ["train_loss", "models_up", "bytes_down"]
    np.testing.assert_allclose(model.history_[same], plain.history_[same], rtol=1e-5)
    assert not hasattr(plain, "target_mean_")


def test_moments_by_hand_and_what_they_cost():
    X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.0, 10.0, 99.0]
    model = regressor(priority={"a": 1.0, "b": 0.5}, selector=FedAlignSelector(eps=0))
    model.fit(X, y, clients=["a", "a", "b", "c"])
    # a has 0 and 2, of weight 1; b has 10, of weight 1/2: their mean is 7 / 2.5.
    assert model.target_mean_.tolist() == [pytest.approx(2.8)]
    variance = (2.8**2 + 0.8**2 + 0.5 * 7.2**2) / 2.5
    assert model.target_scale_.tolist() == [pytest.approx(variance**0.5)]
    # Before round 0 each of the two sends three moments of the column, two of the targets, and two
    # norms; in each round it is polled.
    history = model.history_
    assert history["scalars_up"].tolist() == [2 * (3 + 2 + 2) + 2, 2, 2, 2]
    assert (
        history["scalars_down"][0] == 2 * 2 + 1
    )  # the scale of the column; the free client's bound
    plain = regressor(estimator=LinearRegression(1)).fit(X, y, clients=["a", "a", "b", "c"])
    # Of a net of one's own, two of the targets; the last round polls all three for the loss.
    assert plain.history_["scalars_up"].tolist() == [3 * 2, 0, 0, 3]


def test_several_targets_one_of_them_constant(houses):
    X, y, cities = houses
    targets = np.stack([y, np.full(70, 7.0)], axis=1)
    model = regressor().fit(X, targets, clients=cities)
    assert model.target_scale_[1] == 1.0
    assert model.coef_.shape == (2, 3)
    assert model.predict(X).shape == (70, 2)
    np.testing.assert_allclose(model.predict(X)[:, 1], 7.0)
    found = X @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(model.predict(X), found, rtol=1e-5)


def test_eps_does_not_depend_on_units(houses):
    X, y, cities = houses
    align = FedAlignSelector(eps=0.3, warmup=0)
    fits = [
        regressor(selector=align, priority=["a"]).fit(X, unit * y, clients=cities).history_
        for unit in (1.0, 1000.0)
    ]
    assert fits[0]["cohort"].tolist() == fits[1]["cohort"].tolist()
    np.testing.assert_allclose(fits[0]["objective"], fits[1]["objective"], rtol=1e-4)
    assert fits[0]["objective"].iloc[-1] < 1


def test_a_net_learns_targets_far_from_zero(houses):
    """At a usual rate; without standardised targets it diverges."""
    X, y, cities = houses
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    torch.manual_seed(0)
    model = regressor(estimator=net, n_rounds=200, local_epochs=5)
    scaled = X / X.std(axis=0)
    assert model.fit(scaled, y, clients=cities).score(scaled, y) > 0.5


def test_validation_is_of_scaled_targets_and_its_score_is_score(houses):
    X, y, cities = houses
    held_out = {"X_val": X[::3], "y_val": y[::3]}
    model = regressor().fit(X, y, clients=cities, **held_out)
    assert model.history_["val_loss"].iloc[-1] < 2
    assert model.history_["val_score"].iloc[-1] == pytest.approx(model.score(X[::3], y[::3]))


def test_a_file_a_warm_start_and_single_rounds_keep_the_scale(houses, tmp_path):
    X, y, cities = houses
    model = regressor(warm_start=True).fit(X, y, clients=cities)
    mean, predicted = model.target_mean_, model.predict(X)
    model.save(tmp_path / "model")
    loaded = regressor(n_rounds=6, warm_start=True).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), predicted)
    loaded.fit(X, y + 1e6, clients=cities)
    model.set_params(n_rounds=6).fit(X, y + 1e6, clients=cities)
    assert loaded.target_mean_ == model.target_mean_ == mean
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert model.set_params(warm_start=False).fit(X, y + 1e6, clients=cities).target_mean_ != mean
    model.set_params(standardize_targets=False).fit(X, y / 1e6, clients=cities)
    assert not hasattr(model, "target_mean_")


def test_a_checkpoint_is_resumed(houses, tmp_path):
    X, y, cities = houses
    rate = {"lr_schedule": 0.05}  # else it falls until the last of n_rounds
    params = {"checkpoint": tmp_path, "warm_start": True, **rate}
    regressor(n_rounds=2, **params).fit(X, y, clients=cities)
    resumed = regressor(**params).fit(X, y, clients=cities)
    whole = regressor(**rate).fit(X, y, clients=cities)
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))
    costs = [one.history_["scalars_up"].tolist() for one in (resumed, whole)]
    assert costs[0] == costs[1]


def test_with_update_privacy_nobody_sends_moments(houses):
    X, y, cities = houses
    with pytest.raises(ValueError, match="standardize_targets asks .*update_privacy does not"):
        regressor(update_privacy=GaussianMechanism()).fit(X, y, clients=cities)

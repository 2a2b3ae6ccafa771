"""``coef_``, ``intercept_`` and ``predict_log_proba``, as of scikit-learn's linear models."""

import numpy as np
import pytest
import torch
from sklearn.utils import estimator_html_repr
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.modules import LinearRegression

EVERYBODY = RandomSelector(1.0, "uniform", False)


@pytest.fixture
def targets(blobs):
    X, _, clients = blobs
    return X, X @ np.array([1.0, -1.0, 0.5, 0.0, 2.0]) + 3, clients


def decision(model, X):
    return X.astype(float) @ model.coef_.T + model.intercept_


def test_coefficients_of_softmax_regression_give_its_probabilities(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=5, random_state=0).fit(X, y, clients=clients)
    assert model.coef_.shape == (3, 5) and model.intercept_.shape == (3,)
    odds = np.exp(decision(model, X))
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), model.predict_proba(X), rtol=1e-4)


def test_two_classes_have_two_rows_of_coefficients(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=5, random_state=0).fit(X, y > 0, clients=clients)
    assert model.coef_.shape == (2, 5)
    difference = np.subtract(*decision(model, X).T[::-1])
    np.testing.assert_allclose(1 / (1 + np.exp(-difference)), model.predict_proba(X)[:, 1], 1e-4)


@pytest.mark.parametrize(("n_targets", "shape"), [(None, (5,)), (1, (1, 5)), (2, (2, 5))])
def test_coefficients_of_least_squares_have_scikit_learns_shapes(targets, n_targets, shape):
    X, y, clients = targets
    y = y if n_targets is None else np.stack([y, -y][:n_targets], axis=1)
    model = FederatedRegressor(n_rounds=5, random_state=0).fit(X, y, clients=clients)
    assert model.coef_.shape == shape
    assert np.shape(model.intercept_) == shape[:-1]
    np.testing.assert_allclose(decision(model, X), model.predict(X), rtol=1e-4, atol=1e-5)


def test_a_step_of_least_squares_by_hand_is_in_the_coefficients():
    """From w = b = 0: w = 2 lr mean(x y), b = 2 lr mean(y)."""
    model = FederatedRegressor(
        LinearRegression(1), n_rounds=1, lr_schedule=0.125, selector=EVERYBODY, random_state=0
    )
    model.fit([[1.0], [3.0]], [2.0, 4.0], clients=["a", "a"])
    assert model.coef_.tolist() == [0.25 * (2 + 12) / 2]
    assert model.intercept_ == 0.25 * 3


@pytest.mark.parametrize(
    "module",
    [nn.Linear(5, 3), nn.Sequential(nn.Flatten(), nn.Linear(5, 3, bias=False))],
    ids=["linear", "sequential"],
)
def test_a_linear_module_of_ones_own_has_coefficients(blobs, module):
    X, y, clients = blobs
    model = FederatedClassifier(module, n_rounds=2, random_state=0).fit(X, y, clients=clients)
    assert model.coef_.shape == (3, 5) and model.intercept_.shape == (3,)
    with torch.no_grad():
        logits = model.net_.module_(torch.from_numpy(X))
    np.testing.assert_allclose(decision(model, X), logits, rtol=1e-4, atol=1e-5)


class Squared(nn.Linear):
    def forward(self, X):
        return super().forward(X) ** 2


NONLINEAR = {
    "overrides forward": Squared(5, 3),
    "two layers": nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
    "head": nn.Sequential(nn.Linear(5, 3), nn.Softmax(1)),
}


@pytest.mark.parametrize("module", NONLINEAR.values(), ids=NONLINEAR)
def test_a_net_that_is_not_linear_has_no_coefficients(blobs, module):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=1, random_state=0).fit(X, y, clients=clients)
    assert hasattr(model, "coef_")
    model.set_params(estimator=module).fit(X, y, clients=clients)
    assert not hasattr(model, "coef_") and not hasattr(model, "intercept_")


def test_coefficients_follow_the_model(blobs, tmp_path):
    """After partial_fit, a warm start, save and load, and in HTML."""
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=2, warm_start=True, random_state=0)
    first = model.fit(X, y, clients=clients).coef_
    second = model.set_params(n_rounds=3).fit(X, y, clients=clients).coef_
    third = model.partial_fit(X, y, clients=clients).coef_
    assert not np.array_equal(first, second) and not np.array_equal(second, third)
    np.testing.assert_array_equal(third, model.net_.module_.coefficients()[0].detach().double())
    model.save(tmp_path / "model")
    again = FederatedClassifier().load(tmp_path / "model")
    np.testing.assert_array_equal(again.coef_, third)
    np.testing.assert_array_equal(again.intercept_, model.intercept_)
    assert estimator_html_repr(model)


def test_a_callback_sees_the_coefficients_of_its_round(blobs):
    X, y, clients = blobs
    seen = []

    class Notes:
        def setup(self, estimator, context):
            pass

        teardown = on_fit_task_begin = setup

        def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
            seen.append(fitted_estimator.coef_)

    model = FederatedClassifier(n_rounds=2, random_state=0).set_callbacks(Notes())
    model.fit(X, y, clients=clients)
    assert not np.array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[-1], model.coef_)


def test_log_probabilities_are_finite_where_probabilities_round_to_0(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=5, random_state=0).fit(X, y, clients=clients)
    logs = model.predict_log_proba(X)
    np.testing.assert_allclose(logs, np.log(model.predict_proba(X)), rtol=1e-4, atol=1e-6)
    far = 1e4 * X[:20]
    assert (model.predict_proba(far) == 0).any()
    logs = model.predict_log_proba(far)
    assert np.isfinite(logs).all()
    logits = decision(model, far)
    by_hand = logits - logits.max(1, keepdims=True)
    np.testing.assert_allclose(logs, by_hand, rtol=1e-3, atol=1.0)


class Certain(nn.Module):
    """Returns probabilities, of which one is 0."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, X):
        p = torch.softmax(self.w, 0).expand(len(X), 2)
        return torch.cat([p, torch.zeros(len(X), 1)], 1)


def test_log_of_a_probability_of_0_is_minus_infinity_without_a_warning(blobs):
    X, y, clients = blobs
    net = NeuralNetClassifier(Certain)
    model = FederatedClassifier(net, n_rounds=1, random_state=0).fit(X, y, clients=clients)
    logs = model.predict_log_proba(X)
    assert np.isneginf(logs[:, 2]).all()
    np.testing.assert_allclose(np.exp(logs), model.predict_proba(X), rtol=1e-5)

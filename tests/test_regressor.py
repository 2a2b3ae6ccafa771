"""FederatedRegressor as users of scikit-learn meet it."""

import re

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_regression
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import (
    check_methods_sample_order_invariance,
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)
from skorch import NeuralNetRegressor
from torch import nn

from skfed import FedAlignSelector, FederatedRegressor, PowerOfChoice, RandomSelector

EVERYBODY = RandomSelector(1.0, probability="uniform", replace=False)


# Their tolerance of 1e-7 is float32's rounding, that of a row depending on its place among others,
# and the means by which the default net standardises count rows. They run in float64 below.
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "float32, and statistics that count rows",
    "check_methods_sample_order_invariance": "float32",
}


@pytest.mark.filterwarnings("ignore:clients was not given")
@parametrize_with_checks(
    [FederatedRegressor(n_rounds=15)], expected_failed_checks=lambda _: EXPECTED_FAILURES
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore:clients was not given")
@pytest.mark.parametrize(
    ("check", "n_features"),
    [
        (check_sample_weight_equivalence_on_dense_data, 30),
        (check_methods_sample_order_invariance, 3),
    ],
)
def test_scikit_learns_checks_to_rounding_hold_in_float64(check, n_features):
    net = nn.Linear(n_features, 1).double()
    check("FederatedRegressor", FederatedRegressor(net, n_rounds=30))


@pytest.fixture(scope="module")
def data():
    X, y = make_regression(240, 5, n_targets=2, noise=1.0, random_state=0)
    return X, y / y.std(axis=0), np.arange(240) % 6


def test_one_full_batch_step_is_least_squares_gradient_by_hand():
    X, y = np.array([[1.0], [2.0]]), np.array([2.0, 4.0])
    net = NeuralNetRegressor(nn.Linear, module__in_features=1, module__out_features=1, lr=0.1)
    linear = FederatedRegressor(n_rounds=1, random_state=0).fit(X, y, clients=[0, 0])
    # Standardised by mean 1.5 and deviation 0.5, x is -1 and 1. With a 1 for the intercept both
    # rows have the squared norm 2, and the largest eigenvalue is 1, so 2 rows are safe at a rate
    # of 2 / (2 (2 + 1)) = 1/3, below 1 / (1 + 1).
    assert linear.history_["lr"].tolist() == pytest.approx([1 / 3])
    # From zero: w = lr * 2 * mean(x y) = 1/3 * 2 * 1; b is the mean of y, where it has begun.
    weight, bias = (p.detach().numpy().ravel() for p in linear.net_.module_.parameters())
    np.testing.assert_allclose([weight[0], bias[0]], [2 / 3, 3.0], rtol=1e-6)
    # In units of X: 2/3 / 0.5, and 3 - 4/3 * 1.5.
    np.testing.assert_allclose([linear.coef_[0], linear.intercept_], [4 / 3, 1.0], atol=1e-6)
    # Up: three moments of a column, two of the targets, and two norms; down: the scale.
    assert linear.history_[["scalars_up", "scalars_down"]].values.tolist() == [[3 + 2 + 2, 2]]
    assert FederatedRegressor(net, n_rounds=3, random_state=0).fit(X, y, clients=[0, 1]).n_rounds_


class Squeezed(nn.Module):
    """Predicts shape (n_samples,)."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, X):
        return self.layers(X).squeeze(1)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("net", [None, Squeezed, NeuralNetRegressor(Squeezed, lr=0.1)])
def test_targets_take_the_shape_of_the_outputs(data, net, engine):
    X, y, clients = data
    model = FederatedRegressor(
        net, selector=EVERYBODY, n_rounds=20, local_epochs=3, engine=engine, random_state=0
    ).fit(X, y[:, 0], clients=clients, X_val=X, y_val=y[:, 0])
    assert model.predict(X).shape == (240,)
    assert model.history_["val_score"].iloc[-1] == pytest.approx(model.score(X, y[:, 0]), abs=1e-5)
    # A wrong broadcast of targets to (n, n) would learn the mean alone.
    assert model.score(X, y[:, 0]) > 0.7
    assert model.score(X, y[:, 0], clients=clients) == model.score(X, y[:, 0])


def test_both_engines_agree(data):
    X, y, clients = data
    net = NeuralNetRegressor(Squeezed, lr=0.1, batch_size=16)
    fitted = [
        FederatedRegressor(net, n_rounds=5, engine=engine, random_state=0).fit(
            X, y[:, 0], clients=clients
        )
        for engine in ("stacked", "loop")
    ]
    for a, b in zip(*(m.net_.module_.parameters() for m in fitted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert list(fitted[0].history_["cohort"]) == list(fitted[1].history_["cohort"])


def test_several_targets(data):
    X, y, clients = data
    model = FederatedRegressor(n_rounds=40, selector=EVERYBODY, local_epochs=4, random_state=0)
    model.fit(X, y, clients=clients)
    assert model.predict(X).shape == (240, 2)
    assert model.score(X, y) > 0.9
    with pytest.raises(ValueError, match=r"y_val has targets of shape \(\)"):
        model.fit(X, y, clients=clients, X_val=X, y_val=y[:, 0])
    with pytest.raises(ValueError, match=r"returns shape \(1, 1\).*2 targets"):
        FederatedRegressor(nn.Linear(5, 1)).fit(X, y, clients=clients)


class Block(nn.Module):
    """Predicts an array of a shape for each row."""

    def __init__(self, *shape):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, int(np.prod(shape))), nn.Unflatten(1, shape))

    def forward(self, X):
        return self.layers(X)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (3,)])
def test_a_module_of_another_shape_than_y_is_refused(data, shape):
    X, y, clients = data
    returned = re.escape(str((1, *shape)))
    match = rf"returns shape {returned} for.*2 targets in y: give.*shape \(n_samples, 2\)"
    with pytest.raises(ValueError, match=match):
        FederatedRegressor(Block(*shape)).fit(X, y, clients=clients)


def test_a_module_with_y_s_numbers_in_more_dimensions_trains(data):
    X, y, clients = data
    model = FederatedRegressor(Block(2, 1), n_rounds=2).fit(X, y, clients=clients)
    assert model.predict(X).shape == y.shape


def test_targets_of_three_dimensions_are_refused(data):
    X, y, clients = data
    model = FederatedRegressor()
    with pytest.raises(ValueError, match=r"^y has shape \(240, 2, 1\).*\(n_samples, n_targets\)"):
        model.fit(X, y[:, :, None], clients=clients)
    with pytest.raises(ValueError, match=r"^y_val has shape \(240, 2, 1\)"):
        model.fit(X, y, clients=clients, X_val=X, y_val=y[:, :, None])


@pytest.mark.filterwarnings("ignore:FedAlignSelector matched no free client")
@pytest.mark.filterwarnings("ignore:the fit ends with")  # of "all"
def test_selectors_of_both_papers(data):
    X, y, clients = data
    free = clients >= 2
    target = np.where(free, -y[:, 0], y[:, 0])  # free clients learn the opposite
    scores = {}
    for name, selector in {
        "aligned": FedAlignSelector(eps=0.2),
        "all": FedAlignSelector(eps=np.inf),
        "power of choice": PowerOfChoice(d=1.0, clients_per_round=2, ignore_priority=True),
    }.items():
        model = FederatedRegressor(
            selector=selector, priority=[0, 1], n_rounds=50, local_epochs=2, random_state=0
        ).fit(X, target, clients=clients)
        scores[name] = 1 - model.history_["objective"].iloc[-1] / target[~free].var()
    assert scores["aligned"] > 0.8 > 0 > scores["all"]


def test_it_has_no_accuracy_to_match(data):
    X, y, clients = data
    for engine in ("stacked", "loop"):
        model = FederatedRegressor(
            selector=FedAlignSelector(match="accuracy"), priority=[0], engine=engine
        )
        with pytest.raises(ValueError, match=r"regressor does not have.*match='loss'"):
            model.fit(X, y, clients=clients)


def test_rounds_one_by_one_are_the_rounds_of_fit(data):
    X, y, clients = data
    model = FederatedRegressor(n_rounds=3, random_state=0)
    whole = clone(model).fit(X, y, clients=clients)
    for _ in range(3):
        model.partial_fit(X, y, clients=clients)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))


def test_grid_search(data):
    X, y, clients = data
    search = GridSearchCV(
        FederatedRegressor(selector=PowerOfChoice(d=2), random_state=0, n_rounds=5),
        {"selector__d": [2, 4]},
        cv=2,
    ).fit(X, y[:, 0], clients=clients)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_a_classifier_net_is_refused(data):
    X, y, clients = data
    from skorch import NeuralNetClassifier

    with pytest.raises(TypeError, match="skorch NeuralNetRegressor"):
        FederatedRegressor(NeuralNetClassifier(Squeezed)).fit(X, y, clients=clients)

import numpy as np
import pytest
from skorch import NeuralNetClassifier

from skfed import FederatedClassifier, RandomSelector
from skfed.datasets import make_quadratic
from skfed.modules import MeanOutput, Quadratic

EVERYBODY = RandomSelector(1.0, probability="uniform", replace=False)


def objective(data, w):
    h, e = data.X[:, :1], data.X[:, 1:]
    return (h / 2 * ((w - e / h) ** 2).sum(axis=1, keepdims=True)).mean()


def fit(data, **params):
    net = NeuralNetClassifier(
        Quadratic, module__n_dims=5, criterion=MeanOutput, lr=0.01, batch_size=1
    )
    params = {"selector": EVERYBODY, "random_state": 0, **params}
    return FederatedClassifier(net, **params).fit(data.X, data.y, clients=data.clients)


def test_the_draws():
    data = make_quadratic(2000, random_state=0)
    first = np.unique(data.clients, return_index=True)[1]
    h, e, sizes = data.X[first, 0], data.X[first, 1:], np.bincount(data.clients)
    assert 1 <= h.min() < h.max() <= 20
    assert h.mean() == pytest.approx(10.5, abs=0.5)
    optima = data.local_optima
    assert (optima.mean(), optima.std()) == (pytest.approx(2, abs=0.03), pytest.approx(1, abs=0.03))
    assert sizes.mean() == pytest.approx(750, rel=0.02)  # the power law's mean is a / (a + 1)
    np.testing.assert_allclose(data.local_optima, e / h[:, None])


def test_the_optimum_is_lower_than_any_other_point():
    data = make_quadratic(random_state=0)
    assert objective(data, data.optimum) == pytest.approx(data.minimum)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert objective(data, data.optimum + 0.01 * rng.normal(size=5)) > data.minimum


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_round_by_hand(engine):
    """Two steps of client k from 0: w = (1 - (1 - lr h_k)^2) e_k / h_k; the mean is by size."""
    data = make_quadratic(3, random_state=0)
    model = fit(data, n_rounds=1, local_steps=2, engine=engine)
    first = np.unique(data.clients, return_index=True)[1]
    h, sizes = data.X[first, :1], np.bincount(data.clients)
    local = (1 - (1 - 0.01 * h) ** 2) * data.local_optima
    expected = (sizes / sizes.sum()) @ local
    np.testing.assert_allclose(model.net_.module_.w.detach().numpy(), expected, rtol=1e-12)


def test_one_local_step_of_everybody_ends_at_the_optimum():
    data = make_quadratic(random_state=0)
    model = fit(data, n_rounds=400, local_steps=1, engine="stacked")
    np.testing.assert_allclose(model.net_.module_.w.detach().numpy(), data.optimum, atol=1e-8)
    assert model.history_["train_loss"].iloc[-1] == pytest.approx(data.minimum)

"""Layers that standardise X by moments of the priority clients, and the default nets."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.datasets import load_fashion_mnist, load_wisdm
from skfed.modules import MLP, SoftmaxRegression, Standardize
from skfed.privacy import GaussianMechanism
from skfed.server import _moments

EVERYBODY = RandomSelector(1.0, "uniform", False)


@pytest.fixture
def table():
    """Six hospitals of other sizes and other means; columns of other units, one constant."""
    rng = np.random.default_rng(0)
    hospitals = np.repeat(list("abcdef"), [20, 5, 31, 1, 12, 40])
    X = rng.normal(size=(109, 4)) * [1e-3, 1.0, 30.0, 0.0] + [1.0, 0.0, 1e4, 7.0]
    X += (hospitals == "c")[:, None] * [0.002, 1.0, -20.0, 0.0]
    y = (X[:, 1] + (X[:, 2] - 1e4) / 30 > 0).astype(int)
    return X.astype(np.float32), y, hospitals


def standardize_layer(model):
    return model.net_.module_.standardize


@pytest.mark.parametrize("priority", [None, ["b", "c"], {"a": 1.0, "c": 0.5}])
def test_columns_are_standardised_by_pooled_moments_of_the_priority_clients(table, priority):
    X, y, clients = table
    model = FederatedClassifier(selector=FedAlignSelector(), priority=priority, n_rounds=1)
    model.fit(X, y, clients=clients)
    shares = {**dict.fromkeys(priority or "abcdef", 1.0)}
    shares |= priority if isinstance(priority, dict) else {}
    weights = np.array([shares.get(client, 0.0) for client in clients])
    scaler = StandardScaler().fit(X.astype(float), sample_weight=weights)
    layer = standardize_layer(model)
    np.testing.assert_allclose(layer.mean, scaler.mean_, rtol=1e-6)
    np.testing.assert_allclose(layer.scale, scaler.scale_, rtol=1e-5)
    assert layer.scale[3] == 1  # of a constant column


def test_moments_by_hand_and_what_they_cost():
    X, y = np.array([[0.0, 5.0], [2.0, 5.0], [10.0, 5.0]]), [0, 1, 1]
    model = FederatedClassifier(n_rounds=2, random_state=0).fit(X, y, clients=["a", "a", "b"])
    layer = standardize_layer(model)
    # Over all rows 0, 2, 10: the mean is 4, the variance (16 + 4 + 36) / 3.
    np.testing.assert_allclose(layer.mean, [4.0, 5.0])
    np.testing.assert_allclose(layer.scale, [np.sqrt(56 / 3), 1.0], rtol=1e-6)
    # Three numbers a column and one a class from each of two clients, before round 0.
    assert model.history_["scalars_up"].tolist() == [2 * (3 * 2 + 2), 0]
    assert model.history_["bytes_up"][0] - model.history_["bytes_up"][1] == 16 * 8


def test_moments_are_taken_in_chunks(table, monkeypatch):
    """So that the rows of one client need not fit into memory."""
    X, rows = table[0], np.arange(3, 100)
    sizes, flat = [], _moments._flat
    monkeypatch.setattr(_moments, "_CHUNK", 8 * 4 * 10)
    monkeypatch.setattr(_moments, "_flat", lambda X: sizes.append(len(X)) or flat(X))
    mean, variance, largest = _moments.client_moments(X, rows)
    assert max(sizes) == 10
    own = X[rows].astype(float)
    np.testing.assert_allclose(mean, own.mean(axis=0))
    np.testing.assert_allclose(variance, own.var(axis=0), atol=1e-12)
    np.testing.assert_allclose(largest, abs(own - own.mean(axis=0)).max(axis=0), atol=1e-12)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_eps_0_is_still_fedavg_on_the_priority_clients_bit_for_bit(table, engine):
    X, y, clients = table
    priority = np.isin(clients, ["a", "c", "f"])
    settings = {"n_rounds": 5, "engine": engine, "random_state": 0}
    align = FederatedClassifier(
        selector=FedAlignSelector(eps=0), priority=["a", "c", "f"], **settings
    ).fit(X, y, clients=clients)
    alone = FederatedClassifier(selector=EVERYBODY, **settings)
    alone.fit(X[priority], y[priority], clients=clients[priority])
    for name, tensor in align.net_.module_.state_dict().items():
        assert torch.equal(tensor, alone.net_.module_.state_dict()[name]), name


def test_the_stacked_engine_takes_the_default_nets(table):
    X, y, clients = table
    fitted = {}
    for engine in ("auto", "loop"):
        model = FederatedClassifier(n_rounds=4, engine=engine, random_state=0)
        fitted[engine] = model.fit(X, y, clients=clients)
    assert fitted["auto"].engine_ == "stacked: linear layers"
    np.testing.assert_allclose(
        fitted["auto"].predict_proba(X), fitted["loop"].predict_proba(X), atol=1e-5
    )


def test_coefficients_are_in_units_of_X(table):
    X, y, clients = table
    model = FederatedClassifier(n_rounds=20, random_state=0).fit(X, y, clients=clients)
    logits = X.astype(float) @ model.coef_.T + model.intercept_
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        odds / odds.sum(axis=1, keepdims=True), model.predict_proba(X), atol=1e-3
    )


def test_a_net_of_ones_own_may_begin_with_standardize(table):
    X, y, clients = table
    net = NeuralNetClassifier(
        nn.Sequential(Standardize(4), MLP(4, (8,), 2)), criterion=nn.CrossEntropyLoss, lr=0.1
    )
    model = FederatedClassifier(net, n_rounds=3, random_state=0).fit(X, y, clients=clients)
    np.testing.assert_allclose(model.net_.module_[0].mean, X.astype(float).mean(axis=0), rtol=1e-5)
    assert not net.module[0].mean.any()  # what was passed in is not changed
    for n_hidden in (3, 4):  # 4 as X, but not X
        match = rf"Standardize\(n_features={n_hidden}\) behind another layer.*make it the first"
        with pytest.raises(ValueError, match=match):
            FederatedClassifier(Ending(n_hidden)).fit(X, y, clients=clients)


class Ending(nn.Module):
    """Standardises what it computes, and not X."""

    def __init__(self, n_hidden):
        super().__init__()
        self.first, self.out = nn.Linear(4, n_hidden), nn.Linear(n_hidden, 2)
        self.standardize = Standardize(n_hidden)

    def forward(self, X):
        return self.out(self.standardize(self.first(X)))


def test_images_are_standardised_value_by_value():
    X = np.random.default_rng(0).normal(5, 2, size=(30, 2, 3, 3)).astype(np.float32)
    model = FederatedClassifier(n_rounds=1).fit(X, np.arange(30) % 2, clients=np.arange(30) % 4)
    mean = X.reshape(30, -1).astype(float).mean(axis=0)
    np.testing.assert_allclose(standardize_layer(model).mean, mean, rtol=1e-6)


def test_with_update_privacy_nobody_sends_moments(table):
    X, y, clients = table
    model = FederatedClassifier(update_privacy=GaussianMechanism(), n_rounds=2, random_state=0)
    with pytest.warns(UserWarning, match="update_privacy is set.*scale its columns"):
        model.fit(X, y, clients=clients)
    assert not standardize_layer(model).mean.any()
    assert model.history_["scalars_up"].tolist() == [0, 0]
    model.fit(X / np.float32(1e4), y, clients=clients)  # without a warning


def test_a_later_fit_sets_the_layer_anew_and_partial_fit_adds_its_rows(table, tmp_path):
    X, y, clients = table
    X = X.astype(float)
    model = FederatedClassifier(n_rounds=2, warm_start=True, random_state=0)
    model.fit(X, y, clients=clients)
    layer = standardize_layer(model)
    later = X + np.array([0, 5, 0, 0])
    model.partial_fit(later, y, clients=clients)
    both = np.concatenate([X, later])
    np.testing.assert_allclose(layer.mean, both.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(layer.scale[:3], both.std(axis=0)[:3], rtol=1e-5)
    model.set_params(n_rounds=5).fit(2 * X, y, clients=clients)
    np.testing.assert_allclose(layer.mean, 2 * X.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(layer.scale[:3], 2 * X.std(axis=0)[:3], rtol=1e-5)
    model.set_params(n_rounds=6).fit(2 * X, y, clients=clients)  # clients have nothing new to send
    asked = 6 * (3 * 4 + len(model.classes_))
    assert model.history_["scalars_up"].tolist() == [asked, 0, asked, asked, 0, 0]
    model.save(tmp_path / "model")
    loaded = FederatedClassifier(n_rounds=8, warm_start=True).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    model.set_params(n_rounds=8)
    for one in (loaded, model):
        one.fit(2 * X, y, clients=clients)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("kind", [FederatedClassifier, FederatedRegressor])
def test_a_layer_that_is_set_anew_changes_no_prediction(table, kind):
    """At a rate of 0 a later fit changes nothing else."""
    X, y, clients = table
    X = X.astype(float) - [1, 0, 1e4, 0]
    model = kind(n_rounds=20, warm_start=True, random_state=0).fit(X, y, clients=clients)
    coef, intercept, predicted = model.coef_, model.intercept_, model.predict(X)
    model.set_params(n_rounds=21, lr_schedule=0.0).fit(3 * X, y, clients=clients)
    np.testing.assert_allclose(model.coef_, coef, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.intercept_, intercept, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.predict(X), predicted, rtol=1e-5, atol=1e-4)


def test_a_regressor_keeps_its_predictions_where_columns_move_far(table):
    X, y, clients = table
    X = X.astype(float)  # 3 X is 667 deviations away in one column
    model = FederatedRegressor(n_rounds=20, warm_start=True, random_state=0)
    model.fit(X, y, clients=clients)
    predicted = model.predict(X)
    model.set_params(n_rounds=21, lr_schedule=0.0).fit(3 * X, y, clients=clients)
    np.testing.assert_allclose(model.predict(X), predicted, atol=1e-3)


def test_a_classifier_does_not_begin_sure_of_what_is_wrong(table):
    """The logits of rows that are far from all before are without meaning."""
    X, y, clients = table
    model = FederatedClassifier(n_rounds=20, warm_start=True, random_state=0)
    model.fit(X, y, clients=clients).set_params(n_rounds=21).fit(3 * X, y, clients=clients)
    assert model.history_["train_loss"].iloc[-1] < 1


def test_a_column_in_other_units_does_not_diverge():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5)) * [1, 1, 1, 1, 30]
    y = X @ [1.0, 2.0, 0.5, -1.0, 0.1] * 1e5
    model = FederatedRegressor(random_state=0).fit(X, y, clients=np.arange(200) % 4)
    assert model.score(X, y) > 0.99


def heart_like(request):
    """Four sites of 100 to 300 rows; age, sex, pain, pressure, cholesterol, rate, angina, ST."""
    rng = np.random.default_rng(0)
    sites = np.repeat(np.arange(4), [303, 294, 123, 200])
    n = len(sites)
    X = np.column_stack(
        [
            rng.normal(54 + 2 * sites, 9),
            rng.random(n) < 0.7,
            rng.integers(1, 5, n),
            rng.normal(132, 18, n),
            rng.normal(245 - 20 * sites, 55),
            rng.normal(145 - 7 * sites, 24),
            rng.random(n) < 0.35,
            rng.exponential(1, n),
        ]
    )
    beta = [0.04, 1.2, 0.7, 0.01, 0.003, -0.02, 0.9, 0.6]
    log_odds = (X - X.mean(axis=0)) @ beta + 0.3 * sites - 0.4
    return X, (rng.random(n) < 1 / (1 + np.exp(-log_odds))).astype(int), sites


def wisdm(request):
    data = load_wisdm(data_home=request.getfixturevalue("data_home"))
    return data.X.fillna(data.X.median()).to_numpy(), data.y, data.clients


def cancer(request):
    X, y = load_breast_cancer(return_X_y=True)
    return X, y, np.arange(len(y)) % 4


TABLES = {"heart-like": heart_like, "cancer": cancer, "WISDM": wisdm}


@pytest.mark.parametrize("name", TABLES)
def test_defaults_on_raw_tables_come_within_5_points_of_pooled_regression(name, request):
    """In each of three splits."""
    X, y, clients = TABLES[name](request)
    scores = []
    for seed in range(3):
        train, test = train_test_split(np.arange(len(y)), stratify=clients, random_state=seed)
        model = FederatedClassifier(random_state=seed)
        model.fit(X[train], y[train], clients=clients[train])
        pooled = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
        pooled.fit(X[train], y[train])
        scores.append([m.score(X[test], y[test]) for m in (model, pooled)])
    mean, of_pooled = np.mean(scores, axis=0)
    print(f"{name}: {mean:.3f}, pooled {of_pooled:.3f}")
    assert all(score > of_pooled - 0.05 for score, of_pooled in scores)


@pytest.mark.slow
def test_defaults_on_1000_clients_of_60_images(data_home):
    """Pooled logistic regression reaches about 0.85 on the test images."""
    train, test = (load_fashion_mnist(subset=s, data_home=data_home) for s in ("train", "test"))
    clients = np.random.default_rng(0).permutation(60_000) % 1000
    model = FederatedClassifier(random_state=0).fit(train.X, train.y, clients=clients)
    score = model.score(test.X, test.y)
    print(f"1,000 clients of 60 images: {score:.3f}")
    assert score > 0.8


def test_the_default_regressor_on_a_raw_table():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    model = FederatedRegressor(random_state=0).fit(X, y, clients=np.arange(len(y)) % 4)
    assert model.score(X, y) > 0.5  # least squares has 0.518


def test_plain_softmax_regression_takes_X_as_it_is(table):
    X, y, clients = table
    model = FederatedClassifier(SoftmaxRegression(4, 2), n_rounds=1).fit(X, y, clients=clients)
    assert not [name for name, _ in model.net_.module_.named_buffers()]
    assert model.history_["scalars_up"].tolist() == [0]

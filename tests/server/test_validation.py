"""Validation data in other units than the training data, and data that only appear to be."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets
from sklearn.cluster import KMeans
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn

import skfed
from skfed import FederatedClassifier
from skfed.datasets import make_synthetic
from skfed.preprocessing import pooled
from skfed.server._validation import far_columns

TABLES = ["breast_cancer", "diabetes", "digits", "iris", "wine"]


def load(name):
    return getattr(datasets, f"load_{name}")(return_X_y=True)


def far(X, X_val):
    return far_columns(np.asarray(X, float), np.asarray(X_val, float)).tolist()


@pytest.fixture
def scaled():
    """Breast cancer, the first rows held out: scaled X, y, ids, raw and scaled X_val, y_val."""
    X, y = datasets.load_breast_cancer(return_X_y=True, as_frame=True)
    scaler = StandardScaler().set_output(transform="pandas").fit(X[100:])
    ids = np.arange(469) % 5
    return scaler.transform(X[100:]), y[100:], ids, X[:100], scaler.transform(X[:100]), y[:100]


def test_a_warning_names_validation_columns_that_are_not_scaled(scaled):
    X, y, ids, raw, same, y_val = scaled
    model = FederatedClassifier(n_rounds=1)
    message = "X_val.*'mean radius'.*mean 14.*deviation 3.*make_pipeline.*transform_input"
    with pytest.warns(UserWarning, match=message):
        model.fit(X, y, clients=ids, X_val=raw, y_val=y_val)
    with pytest.warns(UserWarning, match=r"X_val\[:, 0\] \(mean 14"):
        model.fit(X.to_numpy(), y, clients=ids, X_val=raw.to_numpy(), y_val=y_val)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y, clients=ids, X_val=same, y_val=y_val)


def test_validation_rows_that_a_pipeline_leaves_unscaled_give_a_warning(scaled):
    _, y, ids, raw, _, y_val = scaled
    X = datasets.load_breast_cancer(as_frame=True).data[100:]
    steps = pooled(StandardScaler()), FederatedClassifier(n_rounds=1)
    given = {"clients": ids, "X_val": raw, "y_val": y_val}
    plain = {f"federatedclassifier__{name}": value for name, value in given.items()}
    plain["federatedclassifier__X_val"] = raw.to_numpy()  # as the scaled X is
    with pytest.warns(UserWarning, match="X_val has columns that are far"):
        make_pipeline(*steps).fit(X, y, **plain)
    skfed.make_pipeline(*steps).fit(X, y, **given)  # a warning would be an error


def test_half_a_range_away_in_enough_columns_and_a_larger_spread_in_one():
    X = np.tile(np.linspace(0, 1, 40)[:, None], (1, 30))  # a spread of 0.3
    val = np.tile(np.linspace(0.1, 0.9, 11)[:, None], (1, 30))
    wide = np.linspace(-0.4, 3.6, 11)  # a median of 1.6
    val[:, :2], val[:, 2] = 1.6, wide
    assert far(X, val) == [0, 1, 2]
    assert far(X, val[:, ::-1]) == [27, 28, 29]
    assert far(-X, -val) == [0, 1, 2]
    assert far(X[:, :2], val[:, 1:3]) == [0, 1]
    assert far(X[:, 1:3], val[:, 2:4]) == []  # one is not enough, but where it is all there are
    assert far(X[:, 2:3], val[:, 2:3]) == [0]
    val[:, 2] = 1.6  # clients may be elsewhere, and all alike
    assert far(X, val) == []
    val[:, :3] = np.column_stack([np.full(11, 1.4), np.full(11, 1.6), wide])  # one of them too near
    assert far(X, val) == []


def test_a_few_rows_have_to_be_five_ranges_away():
    X = np.tile(np.linspace(0, 1, 40)[:, None], (1, 3))
    assert far(X, [[1.6, 6.1, 0.5]]) == far(X, [[1.6, 6.1, 0.5]] * 9) == [0, 1]
    assert far(X, [[1.6, 5.9, 0.5]]) == []


def test_columns_of_rare_values_and_few_rows_are_not_compared():
    X = np.zeros((40, 2))
    X[:5] = 1
    assert far(X, np.full((20, 2), 9)) == []
    assert far(np.random.default_rng(0).normal(size=(29, 2)), np.full((20, 2), 99)) == []


def test_columns_without_spread_near_the_mean():
    rng = np.random.default_rng(0)
    X, X_val = rng.normal(size=(100, 3)), rng.normal(size=(10, 3))
    assert far(X, X_val * 0.05) == [0, 1, 2]
    assert far(X, X_val * 0.2) == far(X, X_val[:9] * 0.05) == far(X, np.zeros((10, 3))) == []


@pytest.mark.parametrize(
    ("name", "scaler"),
    [
        *((name, StandardScaler()) for name in TABLES),
        *((name, MinMaxScaler()) for name in TABLES if name != "diabetes"),  # from -0.1 to 0.2
    ],
)
def test_unscaled_tables_are_far(name, scaler):
    X, _ = load(name)
    val = np.random.default_rng(0).permutation(len(X))[: len(X) // 4]
    assert len(far(scaler.fit_transform(X), X[val])) >= 2


def ways(X, y):
    """Yield masks of validation rows: at random, by label, by cluster, by a column's order."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 10, len(X) // 10, len(X) // 4, len(X) // 2):
        yield np.isin(np.arange(len(X)), rng.permutation(len(X))[:n])
    clusters = KMeans(5, n_init=1, random_state=0).fit_predict(StandardScaler().fit_transform(X))
    for ids in (pd.factorize(y)[0] % 20, clusters):
        yield from (ids == k for k in np.unique(ids))
    for column in range(min(4, X.shape[1])):
        rank = X[:, column].argsort(kind="stable").argsort(kind="stable")
        yield rank < len(X) // 4
        yield rank >= len(X) - len(X) // 4


@pytest.mark.parametrize("name", [*TABLES, "synthetic"])
def test_ordinary_splits_are_not_far(name):
    if name == "synthetic":
        bunch = make_synthetic(1.0, 1.0, random_state=0)
        X, y = bunch.X[:4000], bunch.clients[:4000]  # each client has a distribution of its own
    else:
        X, y = load(name)
    assert not [held.sum() for held in ways(X, y) if far(X[~held], X[held])]


def test_images_are_compared_and_named_pixel_by_pixel():
    images, y = datasets.load_digits().images, datasets.load_digits().target
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model = FederatedClassifier(net, n_rounds=1)
    with pytest.warns(UserWarning, match=r"X_val\[:, 0, 2\] \(mean .* and \d+ more"):
        model.fit(images / 16, y, clients=y, X_val=images[:50], y_val=y[:50])


def test_the_integers_of_an_embedding_are_not_compared():
    words = np.random.default_rng(0).integers(0, 5, size=(60, 4))
    net = nn.Sequential(nn.Embedding(100, 2), nn.Flatten(), nn.Linear(8, 2))
    y = np.arange(60) % 2
    model = FederatedClassifier(net, n_rounds=1)
    model.fit(words, y, clients=y, X_val=words + 90, y_val=y)  # a warning would be an error

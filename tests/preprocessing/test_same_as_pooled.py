"""Federated transformers have the attributes of scikit-learn's on the pooled rows."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)

from skfed import preprocessing

N = 400
SIZES = [0.6, 0.28, 0.11, 0.01]


@pytest.fixture(scope="module")
def ids():
    """Four clients of very different sizes, their rows mixed; the last has a few rows."""
    return np.random.default_rng(1).choice(["a", "b", "c", "d"], N, p=SIZES)


@pytest.fixture(scope="module")
def numeric():
    """Columns of different scales, one of them far from 0 and one of few values."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5)) * [1, 100, 0.01, 3, 5] + [50, -900, 3, 1e7, 1]
    X[:, 4] = np.round(X[:, 4])
    return X


@pytest.fixture(scope="module")
def ragged(numeric):
    """The same with missing values."""
    missing = np.random.default_rng(2).random(numeric.shape) < 0.15
    return np.where(missing, np.nan, numeric)


@pytest.fixture(scope="module")
def categories():
    """A column of each type that encoders take, with missing values of each sort."""
    rng = np.random.default_rng(3)
    objects = np.array([None, np.nan, "q", "r", "s"], dtype=object)
    return pd.DataFrame(
        {
            "text": rng.choice(["x", "yy", "z"], N, p=[0.7, 0.28, 0.02]),
            "integer": rng.integers(0, 6, N),
            "float": rng.choice([1.0, 2.5, np.nan], N),
            "object": pd.Series(rng.choice(objects, N), dtype=object),
            "category": pd.Categorical(rng.choice(["u", "v"], N)),
        }
    )


def federated(transformer, **others):
    """Return the federated transformer of the same parameters."""
    own = getattr(preprocessing, f"Federated{type(transformer).__name__}")
    names = own().get_params()
    return own(**{k: v for k, v in transformer.get_params().items() if k in names}, **others)


def assert_same(own, pooled, rtol=0.0):
    """Check all fitted attributes: numbers to ``rtol``, the rest exactly."""
    for name, expected in vars(pooled).items():
        if name.endswith("_") and not name.startswith("_"):
            found = getattr(own, name)
            if name == "indicator_" and expected is not None:
                found, expected = found.features_, expected.features_
            if isinstance(expected, list):
                assert len(found) == len(expected), name
                for one, other in zip(found, expected, strict=True):
                    assert list(map(repr, one.tolist())) == list(map(repr, other.tolist())), name
                    assert one.dtype == other.dtype, name
            elif rtol and getattr(expected, "dtype", np.dtype(object)).kind == "f":
                np.testing.assert_allclose(found, expected, rtol=rtol, err_msg=name)
                assert found.dtype == expected.dtype, name
            elif getattr(expected, "dtype", np.dtype(float)).kind == "O":
                assert list(map(repr, found)) == list(map(repr, expected)), name
            else:
                np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("params", [{}, {"with_mean": False}, {"with_std": False}])
def test_moments_to_rounding(numeric, ragged, ids, params):
    for X in (numeric, ragged, ragged.astype(np.float32)):
        pooled = StandardScaler(**params).fit(X)
        assert_same(federated(pooled).fit(X, clients=ids), pooled, rtol=1e-12)


@pytest.mark.parametrize(
    "pooled",
    [
        MinMaxScaler((-1, 2)),
        RobustScaler(),
        RobustScaler(quantile_range=(10.0, 77.5), unit_variance=True),
        RobustScaler(quantile_range=(0, 100), with_centering=False),
        RobustScaler(with_scaling=False),
        *(
            SimpleImputer(strategy=strategy, add_indicator=True)
            for strategy in ("median", "most_frequent", "constant")
        ),
    ],
    ids=str,
)
def test_order_statistics_and_values_exactly(numeric, ragged, ids, pooled):
    for X in (numeric, ragged, ragged.astype(np.float32), np.round(ragged)):
        pooled = clone(pooled).fit(X)
        own = federated(pooled).fit(X, clients=ids)
        assert_same(own, pooled)
        np.testing.assert_array_equal(own.transform(X), pooled.transform(X))


def test_quantiles_of_negative_zero_huge_and_tiny_numbers_exactly():
    X = np.array([-1e308, -5e-324, -0.0, 0.0, 5e-324, 1e-300, 2.0, 1e308])[:, None]
    ids = [0, 1, 1, 0, 2, 2, 0, 1]
    for shares in [(0, 100), (14.3, 85.7), (40, 60)]:
        pooled = RobustScaler(quantile_range=shares).fit(X / 4)
        assert_same(federated(pooled).fit(X / 4, clients=ids), pooled)


def test_means_that_fill_in_to_rounding(ragged, ids):
    pooled = SimpleImputer(add_indicator=True).fit(ragged)
    assert_same(federated(pooled).fit(ragged, clients=ids), pooled, rtol=1e-12)


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent", "constant"])
@pytest.mark.parametrize("missing", [-1, 0])
@pytest.mark.parametrize("keep", [False, True])
def test_missing_values_of_other_marks(ids, strategy, missing, keep):
    X = np.random.default_rng(0).integers(-1, 2, size=(N, 3))
    X[:, 2] = missing
    pooled = SimpleImputer(
        missing_values=missing, strategy=strategy, keep_empty_features=keep, add_indicator=True
    ).fit(X)
    own = federated(pooled).fit(X, clients=ids)
    assert_same(own, pooled, rtol=1e-12)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipping features without any observed values")
        np.testing.assert_allclose(own.transform(X), pooled.transform(X), rtol=1e-12)


@pytest.mark.parametrize("params", [{}, {"strategy": "constant", "fill_value": "?"}])
def test_filling_text(categories, ids, params):
    X = categories[["text", "object"]].astype(object)
    X.iloc[3, 0] = np.nan
    for missing in (np.nan, None):
        params = {"strategy": "most_frequent", "missing_values": missing} | params
        rows = X if missing is None else X.where(X.notna(), np.nan)
        pooled = SimpleImputer(**params).fit(rows)
        own = federated(pooled).fit(rows, clients=ids)
        assert list(own.statistics_) == list(pooled.statistics_)
        assert list(own.get_feature_names_out()) == ["text", "object"]
        np.testing.assert_array_equal(own.transform(rows), pooled.transform(rows))


@pytest.mark.parametrize("encoder", [OneHotEncoder(), OrdinalEncoder()], ids=str)
@pytest.mark.parametrize(
    "params", [{}, {"min_frequency": 70}, {"min_frequency": 0.2}, {"max_categories": 2}], ids=str
)
def test_categories_exactly(categories, ids, encoder, params):
    pooled = clone(encoder).set_params(**params).fit(categories)
    own = federated(pooled).fit(categories, clients=ids)
    assert_same(own, pooled)
    found, expected = own.transform(categories), pooled.transform(categories)
    if not isinstance(found, np.ndarray):
        found, expected = found.toarray(), expected.toarray()
    np.testing.assert_array_equal(found, expected)
    assert list(own.get_feature_names_out()) == list(pooled.get_feature_names_out())
    if params:
        assert list(map(repr, own.infrequent_categories_)) == list(
            map(repr, pooled.infrequent_categories_)
        )


def test_categories_of_arrays_lists_and_given_ones_exactly(categories, ids):
    text = categories["text"].to_numpy(dtype=object)[:, None]
    for X in (text.astype(str), text, text.tolist(), categories[["integer"]].to_numpy()):
        pooled = OneHotEncoder(drop="first").fit(X)
        assert_same(federated(pooled).fit(X, clients=ids), pooled)
    pooled = OneHotEncoder(categories=[["z", "yy", "x", "more"]], drop=["z"]).fit(text)
    assert_same(federated(pooled).fit(text, clients=ids), pooled)


@pytest.mark.parametrize("encoder", [OneHotEncoder(), OrdinalEncoder()], ids=str)
@pytest.mark.parametrize("counted", [{}, {"min_frequency": 0.3}, {"max_categories": 2}], ids=str)
@pytest.mark.parametrize(
    ("values", "given"),
    [
        (np.array(["x", "yy", "z", "z"]), ["z", "yy", "x", "longer"]),
        (np.array(["x", "yy", "z", "z"], dtype=object), ["z", "x"]),
        (np.array([1, 2, 2, 5]), [0, 2, 5]),
        (np.array([1.5, np.nan, 2.0, 2.0]), [1.5, 2.0, np.nan]),
        (np.array([True, False, True, True]), [True]),
        (np.array(["q", None, np.nan, "q"], dtype=object), ["q", None]),
    ],
    ids=lambda value: str(value),
)
def test_given_categories_exactly(encoder, counted, values, given):
    X = np.resize(values, 12)[:, None]
    unknown = {"handle_unknown": "ignore"}
    if isinstance(encoder, OrdinalEncoder):
        unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    pooled = clone(encoder).set_params(categories=[given], **unknown, **counted).fit(X)
    own = federated(pooled).fit(X, clients=[0, 1, 2] * 4)
    assert_same(own, pooled)
    assert repr(own.infrequent_categories_ if counted else 0) == repr(
        pooled.infrequent_categories_ if counted else 0
    )


@pytest.mark.parametrize("n_components", [None, 2, 0.9, "mle"])
@pytest.mark.parametrize("whiten", [False, True])
def test_principal_components_to_rounding_and_sign(numeric, ids, n_components, whiten):
    X = StandardScaler().fit_transform(numeric) @ np.random.default_rng(5).normal(size=(5, 5)) + 7
    pooled = PCA(n_components, whiten=whiten, svd_solver="full").fit(X)
    own = federated(pooled).fit(X, clients=ids)
    assert own.n_components_ == pooled.n_components_
    signs = np.sign((own.components_ * pooled.components_).sum(axis=1))
    np.testing.assert_allclose(own.components_ * signs[:, None], pooled.components_, atol=1e-8)
    for name in ("mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
        np.testing.assert_allclose(getattr(own, name), getattr(pooled, name), rtol=1e-10)
    np.testing.assert_allclose(own.noise_variance_, pooled.noise_variance_, rtol=1e-8)
    np.testing.assert_allclose(own.transform(X) * signs, pooled.transform(X), atol=1e-8)
    np.testing.assert_allclose(own.inverse_transform(own.transform(X)).mean(0), X.mean(0))


ALL = [
    preprocessing.FederatedStandardScaler(),
    preprocessing.FederatedMinMaxScaler(),
    preprocessing.FederatedRobustScaler(),
    *(
        preprocessing.FederatedSimpleImputer(strategy=strategy)
        for strategy in ("mean", "median", "most_frequent", "constant")
    ),
    preprocessing.FederatedOneHotEncoder(min_frequency=3),
    preprocessing.FederatedOrdinalEncoder(),
    preprocessing.FederatedPCA(2),
]


@pytest.mark.parametrize("transformer", ALL, ids=str)
def test_the_same_bits_however_clients_rows_are_interleaved(numeric, ids, transformer):
    mixed = np.argsort(ids, kind="stable")
    fits = [
        clone(transformer).fit(numeric[order], clients=ids[order]) for order in (slice(None), mixed)
    ]
    assert_same(*fits)
    pd.testing.assert_frame_equal(fits[0].exchange_, fits[1].exchange_)


@pytest.mark.parametrize("transformer", ALL, ids=str)
def test_only_the_statistics_of_priority_clients_count(numeric, ids, transformer):
    paying = np.isin(ids, ["a", "c"])
    own = clone(transformer).set_params(priority=["c", "a"]).fit(numeric, clients=ids)
    assert_same(own, clone(transformer).fit(numeric[paying], clients=ids[paying]))
    assert set(own.exchange_["client"]) == {"a", "c"}
    weighted = clone(own).set_params(priority={"a": 0.2, "c": 1.0, "b": 0.0})
    assert_same(weighted.fit(numeric, clients=ids), own)


@pytest.mark.parametrize("transformer", ALL, ids=str)
def test_bad_clients_and_priority_are_named(numeric, ids, transformer):
    with pytest.raises(ValueError, match="clients has 3 entries"):
        clone(transformer).fit(numeric, clients=[1, 2, 3])
    with pytest.raises(ValueError, match="priority names 1 client.*'zz'"):
        clone(transformer).set_params(priority=["zz"]).fit(numeric, clients=ids)
    with pytest.raises(ValueError, match="priority names clients, but clients was not given"):
        clone(transformer).set_params(priority=["a"]).fit(numeric)
    with pytest.warns(UserWarning, match="clients was not given"):
        clone(transformer).fit(numeric)
    assert not hasattr(transformer, "partial_fit")


def test_polars_tables_keep_their_names(categories, ragged, ids):
    polars = pytest.importorskip("polars")
    texts = polars.DataFrame({"text": categories["text"].tolist()})
    encoder = preprocessing.FederatedOneHotEncoder().fit(texts, clients=ids)
    assert list(encoder.get_feature_names_out()) == ["text_x", "text_yy", "text_z"]
    numbers = polars.DataFrame(ragged, schema=list("abcde"))
    for transformer in ALL[:7]:
        own = clone(transformer).fit(numbers, clients=ids)
        assert list(own.get_feature_names_out()) == list("abcde")
        assert_same(own, clone(transformer).fit(ragged, clients=ids))


def test_a_fitted_pca_scores_and_gives_its_covariance(numeric, ids):
    X = StandardScaler().fit_transform(numeric)
    own, pooled = preprocessing.FederatedPCA(2).fit(X, clients=ids), PCA(2).fit(X)
    assert own.score(X) == pytest.approx(pooled.score(X))
    np.testing.assert_allclose(own.get_covariance(), pooled.get_covariance(), atol=1e-10)


def test_fewer_rows_than_columns():
    X, ids = np.random.default_rng(0).normal(size=(6, 9)), ["a", "b"] * 3
    pooled = PCA(3).fit(X)
    own = preprocessing.FederatedPCA(3).fit(X, clients=ids)
    np.testing.assert_allclose(abs(own.components_), abs(pooled.components_), atol=1e-8)
    assert own.noise_variance_ == pytest.approx(pooled.noise_variance_)
    assert preprocessing.FederatedPCA().fit(X, clients=ids).components_.shape == (6, 9)
    with pytest.raises(ValueError, match="n_samples >= n_features"):
        preprocessing.FederatedPCA("mle").fit(X, clients=ids)


def test_half_precision_has_medians():
    X = np.array([[1.0], [np.nan], [4.0], [2.5], [-3.0]], dtype=np.float16)
    imputer = preprocessing.FederatedSimpleImputer(strategy="median").fit(X, clients=list("abbab"))
    expected = SimpleImputer(strategy="median").fit(X).statistics_
    np.testing.assert_array_equal(imputer.statistics_, expected)


def test_half_precision_has_extremes_of_its_own_dtype():
    X = np.array([[1.0, 0.1], [np.nan, 7.0], [4.0, 0.3], [-3.3, 0.2]], dtype=np.float16)
    own = preprocessing.FederatedMinMaxScaler().fit(X, clients=list("abba"))
    pooled = MinMaxScaler().fit(X)
    for name in ("data_min_", "data_max_", "data_range_", "scale_", "min_"):
        found, expected = getattr(own, name), getattr(pooled, name)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("scales", [True, False])
def test_rows_that_were_seen_are_counted_in_the_same_dtype(scales, missing):
    X = np.arange(8.0).reshape(4, 2)
    X[:1, :1] = np.nan if missing else 0.0
    params = {"with_mean": False, "with_std": scales}
    own = preprocessing.FederatedStandardScaler(**params).fit(X, clients=list("abba"))
    pooled = StandardScaler(**params).fit(X)
    np.testing.assert_array_equal(own.n_samples_seen_, pooled.n_samples_seen_)
    assert np.asarray(own.n_samples_seen_).dtype == np.asarray(pooled.n_samples_seen_).dtype


def test_missing_values_of_pandas():
    X = pd.DataFrame({"city": ["x", pd.NA, "x", "y"]}, dtype=object)
    params = {"missing_values": pd.NA, "strategy": "most_frequent"}
    imputer = preprocessing.FederatedSimpleImputer(**params).fit(X, clients=[0, 1, 1, 0])
    assert imputer.statistics_.tolist() == SimpleImputer(**params).fit(X).statistics_.tolist()


def test_pooled_cross_fits_as_the_transformer_does():
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 3, (30, 1)), rng.normal(size=30)
    encoder = TargetEncoder(cv=KFold(3))
    encoded = preprocessing.pooled(encoder).fit_transform(X, y)
    np.testing.assert_array_equal(encoded, encoder.fit_transform(X, y))
    assert not np.array_equal(encoded, encoder.fit(X, y).transform(X))

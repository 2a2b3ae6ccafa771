"""Columns and clients at the edge: as scikit-learn on the pooled rows, errors with their place."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from skfed.preprocessing import (
    FederatedMinMaxScaler,
    FederatedOneHotEncoder,
    FederatedOrdinalEncoder,
    FederatedPCA,
    FederatedRobustScaler,
    FederatedSimpleImputer,
    FederatedStandardScaler,
)

SCALERS = [FederatedStandardScaler(), FederatedMinMaxScaler(), FederatedRobustScaler()]
IMPUTERS = [
    FederatedSimpleImputer(strategy=s) for s in ("mean", "median", "most_frequent", "constant")
]
ENCODERS = [FederatedOneHotEncoder(sparse_output=False), FederatedOrdinalEncoder()]
IDS = ["north"] * 4 + ["south"] * 3 + ["west"]  # the last has one row


def pooled(transformer):
    """Return scikit-learn's transformer of the same parameters."""
    name = type(transformer).__name__.removeprefix("Federated")
    plain = next(base for base in type(transformer).__mro__ if base.__name__ == name)
    names = plain().get_params()
    return plain(**{k: v for k, v in transformer.get_params().items() if k in names})


def assert_transforms_as_pooled(transformer, X, ids=IDS):
    own, plain = clone(transformer), pooled(transformer)
    with warnings.catch_warnings():
        # scikit-learn warns of columns without values, and of divisions by their number.
        warnings.filterwarnings("ignore", "All-NaN|Skipping features|invalid value|Degrees")
        plain.fit(X)
        expected = plain.transform(X)
        found = own.fit(X, clients=ids).transform(X)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert list(own.get_feature_names_out()) == list(plain.get_feature_names_out())


@pytest.fixture
def table():
    """Eight rows of three named columns."""
    values = np.random.default_rng(0).normal(size=(8, 3)).round(2)
    return pd.DataFrame(values, columns=["age", "weight", "height"])


@pytest.mark.parametrize("transformer", SCALERS + IMPUTERS + ENCODERS, ids=str)
@pytest.mark.parametrize("lacking", [IDS[:1], IDS], ids=["one client", "all clients"])
def test_a_column_that_is_all_missing(table, transformer, lacking):
    table.loc[np.isin(IDS, lacking), "weight"] = np.nan
    assert_transforms_as_pooled(transformer, table)


@pytest.mark.parametrize("transformer", IMPUTERS, ids=str)
def test_a_column_that_is_all_missing_and_kept(table, transformer):
    table["weight"] = np.nan
    kept = clone(transformer).set_params(keep_empty_features=True, add_indicator=True)
    assert_transforms_as_pooled(kept, table)


@pytest.mark.parametrize("transformer", [*SCALERS, *IMPUTERS, *ENCODERS, FederatedPCA(2)], ids=str)
def test_constant_columns_and_clients_of_one_row(table, transformer):
    table["weight"] = 3.3
    table.loc[np.isin(IDS, "north"), "height"] = -0.1
    own = clone(transformer).fit(table, clients=range(8))
    if not isinstance(transformer, FederatedPCA):
        assert_transforms_as_pooled(transformer, table)
        assert_transforms_as_pooled(transformer, table, ids=range(8))
    together = clone(transformer).fit(table, clients=IDS).transform(table)
    np.testing.assert_allclose(own.transform(table), together, atol=1e-12)


def test_a_constant_of_any_size_is_scaled_by_1():
    X = np.full((8, 3), [0.1, 1e8 / 3, -1e-9 / 7])
    for transformer in SCALERS:
        assert clone(transformer).fit(X, clients=IDS).scale_.tolist() == [1, 1, 1]


@pytest.mark.parametrize("transformer", ENCODERS, ids=str)
def test_a_category_that_only_one_client_has(transformer):
    X = pd.DataFrame({"city": ["a", "b", "a", "b", "a", "b", "b", "only here"]})
    assert_transforms_as_pooled(transformer, X)


NUMERIC = [*SCALERS, *IMPUTERS[:2], FederatedPCA()]


@pytest.mark.parametrize("transformer", NUMERIC, ids=str)
@pytest.mark.parametrize("as_list", [False, True])
def test_text_in_a_numeric_column_at_one_site(table, transformer, as_list):
    table = table.astype(object)
    table.iloc[5, 1] = "n/a"
    X, name = (table.to_numpy().tolist(), "1") if as_list else (table, "'weight'")
    with pytest.raises(ValueError, match="could not convert string to float: 'n/a'"):
        pooled(transformer).fit(X)
    message = f"could not convert string to float: 'n/a'.* column {name} of client 'south'"
    with pytest.raises(ValueError, match=f"(?s){message}"):
        clone(transformer).fit(X, clients=IDS)
    with pytest.raises(ValueError, match=f"(?s)could not convert.* column {name}\\."):
        clone(transformer).fit(X)


def test_the_place_is_a_sentence_of_its_own(table):
    table = table.astype(object)
    table.iloc[5, 1] = "n/a"
    with pytest.raises(ValueError) as raised:
        FederatedStandardScaler().fit(table, clients=IDS)
    place = "It is in column 'weight' of client 'south'."
    assert str(raised.value) == f"could not convert string to float: 'n/a'. {place}"
    table.iloc[5, 1] = np.nan
    with pytest.raises(ValueError) as raised:
        FederatedPCA().fit(table.astype(float), clients=IDS)
    assert str(raised.value).splitlines()[-1] == place


@pytest.mark.parametrize("transformer", [*SCALERS, *IMPUTERS, *ENCODERS, FederatedPCA()], ids=str)
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinities(table, transformer, bad):
    table.iloc[7, 2] = bad
    with pytest.raises(ValueError, match="infinity"):
        pooled(transformer).fit(table)
    with pytest.raises(ValueError, match="(?s)infinity.* column 'height' of client 'west'"):
        clone(transformer).fit(table, clients=IDS)


def test_missing_values_where_none_are_taken(table):
    table.iloc[4, 0] = np.nan
    with pytest.raises(ValueError, match="(?s)contains NaN.* column 'age' of client 'south'"):
        FederatedPCA().fit(table, clients=IDS)
    with pytest.raises(ValueError, match="(?s)contains NaN.* column 'age' of client 'south'"):
        FederatedSimpleImputer(missing_values=-1).fit(table, clients=IDS)


@pytest.mark.parametrize("transformer", ENCODERS, ids=str)
def test_numbers_at_one_site_and_text_at_another(transformer):
    X = pd.DataFrame({"size": [1] * 8, "city": ["a", "b"] * 4}, dtype=object)
    X.iloc[6, 1] = 7
    message = "must be uniformly strings or numbers"
    with pytest.raises(TypeError, match=message):
        pooled(transformer).fit(X)
    with pytest.raises(TypeError, match=f"{message}.* column 'city' of client 'south'"):
        clone(transformer).fit(X, clients=IDS)


@pytest.mark.parametrize("transformer", ENCODERS, ids=str)
def test_a_category_that_was_not_announced(transformer):
    X = pd.DataFrame({"size": [1] * 8, "city": ["a"] * 7 + ["c"]}, dtype=object)
    own = clone(transformer).set_params(categories=[[1], ["a", "b"]])
    message = "Found unknown categories .*'c'.* in column 1 during fit"
    with pytest.raises(ValueError, match=message):
        pooled(own).fit(X)
    with pytest.raises(ValueError, match=f"{message}.* column 'city' of client 'west'"):
        own.fit(X, clients=IDS)


@pytest.mark.parametrize("transformer", [*ENCODERS, IMPUTERS[2]], ids=str)
def test_an_entry_that_is_no_value(transformer):
    X = pd.DataFrame({"city": pd.Series([["a", "b"]] + ["a"] * 7, dtype=object)})
    with pytest.raises(TypeError, match="client 'north': column 'city': .*unhashable"):
        clone(transformer).fit(X, clients=IDS)


def test_parameters_out_of_range(table):
    for bad in ({"min_count": 0}, {"min_holders": True}, {"clip": 3}, {"feature_range": (1, 0)}):
        with pytest.raises(ValueError, match=next(iter(bad)).replace("_", "[_ ]")) as raised:
            FederatedMinMaxScaler(**bad).fit(table, clients=IDS)
        assert "north" not in str(raised.value)
    with pytest.raises(ValueError, match="fill_value='x'.*cannot be cast") as raised:
        FederatedSimpleImputer(strategy="constant", fill_value="x").fit(table, clients=IDS)
    assert "north" not in str(raised.value)
    with pytest.raises(ValueError, match="strategy"):
        FederatedSimpleImputer(strategy=np.max).fit(table, clients=IDS)
    with pytest.raises(ValueError, match="Invalid quantile range"):
        FederatedRobustScaler(quantile_range=(75, 25)).fit(table, clients=IDS)
    for n_components in (4, "all", 0.0):
        with pytest.raises(ValueError, match="n_components"):
            FederatedPCA(n_components).fit(table.iloc[:, :2], clients=IDS)
    with pytest.raises(ValueError, match="n_samples=1 over all clients"):
        FederatedPCA(priority=["west"]).fit(table, clients=IDS)


TABULAR = [t for t in SCALERS if not isinstance(t, FederatedStandardScaler)]


@pytest.mark.parametrize("transformer", [*TABULAR, *IMPUTERS, *ENCODERS, FederatedPCA(2)], ids=str)
def test_windows_name_the_way_to_scale_their_columns(transformer):
    windows = np.random.default_rng(0).normal(size=(8, 5, 3))
    with pytest.raises(ValueError, match=r"shape \(8, 5, 3\)") as raised:
        clone(transformer).fit(windows, clients=IDS)
    assert "FederatedStandardScaler scales each column" in str(raised.value)

"""Fitted Pipelines in files: what is read predicts and transforms like what was written."""

import json

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from safetensors.torch import save
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

import skfed
from skfed import FederatedClassifier
from skfed.preprocessing import (
    FederatedMinMaxScaler,
    FederatedOneHotEncoder,
    FederatedOrdinalEncoder,
    FederatedPCA,
    FederatedRobustScaler,
    FederatedSimpleImputer,
    FederatedStandardScaler,
    pooled,
)
from skfed.utils import _files

MODEL = FederatedClassifier(n_rounds=2, random_state=0)


@pytest.fixture
def table():
    """A table of numbers and text with missing values, the targets and the clients."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.normal(size=40), "pay": rng.normal(size=40) * 1000})
    X["job"] = rng.choice(["cook", "judge", "nurse"], 40)
    X["city"] = rng.choice(["Graz", "Lyon"], 40).astype(object)
    X.loc[::7, "age"] = np.nan
    X.loc[::9, "city"] = np.nan
    return X, rng.integers(0, 2, 40), np.arange(40) % 4


def of_columns(**params):
    numbers = skfed.make_pipeline(
        FederatedSimpleImputer(strategy="median", add_indicator=True), FederatedRobustScaler()
    )
    text = skfed.make_pipeline(
        FederatedSimpleImputer(strategy="most_frequent"),
        FederatedOneHotEncoder(sparse_output=False, drop="if_binary", max_categories=2),
    )
    parts = [
        ("numbers", numbers, make_column_selector(dtype_include="number")),
        ("text", text, ["city"]),
        ("nothing", FederatedPCA(), []),
    ]
    return ColumnTransformer(parts, **params)


PIPELINES = {
    "scaler": skfed.make_pipeline(
        ColumnTransformer([("numbers", FederatedSimpleImputer(), ["age", "pay"])]),
        *(FederatedStandardScaler(), FederatedMinMaxScaler(), FederatedPCA(1), MODEL),
    ),
    "columns": skfed.make_pipeline(of_columns(), MODEL),
    "passed through": skfed.make_pipeline(of_columns(remainder=FederatedOrdinalEncoder()), MODEL),
    "union": skfed.make_pipeline(
        ColumnTransformer([("pay", "passthrough", ["pay"])]),
        FeatureUnion(
            [
                *(("a", FunctionTransformer(np.abs)), ("b", FederatedMinMaxScaler())),
                *(("c", "drop"), ("d", "passthrough")),
            ]
        ),
        *(FrozenEstimator(StandardScaler().fit(np.eye(3))), Normalizer(), MODEL),
    ),
    "scikit-learn's": Pipeline(
        [
            ("pay", ColumnTransformer([("pay", "passthrough", ["pay"])])),
            ("scale", pooled(StandardScaler())),
            ("model", LogisticRegression()),
        ]
    ),
}


def content(path):
    """Return a checksum of what a file has; its bytes are in no order."""
    tensors = {}
    text = json.dumps(_files.to_json(_files.read(path), tensors))
    return _files.checksum(text, tensors)


@pytest.mark.filterwarnings("ignore:X has feature names, but StandardScaler was fitted without")
@pytest.mark.parametrize("output", ["default", "pandas"])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_comes_back(name, output, table, tmp_path):
    X, y, clients = table
    like = clone(PIPELINES[name]).set_output(transform=output)
    with sklearn.config_context(enable_metadata_routing=True):
        params = {} if name == "scikit-learn's" else {"clients": clients}
        fitted = clone(like).fit(X, y, **params)
    skfed.save(fitted, tmp_path / "it")
    loaded = skfed.load(like, tmp_path / "it")
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    one, other = loaded[:-1].transform(X), fitted[:-1].transform(X)
    assert type(one) is type(other)
    np.testing.assert_array_equal(one, other)
    assert loaded.feature_names_in_.tolist() == fitted.feature_names_in_.tolist()
    if name != "union":  # the Pipeline has a FunctionTransformer without names
        assert list(loaded[:-1].get_feature_names_out()) == list(
            fitted[:-1].get_feature_names_out()
        )
    assert not hasattr(like[0], "n_features_in_")
    skfed.save(loaded, tmp_path / "again")
    assert content(tmp_path / "again") == content(tmp_path / "it")


def test_exchanges_and_history_come_back(table, tmp_path):
    X, y, clients = table
    like = skfed.make_pipeline(FederatedStandardScaler(), MODEL)
    fitted = clone(like).fit(X[["pay"]], y, clients=clients)
    skfed.save(fitted, tmp_path / "it")
    loaded = skfed.load(like, tmp_path / "it")
    pd.testing.assert_frame_equal(loaded[0].exchange_, fitted[0].exchange_)
    pd.testing.assert_frame_equal(loaded[1].history_, fitted[1].history_)
    assert loaded.set_params(federatedclassifier__warm_start=True)[1].n_rounds_ == 2


def test_statistics_of_each_client_come_back(table, tmp_path):
    X, y, clients = table
    like = skfed.make_pipeline(FederatedStandardScaler(scope="client"), MODEL)
    fitted = clone(like).fit(X[["pay"]], y, clients=clients)
    skfed.save(fitted, tmp_path / "it")
    loaded = skfed.load(like, tmp_path / "it")
    for name, of_clients in fitted[0].by_client_.items():
        np.testing.assert_array_equal(loaded[0].by_client_[name], of_clients)
    one, other = (model.predict_proba(X[["pay"]], clients=clients) for model in (loaded, fitted))
    np.testing.assert_array_equal(one, other)


def test_an_estimator_and_a_transformer_alone(table, tmp_path):
    X, y, clients = table
    model = clone(MODEL).fit(X[["pay"]], y, clients=clients)
    skfed.save(model, tmp_path / "model")
    one, other = skfed.load(MODEL, tmp_path / "model"), clone(MODEL).load(tmp_path / "model")
    assert one.score(X[["pay"]], y) == other.score(X[["pay"]], y)
    scaler = FederatedRobustScaler().fit(X[["pay"]], clients=clients)
    skfed.save(scaler, tmp_path / "scaler")
    assert skfed.load(FederatedRobustScaler(), tmp_path / "scaler").center_ == scaler.center_


def test_what_is_not_fitted_or_not_plain_is_refused(table, tmp_path):
    X, y, _ = table
    with pytest.raises(NotFittedError):
        skfed.save(skfed.make_pipeline(FederatedStandardScaler(), MODEL), tmp_path / "it")
    part = skfed.make_pipeline(FederatedStandardScaler(), clone(MODEL))
    part[-1].fit(X[["pay"]], y, clients=np.zeros(40))
    with pytest.raises(NotFittedError, match="FederatedStandardScaler instance is not fitted"):
        skfed.save(part, tmp_path / "it")
    forest = SelectFromModel(RandomForestClassifier(2)).fit(X[["pay"]], y)
    with pytest.raises(TypeError, match="SelectFromModel has estimator_, which cannot .* joblib"):
        skfed.save(forest, tmp_path / "it")
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (FederatedStandardScaler(), "it holds a FederatedPipeline: load it with one"),
        (skfed.make_pipeline(FederatedPCA(), MODEL), r"it has \['federatedstandardscaler', "),
        (
            skfed.pipeline.FederatedPipeline(
                [("federatedstandardscaler", FederatedPCA()), ("federatedclassifier", MODEL)]
            ),
            "it has 'FederatedStandardScaler' where 'FederatedPCA' was expected",
        ),
        (
            skfed.make_pipeline(FederatedStandardScaler()),
            "where \\['federatedstandardscaler'\\] was",
        ),
    ],
)
def test_another_pipeline_is_refused(other, message, table, tmp_path):
    X, y, clients = table
    fitted = skfed.make_pipeline(FederatedStandardScaler(), MODEL)
    skfed.save(fitted.fit(X[["pay"]], y, clients=clients), tmp_path / "it")
    with pytest.raises(ValueError, match=message) as raised:
        skfed.load(other, tmp_path / "it")
    assert str(tmp_path / "it") in str(raised.value)


def encoded(**params):
    return ColumnTransformer([("city", FederatedOneHotEncoder(**params), ["city"])])


def filled(**params):
    return skfed.make_pipeline(FederatedSimpleImputer(**params), FederatedPCA(1))


@pytest.mark.parametrize(
    ("saved", "other", "message"),
    [
        (
            skfed.make_pipeline(FederatedPCA(1, whiten=True)),
            skfed.make_pipeline(FederatedPCA(1)),
            "step 'federatedpca', a FederatedPCA, was saved with whiten=True, .* whiten=False",
        ),
        (
            encoded(drop="first", handle_unknown="ignore"),
            encoded(handle_unknown="ignore"),
            "step 'city', a FederatedOneHotEncoder, was saved with drop='first', .* drop=None",
        ),
        (
            encoded(handle_unknown="ignore"),
            encoded(),
            "was saved with handle_unknown='ignore', .* handle_unknown='error'",
        ),
        (encoded(dtype=np.float32), encoded(), "with dtype='float32', .* dtype='float64'"),
        (filled(add_indicator=True), filled(), "was saved with add_indicator=True"),
        (filled(), filled(missing_values=-1), "was saved with missing_values=nan, .*=-1"),
        (
            FederatedMinMaxScaler((0, 1)),
            FederatedMinMaxScaler((0, 2)),
            r"the FederatedMinMaxScaler was saved with feature_range=\[0, 1\], .*=\[0, 2\]",
        ),
        (
            skfed.make_pipeline(pooled(StandardScaler())),
            skfed.make_pipeline(pooled(StandardScaler(with_mean=False))),
            "step 'pooledtransformer__transformer', a StandardScaler, was saved with with_mean",
        ),
    ],
)
def test_another_parameter_is_named_with_its_step(saved, other, message, table, tmp_path):
    X, _, clients = table
    X = X if isinstance(saved, ColumnTransformer) else X[["age", "pay"]].fillna(0.0)
    params = {} if "pooled" in str(saved) else {"clients": clients}
    with sklearn.config_context(enable_metadata_routing=True):
        skfed.save(saved.fit(X, **params), tmp_path / "it")
    with pytest.raises(ValueError, match=message):
        skfed.load(other, tmp_path / "it")
    skfed.load(saved, tmp_path / "it")


def test_parameters_of_fit_alone_may_differ(table, tmp_path):
    X, _, clients = table
    saved = FederatedMinMaxScaler(min_count=2, priority=[0, 1]).fit(X[["pay"]], clients=clients)
    skfed.save(saved, tmp_path / "it")
    loaded = skfed.load(FederatedMinMaxScaler(feature_range=[0.0, 1.0]), tmp_path / "it")
    assert loaded.data_min_ == saved.data_min_
    assert loaded.min_count == 1


CRAFTED = [
    {"parameters": None},
    {"parameters": {}, "fitted": {"type": "FederatedMinMaxScaler", "fitted": {}}},
    {"parameters": {"clip": np.zeros(2)}},
    {"fitted": 7},
    {"fitted": {"type": "FederatedMinMaxScaler"}},
    {"kind": 7},
]


@pytest.mark.parametrize("content", CRAFTED, ids=str)
def test_a_crafted_file_is_not_valid(content, table, tmp_path):
    X, _, clients = table
    path = tmp_path / "it"
    skfed.save(FederatedMinMaxScaler().fit(X[["pay"]], clients=clients), path)
    _files.write(path, _files.read(path) | content)
    with pytest.raises(ValueError, match=f"^{path}"):
        skfed.load(FederatedMinMaxScaler(), path)


def test_json_that_is_not_of_its_tensors_is_not_valid(tmp_path):
    path, tensors = tmp_path / "it", {"0": torch.zeros(3)}
    for value in ({"complex": "0"}, {"tensor": "1"}, {"timestamp": ["9999999-01-01", "s", None]}):
        text = json.dumps([_files.VERSION, value])
        metadata = {"skfed": text, "sha256": _files.checksum(text, tensors)}
        path.write_bytes(save(tensors, metadata))
        with pytest.raises(ValueError, match="damaged"):
            skfed.load(FederatedMinMaxScaler(), path)


@pytest.mark.parametrize(
    "attributes",
    [{"min_count": 1}, {"transform": 1}, {"_metadata_request": 1}, {"__class__": 1}, 7, None],
    ids=str,
)
def test_a_file_sets_nothing_but_fitted_attributes(attributes, tmp_path):
    state = {"type": "FederatedMinMaxScaler", "fitted": attributes}
    content = {"kind": "FederatedMinMaxScaler", "fitted": state, "parameters": {}}
    _files.write(tmp_path / "it", content)
    with pytest.raises(ValueError, match="has no fitted attribute|has no valid"):
        skfed.load(FederatedMinMaxScaler(min_count=5), tmp_path / "it")

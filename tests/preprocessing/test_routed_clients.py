"""Federated transformers get their clients in Pipelines, ColumnTransformers and searches."""

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from joblib import parallel_config
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.random_projection import GaussianRandomProjection
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, make_pipeline
from skfed.pipeline import FederatedPipeline
from skfed.preprocessing import (
    FederatedOneHotEncoder,
    FederatedPCA,
    FederatedRobustScaler,
    FederatedSimpleImputer,
    FederatedStandardScaler,
    pooled,
)


@pytest.fixture(params=[False, True], ids=["routing off", "routing on"])
def routing(request):
    with sklearn.config_context(enable_metadata_routing=request.param):
        yield request.param


@pytest.fixture(scope="module")
def frame():
    """A raw table of four clients: numbers, some missing, and text; X, y, ids."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    ages = np.where(rng.random(120) < 0.1, np.nan, 40 + 10 * y + rng.normal(size=120))
    jobs = np.where(rng.random(120) < 0.2, "nurse", np.where(y == 1, "clerk", "cook"))
    X = pd.DataFrame({"age": ages, "pay": 1e4 + 1e3 * y + rng.normal(size=120), "job": jobs})
    return X, y, np.arange(120) % 4


@pytest.fixture(scope="module")
def numbers(frame):
    X, y, ids = frame
    return X[["age", "pay"]].to_numpy(), y, ids


def model():
    selector = FedAlignSelector(warmup=0)
    return FederatedClassifier(selector=selector, priority=[0, 1], n_rounds=3, random_state=0)


def columns():
    numeric = make_pipeline(FederatedSimpleImputer(strategy="median"), FederatedStandardScaler())
    parts = [("numbers", numeric, ["age", "pay"]), ("text", FederatedOneHotEncoder(), ["job"])]
    return ColumnTransformer(parts, sparse_threshold=0)


def test_make_pipeline_gives_clients_to_each_step_in_both_modes(numbers, routing):
    X, y, ids = numbers
    pipe = make_pipeline(
        FederatedSimpleImputer(), FederatedStandardScaler(), FederatedPCA(), model()
    )
    pipe.fit(X, y, clients=ids)
    for step in pipe[:-1]:
        assert step.exchange_["client"].unique().tolist() == [0, 1, 2, 3]
    assert pipe.score(X, y) > 0.9
    by_hand = FederatedSimpleImputer().fit_transform(X, clients=ids)
    scaled = FederatedStandardScaler().fit_transform(by_hand, clients=ids)
    np.testing.assert_array_equal(pipe[1].transform(pipe[0].transform(X)), scaled)


def test_scikit_learns_pipeline_takes_prefixes_without_routing_and_none_with_it(numbers, routing):
    X, y, ids = numbers
    pipe = Pipeline([("fill", FederatedSimpleImputer()), ("model", model())])
    given = {"clients": ids} if routing else {"fill__clients": ids, "model__clients": ids}
    pipe.fit(X, y, **given)
    assert set(pipe["fill"].exchange_["client"]) == {0, 1, 2, 3}


def test_a_column_transformer_needs_routing(frame, routing):
    X, y, ids = frame
    pipe = make_pipeline(columns(), model())
    if not routing:
        with pytest.raises(ValueError, match="enable_metadata_routing=True"):
            pipe.fit(X, y, clients=ids)
        return
    pipe.fit(X, y, clients=ids)
    numeric, text = (pipe[0].named_transformers_[name] for name in ("numbers", "text"))
    assert set(numeric[0].exchange_["client"]) == set(text.exchange_["client"]) == {0, 1, 2, 3}
    plain = ColumnTransformer([("text", FederatedOneHotEncoder(), ["job"])])
    assert plain.fit(X, clients=ids).named_transformers_["text"].exchange_.shape[0] == 4
    union = FeatureUnion([("a", FederatedRobustScaler()), ("b", FederatedStandardScaler())])
    union.fit(X[["pay"]], clients=ids)
    assert {len(t.exchange_["client"].unique()) for _, t in union.transformer_list} == {4}


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_the_same_bits_with_any_n_jobs(frame, n_jobs):
    X, _, ids = frame
    with sklearn.config_context(enable_metadata_routing=True), parallel_config("threading"):
        fitted = columns().set_params(n_jobs=n_jobs).fit(X, clients=ids)
    scaler = fitted.named_transformers_["numbers"][1]
    filled = FederatedSimpleImputer(strategy="median").fit_transform(X[["age", "pay"]], clients=ids)
    alone = FederatedStandardScaler().fit(filled, clients=ids)
    np.testing.assert_array_equal(scaler.mean_, alone.mean_)
    np.testing.assert_array_equal(scaler.var_, alone.var_)


def test_a_search_over_a_transformers_parameter_and_eps(numbers, routing):
    X, y, ids = numbers
    pipe = make_pipeline(FederatedSimpleImputer(), FederatedStandardScaler(), model())
    grid = {
        "federatedsimpleimputer__strategy": ["mean", "median"],
        "federatedclassifier__selector__eps": [0.1, 0.5],
    }
    search = GridSearchCV(pipe, grid, cv=2).fit(X, y, clients=ids)
    assert len(search.cv_results_["params"]) == 4 and search.best_score_ > 0.9
    assert set(search.best_estimator_[0].exchange_["client"]) == {0, 1, 2, 3}


def test_pandas_output_and_names(frame):
    X, _, ids = frame
    scaler = FederatedStandardScaler().set_output(transform="pandas")
    out = scaler.fit_transform(X[["age", "pay"]], clients=ids)
    assert list(out) == ["age", "pay"] and out.index.equals(X.index)
    encoder = FederatedOneHotEncoder(sparse_output=False).set_output(transform="pandas")
    out = encoder.fit_transform(X[["job"]], clients=ids)
    assert list(out) == ["job_clerk", "job_cook", "job_nurse"]
    pca = FederatedPCA(1).set_output(transform="pandas").fit(X[["pay"]], clients=ids)
    assert list(pca.get_feature_names_out()) == ["federatedpca0"]


def test_callbacks_see_a_scaler_as_scikit_learns(numbers):
    X, _, ids = numbers
    calls = []

    class Noting:
        """Notes the methods that are called."""

        def setup(self, estimator, context):
            calls.append("setup")

        def on_fit_task_begin(self, *args, **kwargs):
            calls.append("begin")

        def on_fit_task_end(self, *args, **kwargs):
            calls.append("end")

        def teardown(self, estimator, context):
            calls.append("teardown")

    StandardScaler().set_callbacks(Noting()).fit(X)
    expected = calls.copy()
    calls.clear()
    FederatedStandardScaler().set_callbacks(Noting()).fit(X, clients=ids)
    assert calls == expected == ["setup", "begin", "end", "teardown"]


POOLING = "fitted on the rows of all clients"


@pytest.mark.parametrize(
    ("steps", "named", "ready"),
    [
        ([StandardScaler()], "StandardScaler", "Use FederatedStandardScaler of"),
        ([SimpleImputer(), MinMaxScaler()], "SimpleImputer, MinMaxScaler", "FederatedMinMaxScaler"),
        ([FeatureUnion([("a", StandardScaler())])], "StandardScaler", "FederatedStandardScaler"),
        ([SelectFromModel(LogisticRegression())], "SelectFromModel", "Use skfed.preprocessing"),
        ([PCA()], "PCA", "Use FederatedPCA of"),
        (
            [ColumnTransformer([("all", Normalizer(), [0])], remainder=MinMaxScaler())],
            "MinMaxScaler",
            "FederatedMinMaxScaler",
        ),
    ],
)
def test_steps_that_are_fitted_on_all_rows_are_named_in_a_warning(
    numbers, routing, steps, named, ready
):
    X, y, ids = numbers
    pipe = make_pipeline(FederatedSimpleImputer(), *steps, model())
    with pytest.warns(UserWarning, match=f"^{named}: {POOLING}.*{ready}.*pooled") as caught:
        pipe.fit(X, y, clients=ids)
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize(
    "steps",
    [
        [FunctionTransformer(np.log1p), Normalizer(), "passthrough"],
        [PolynomialFeatures(), GaussianRandomProjection(2)],
        [OneHotEncoder(categories=[[0], [1]], handle_unknown="ignore", sparse_output=False)],
        [
            OrdinalEncoder(
                categories=[[0], [1]], handle_unknown="use_encoded_value", unknown_value=-1
            )
        ],
        [SimpleImputer(strategy="constant", keep_empty_features=True)],
        [pooled(StandardScaler())],
        [ColumnTransformer([("a", pooled(StandardScaler()), [0]), ("b", "drop", [1])])],
        [FrozenEstimator(StandardScaler().fit([[1.0, 2.0], [3.0, 5.0]]))],
    ],
)
def test_steps_without_a_warning(numbers, routing, steps):
    X, y, ids = numbers
    make_pipeline(FederatedSimpleImputer(), *steps, model()).fit(X, y, clients=ids)


def test_fit_transform_and_a_last_transformer_warn(numbers, routing):
    X, y, ids = numbers
    pipe = make_pipeline(FederatedSimpleImputer(), StandardScaler())
    for fit in (pipe.fit, pipe.fit_transform):
        with pytest.warns(UserWarning, match=f"^StandardScaler: {POOLING}") as caught:
            fit(X, y, clients=ids)
        assert [w.filename for w in caught] == [__file__]


def test_a_pipeline_within_a_pipeline_warns_once(numbers, routing):
    X, y, ids = numbers
    inner = make_pipeline(FederatedSimpleImputer(), StandardScaler())
    with pytest.warns(UserWarning, match=POOLING) as caught:
        make_pipeline(inner, MinMaxScaler(), model()).fit(X, y, clients=ids)
    assert [str(w.message)[:28] for w in caught] == ["StandardScaler, MinMaxScaler"]


def test_steps_within_a_search_or_a_stack_warn(numbers, routing):
    X, y, ids = numbers
    inner = make_pipeline(StandardScaler(), model())
    search = GridSearchCV(inner, {"federatedclassifier__n_rounds": [1]}, cv=2)
    with pytest.warns(UserWarning, match=f"^StandardScaler: {POOLING}") as caught:
        make_pipeline(FederatedSimpleImputer(), search).fit(X, y, clients=ids)
    assert len(caught) == 1


def test_a_transformer_of_targets_warns(numbers):
    X, y, ids = numbers
    regressor = FederatedRegressor(n_rounds=1)
    with sklearn.config_context(enable_metadata_routing=True):
        of_target = TransformedTargetRegressor(regressor, transformer=StandardScaler())
        pipe = make_pipeline(FederatedSimpleImputer(), of_target)
        message = "TransformedTargetRegressor: its StandardScaler is fitted on the targets of all"
        with pytest.warns(UserWarning, match=message):
            pipe.fit(X, y, clients=ids)
        of_target.set_params(transformer=pooled(StandardScaler()))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pipe.fit(X, y, clients=ids)
            of_target.set_params(transformer=None, func=np.log1p, inverse_func=np.expm1)
            pipe.fit(X, y, clients=ids)


def test_without_clients_nothing_is_pooled(numbers):
    X, y, _ = numbers
    with pytest.warns(UserWarning, match="clients was not given") as caught:
        last = FederatedClassifier(n_rounds=1)
        make_pipeline(pooled(SimpleImputer()), StandardScaler(), last).fit(X, y)
    assert not [w for w in caught if POOLING in str(w.message)]


@parametrize_with_checks([pooled(StandardScaler()), pooled(SimpleImputer())])
def test_pooled_passes_scikit_learns_checks(estimator, check):
    check(estimator)


def test_pooled_is_the_transformer_within(numbers):
    X, *_ = numbers
    own, plain = pooled(SimpleImputer(strategy="median")), SimpleImputer(strategy="median")
    np.testing.assert_array_equal(own.fit_transform(X), plain.fit_transform(X))
    assert not hasattr(own.transformer, "statistics_")
    copy = clone(own).set_params(transformer__strategy="constant")
    assert own.transformer.strategy == "median" and copy.transformer.strategy == "constant"
    assert hasattr(pooled(StandardScaler()), "inverse_transform")
    assert not hasattr(pooled(Normalizer()), "inverse_transform")
    names = pooled(StandardScaler()).set_output(transform="pandas")
    out = names.fit_transform(pd.DataFrame({"age": [1.0, 3.0]}))
    assert out["age"].tolist() == [-1, 1]
    np.testing.assert_allclose(names.inverse_transform(out), [[1], [3]])


@pytest.mark.parametrize("bad", [3, "passthrough", StandardScaler, LogisticRegression()])
def test_pooled_takes_transformers_only(bad):
    with pytest.raises(TypeError, match="pooled takes a transformer"):
        pooled(bad)
    with pytest.raises(TypeError, match="FederatedStandardScaler takes clients"):
        pooled(FederatedStandardScaler())


def test_a_pipeline_of_its_own_class_warns_too(numbers):
    X, y, ids = numbers
    pipe = FederatedPipeline([("s", StandardScaler()), ("f", FederatedSimpleImputer())])
    with pytest.warns(UserWarning, match=POOLING):
        pipe.fit(X, y, clients=ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipe.set_params(s=pooled(StandardScaler())).fit(X, y, clients=ids)

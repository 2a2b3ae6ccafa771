"""scope="client": each client's rows are transformed by statistics of its own."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import skfed
from skfed import FederatedClassifier, RandomSelector, make_pipeline
from skfed.metrics import (
    client_scores,
    mean_client_accuracy,
    priority_accuracy,
    worst_client_accuracy,
)
from skfed.preprocessing import (
    FederatedMinMaxScaler,
    FederatedOneHotEncoder,
    FederatedPCA,
    FederatedRobustScaler,
    FederatedSimpleImputer,
    FederatedStandardScaler,
)
from skfed.preprocessing._base import fitting_elsewhere

PAIRS = [
    (FederatedStandardScaler(scope="client"), StandardScaler()),
    (FederatedStandardScaler(scope="client", with_mean=False), StandardScaler(with_mean=False)),
    (FederatedMinMaxScaler(scope="client"), MinMaxScaler()),
    (
        FederatedRobustScaler(scope="client", with_centering=False),
        RobustScaler(with_centering=False),
    ),
    (FederatedSimpleImputer(scope="client"), SimpleImputer()),
    (FederatedSimpleImputer(scope="client", strategy="median"), SimpleImputer(strategy="median")),
]
SCALERS = [own for own, plain in PAIRS if hasattr(plain, "scale_") or "Scaler" in str(plain)]
GIVEN = "clients was not given, so all rows are transformed by the statistics of all clients"


@pytest.fixture(scope="module")
def sites():
    """Three clients with instruments of other scales, their rows mixed: X, y, ids."""
    rng = np.random.default_rng(0)
    ids = rng.choice(["a", "b", "c"], 150)
    y = rng.integers(0, 2, 150)
    gain = np.select([ids == "a", ids == "b"], [1.0, 40.0], -300.0)[:, None]
    X = (rng.normal(size=(150, 2)) + 2 * y[:, None]) * np.abs(gain) + gain
    return X, y, ids


@pytest.fixture(params=[False, True], ids=["routing off", "routing on"])
def routing(request):
    with sklearn.config_context(enable_metadata_routing=request.param):
        yield request.param


@parametrize_with_checks(
    [FederatedStandardScaler(scope="client"), FederatedSimpleImputer(scope="client")]
)
@pytest.mark.filterwarnings("ignore:clients was not given")
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)


def test_by_hand():
    X, ids = np.array([[0.0], [10.0], [4.0], [30.0]]), ["a", "b", "a", "b"]
    scaler = FederatedStandardScaler(scope="client").fit(X, clients=ids)
    assert scaler.mean_ == [11]
    assert scaler.by_client_["mean_"].ravel().tolist() == [2, 20]
    assert scaler.by_client_["scale_"][1].tolist() == [10]
    found = scaler.transform([[6.0], [40.0], [11.0]], clients=["a", "b", "new"])
    np.testing.assert_allclose(found.ravel(), [2, 2, 0])
    assert list(scaler.clients_) == ["a", "b"]


@pytest.mark.parametrize(("own", "plain"), PAIRS, ids=str)
def test_rows_are_transformed_as_by_a_transformer_of_each_client(sites, own, plain):
    X, _, ids = sites
    X = np.where(np.random.default_rng(1).random(X.shape) < 0.1, np.nan, X)
    found = clone(own).fit_transform(X, clients=ids)
    for client in "abc":
        rows = ids == client
        np.testing.assert_array_equal(found[rows], clone(plain).fit_transform(X[rows]))
    fitted = clone(own).fit(X, clients=ids)
    np.testing.assert_array_equal(fitted.transform(X, clients=ids), found)
    of_all = clone(own).set_params(scope="all").fit(X, clients=ids)
    np.testing.assert_array_equal(fitted.transform(X, clients=["new"] * 150), of_all.transform(X))
    pd.testing.assert_frame_equal(fitted.exchange_, of_all.exchange_)  # nothing more leaves


@pytest.mark.parametrize("own", SCALERS, ids=str)
def test_scaled_rows_are_scaled_back(sites, own):
    X, _, ids = sites
    scaler = clone(own).fit(X, clients=ids)
    scaled = scaler.transform(X, clients=ids)
    np.testing.assert_allclose(scaler.inverse_transform(scaled, clients=ids), X)
    with pytest.warns(UserWarning, match=GIVEN):
        assert not np.allclose(scaler.inverse_transform(scaled), X)


def test_without_clients_all_rows_are_transformed_alike_with_a_warning(sites):
    X, _, ids = sites
    scaler = FederatedStandardScaler(scope="client").fit(X, clients=ids)
    with pytest.warns(UserWarning, match=f"FederatedStandardScaler: scope='client', but {GIVEN}"):
        found = scaler.transform(X)
    np.testing.assert_allclose(found, StandardScaler().fit_transform(X))
    with pytest.raises(ValueError, match="clients has 2 entries"):
        scaler.transform(X, clients=["a", "b"])
    all_alike = scaler.set_params(scope="all").fit(X, clients=ids)
    assert not hasattr(all_alike, "by_client_")
    np.testing.assert_array_equal(all_alike.transform(X, clients=ids), all_alike.transform(X))


@pytest.mark.filterwarnings("ignore:Skipping features")
def test_a_column_that_a_client_lacks_is_that_of_all_clients():
    X = np.array([[1.0, np.nan], [3.0, np.nan], [10.0, 5.0], [20.0, 7.0]])
    ids = ["a", "a", "b", "b"]
    scaler = FederatedStandardScaler(scope="client").fit(X, clients=ids)
    np.testing.assert_allclose(scaler.transform([[2.0, 6.0]], clients=["a"]), [[0, 0]])
    imputer = FederatedSimpleImputer(scope="client", add_indicator=True).fit(X, clients=ids)
    filled = imputer.transform(X, clients=ids)
    assert filled[:2, 1].tolist() == [6, 6] and filled.shape == (4, 3)
    X[:, 1] = [np.nan, np.nan, np.nan, 7]
    imputer = FederatedSimpleImputer(scope="client", priority=["a"]).fit(X, clients=ids)
    assert imputer.transform(X, clients=ids).shape == (4, 1)  # no priority client has the column


def test_clients_of_one_row_and_ids_of_other_types():
    X = pd.DataFrame({"u": [1.0, 5.0, 9.0]})
    scaler = FederatedStandardScaler(scope="client").set_output(transform="pandas")
    out = scaler.fit_transform(X, clients=[1, "1", (1, 2)])
    assert out["u"].tolist() == [0, 0, 0] and list(out) == ["u"]
    assert scaler.transform(X.iloc[[2]], clients=["1"]).index.tolist() == [2]
    assert scaler.transform(X.iloc[:1], clients=["1"])["u"].tolist() == [-4]


def test_text_is_filled_by_the_clients_own_most_frequent_value():
    X = np.array([["x"], ["x"], [np.nan], ["y"], [np.nan], ["y"]], dtype=object)
    imputer = FederatedSimpleImputer(strategy="most_frequent", scope="client")
    filled = imputer.fit_transform(X, clients=list("aaabbb"))
    assert filled.ravel().tolist() == ["x", "x", "x", "y", "y", "y"]


def test_each_clients_statistics_are_saved(sites, tmp_path):
    X, _, ids = sites
    scaler = FederatedStandardScaler(scope="client").fit(X, clients=ids)
    skfed.save(scaler, tmp_path / "scaler")
    loaded = skfed.load(FederatedStandardScaler(scope="client"), tmp_path / "scaler")
    found = loaded.transform(X, clients=ids)
    np.testing.assert_array_equal(found, scaler.transform(X, clients=ids))


def test_no_rows_are_refused_as_by_scikit_learn(sites):
    X, _, ids = sites
    scaler = FederatedStandardScaler(scope="client").fit(X, clients=ids)
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\)"):
        scaler.transform(X[:0], clients=[])


def test_encoders_and_pca_have_no_scope():
    for transformer in (FederatedOneHotEncoder, FederatedPCA):
        with pytest.raises(TypeError, match="scope"):
            transformer(scope="client")
    with pytest.raises(ValueError, match="'scope' parameter .* must be a str among"):
        FederatedStandardScaler(scope="site").fit([[1.0], [2.0]], clients=[0, 1])


def test_a_federation_of_processes_refuses_it():
    with (
        fitting_elsewhere(lambda transformer, rows: None, made_up=False),
        pytest.raises(ValueError, match="scope='client' needs the rows of all clients"),
    ):
        FederatedStandardScaler(scope="client").fit([[1.0], [2.0]])


def model(**params):
    selector = RandomSelector(1.0, "uniform", False, ignore_priority=True)
    return FederatedClassifier(selector=selector, n_rounds=5, random_state=0, **params)


def by_hand(X, ids):
    return FederatedStandardScaler(scope="client").fit_transform(X, clients=ids)


def test_a_federated_pipeline_gives_clients_to_predict_and_score(sites, routing):
    X, y, ids = sites
    pipe = make_pipeline(FederatedStandardScaler(scope="client"), model())
    pipe.fit(X, y, clients=ids, X_val=X, y_val=y, clients_val=ids)
    expected = model().fit(by_hand(X, ids), y, clients=ids)
    predicted = expected.predict(by_hand(X, ids))
    np.testing.assert_array_equal(pipe.predict(X, clients=ids), predicted)
    assert pipe.predict_proba(X, clients=ids).shape == (150, 2)
    np.testing.assert_array_equal(pipe[:-1].transform(X, clients=ids), by_hand(X, ids))
    accuracy = (predicted == y).mean()
    assert accuracy > 0.85
    assert pipe.score(X, y, clients=ids) == accuracy == pipe[-1].history_["val_score"].iloc[-1]
    with pytest.warns(UserWarning, match=GIVEN):
        assert pipe.score(X, y) < accuracy
    scores = client_scores(pipe, X, y, ids)
    assert np.average(scores["accuracy"], weights=scores["n_samples"]) == pytest.approx(accuracy)
    assert worst_client_accuracy(pipe, X, y, clients=ids) == scores["accuracy"].min()


def test_score_of_priority_clients(sites, routing):
    X, y, ids = sites
    pipe = make_pipeline(FederatedStandardScaler(scope="client"), model(priority=["a"]))
    pipe.fit(X, y, clients=ids)
    right = pipe.predict(X, clients=ids) == y
    paying = right[ids == "a"].mean()
    assert paying != right.mean()
    assert priority_accuracy(pipe, X, y, clients=ids) == paying
    # With routing on, clients goes to score only where the last step requests it.
    assert pipe.score(X, y, clients=ids) == (right.mean() if routing else paying)
    if routing:
        pipe[-1].set_score_request(clients=True)
        assert pipe.score(X, y, clients=ids) == paying


def test_scikit_learns_own_pipeline_with_routing(sites):
    X, y, ids = sites
    with sklearn.config_context(enable_metadata_routing=True):
        scaler = FederatedStandardScaler(scope="client")
        pipe = Pipeline([("scale", scaler), ("model", model())]).fit(X, y, clients=ids)
        own = make_pipeline(FederatedStandardScaler(scope="client"), model())
        own.fit(X, y, clients=ids)
        predicted = pipe.predict(X, clients=ids)
        np.testing.assert_array_equal(predicted, own.predict(X, clients=ids))
        assert pipe.score(X, y, clients=ids) == (predicted == y).mean()
        columns = ColumnTransformer([("all", FederatedMinMaxScaler(scope="client"), [0, 1])])
        out = columns.fit_transform(X, clients=ids)
        expected = FederatedMinMaxScaler(scope="client").fit_transform(X, clients=ids)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(columns.transform(X, clients=ids), expected)
        with_columns = make_pipeline(columns, model()).fit(X, y, clients=ids)
        assert with_columns.predict(X, clients=ids).shape == (150,)


def test_a_search_with_routing_gives_clients_to_the_test_rows(sites):
    X, y, ids = sites
    with sklearn.config_context(enable_metadata_routing=True):
        grid = {"federatedstandardscaler__scope": ["all", "client"]}
        for scope, scoring in (("client", None), ("all", mean_client_accuracy)):
            pipe = make_pipeline(FederatedStandardScaler(scope=scope), model())
            search = GridSearchCV(pipe, grid, cv=2, scoring=scoring).fit(X, y, clients=ids)
            of_all, of_client = search.cv_results_["mean_test_score"]
            assert of_client > of_all


def test_clients_that_no_step_takes_in_predict_are_an_error(sites):
    X, y, ids = sites
    pipe = make_pipeline(FederatedStandardScaler(), model()).fit(X, y, clients=ids)
    with pytest.raises(TypeError, match="no step takes clients in predict, .* scope='client'"):
        pipe.predict(X, clients=ids)
    assert pipe.score(X, y, clients=ids) == pipe.score(X, y)

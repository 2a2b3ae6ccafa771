"""FederatedPipeline: which steps get the clients, and how validation rows are transformed."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from skfed import FederatedClassifier, RandomSelector, make_pipeline
from skfed.metrics import priority_accuracy
from skfed.model_selection import WithinClientKFold
from skfed.pipeline import FederatedPipeline
from skfed.preprocessing import pooled

# What is tested is who gets clients; the plain scaler warns of what it pools.
pools = pytest.mark.filterwarnings("ignore:StandardScaler. fitted on the rows of all clients")


@pytest.fixture(params=[False, True], ids=["routing off", "routing on"], autouse=True)
def routing(request):
    with sklearn.config_context(enable_metadata_routing=request.param):
        yield request.param


@pytest.fixture(scope="module")
def table():
    """Unscaled rows of four clients, and validation rows: X, y, ids, X_val, y_val."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 240)
    X = rng.normal(size=(240, 3)) + 2 * y[:, None]
    X = X * [1, 100, 0.01] + [50, -900, 3]
    return X[:160], y[:160], np.repeat(list("abcd"), 40), X[160:], y[160:]


def federated(**params):
    selector = RandomSelector(1.0, "uniform", False, ignore_priority=True)
    params = {"n_rounds": 3, "lr_schedule": 0.3, "random_state": 0, **params}
    return FederatedClassifier(selector=selector, **params)


class Centred(TransformerMixin, BaseEstimator):
    """Subtracts the mean of the clients' means; has no metadata request."""

    def fit(self, X, y=None, clients=None):
        means = pd.DataFrame(np.asarray(X)).groupby(np.asarray(clients)).mean()
        self.mean_, self.n_clients_ = means.mean().to_numpy(), len(means)
        return self

    def transform(self, X):
        return np.asarray(X) - self.mean_


class Requesting(Centred):
    __metadata_request__fit = {"clients": True}


class NotRequesting(Centred):
    __metadata_request__fit = {"clients": False}

    def fit(self, X, y=None, clients=None):
        assert clients is None
        return super().fit(X, y, np.zeros(len(X)))


def test_validation_rows_are_transformed_by_the_earlier_steps(table):
    X, y, ids, X_val, y_val = table
    pipe = make_pipeline(pooled(MinMaxScaler()), pooled(StandardScaler()), federated())
    pipe.fit(X, y, clients=ids, X_val=X_val, y_val=y_val)
    scores = pipe[-1].history_["val_score"]
    assert scores.iloc[-1] == pipe.score(X_val, y_val) > 0.8
    by_hand = federated()
    earlier = Pipeline(pipe.steps[:-1])
    Xt, Xt_val = earlier.transform(X), earlier.transform(X_val)
    by_hand.fit(Xt, y, clients=ids, X_val=Xt_val, y_val=y_val)
    pd.testing.assert_series_equal(by_hand.history_["val_loss"], pipe[-1].history_["val_loss"])


def test_clients_val_selects_the_rows_of_priority_clients(table):
    X, y, ids, X_val, y_val = table
    owners = np.repeat(list("abcd"), 20)
    pipe = make_pipeline(pooled(StandardScaler()), federated(priority=["a"]))
    pipe.fit(X, y, clients=ids, X_val=X_val, y_val=y_val, clients_val=owners)
    expected = pipe.score(X_val, y_val, clients=owners)
    assert pipe[-1].history_["val_score"].iloc[-1] == expected == pipe.score(X_val[:20], y_val[:20])


@pytest.mark.parametrize("scaler", [Centred, Requesting])
def test_each_step_that_takes_clients_gets_them(table, scaler):
    X, y, ids, X_val, y_val = table
    pipe = make_pipeline(scaler(), pooled(StandardScaler()), Requesting(), federated())
    pipe.fit(X, y, clients=ids, X_val=X_val, y_val=y_val)
    assert [step.n_clients_ for step in (pipe[0], pipe[2])] == [4, 4]
    assert list(pipe[-1].clients_) == list("abcd")


@pytest.mark.filterwarnings("ignore:NotRequesting, StandardScaler. fitted on the rows")
def test_a_step_that_refuses_clients_gets_none(table):
    X, y, ids, *_ = table
    pipe = make_pipeline(NotRequesting(), StandardScaler(), federated()).fit(X, y, clients=ids)
    assert pipe[0].n_clients_ == 1 and len(pipe[-1].clients_) == 4


def test_a_pipeline_of_transformers_passes_clients(table):
    X, y, ids, *_ = table
    pipe = make_pipeline(Centred(), pooled(StandardScaler()), Centred())
    Xt = pipe.fit_transform(X, y, clients=ids)
    np.testing.assert_allclose(Xt, pipe.fit(X, y, clients=ids).transform(X))
    assert [pipe[0].n_clients_, pipe[2].n_clients_] == [4, 4]


def test_nested_pipelines(table):
    X, y, ids, X_val, y_val = table
    inner = make_pipeline(Centred(), federated())
    pipe = make_pipeline(pooled(StandardScaler()), inner)
    pipe.fit(X, y, clients=ids, X_val=X_val, y_val=y_val)
    assert inner[0].n_clients_ == 4
    assert inner[1].history_["val_score"].iloc[-1] == pipe.score(X_val, y_val) > 0.8


def test_searches_over_pipelines_and_in_pipelines(table):
    X, y, ids, *_ = table
    grid = {"federatedclassifier__n_rounds": [1, 3]}
    pipe = make_pipeline(Centred(), pooled(StandardScaler()), federated())
    search = GridSearchCV(pipe, grid, cv=2).fit(X, y, clients=ids)
    assert search.best_estimator_[0].n_clients_ == 4
    of_search = make_pipeline(
        pooled(StandardScaler()), GridSearchCV(federated(), {"n_rounds": [1]}, cv=2)
    )
    of_search.fit(X, y, clients=ids)
    assert len(of_search[-1].best_estimator_.clients_) == 4


def test_scorers_and_splitters_get_the_clients(table, routing):
    X, y, ids, *_ = table
    pipe = make_pipeline(Centred(), pooled(StandardScaler()), federated(priority=["a", "b"]))
    if routing:
        given = {"params": {"clients": ids}, "scoring": priority_accuracy}
    else:
        given = {"params": {"clients": ids}, "groups": ids}
    scores = cross_validate(pipe, X, y, cv=WithinClientKFold(2), error_score="raise", **given)
    assert len(scores["test_score"]) == 2
    pipe.fit(X, y, clients=ids)
    assert priority_accuracy(pipe, X, y, clients=ids) == pipe.score(X, y, clients=ids)


@pools
def test_arguments_named_by_step_are_passed_unchanged(table, routing):
    X, y, ids, X_val, y_val = table
    pipe = make_pipeline(StandardScaler(), federated())
    if routing:
        with pytest.raises(TypeError, match="federatedclassifier__clients"):
            pipe.fit(X, y, federatedclassifier__clients=ids)
        return
    scaled = StandardScaler().fit(X).transform(X_val)
    step = "federatedclassifier"
    given = {f"{step}__X_val": scaled, f"{step}__y_val": y_val}
    pipe.fit(X, y, clients=ids, standardscaler__sample_weight=np.ones(160), **given)
    assert pipe[-1].history_["val_score"].iloc[-1] == pipe.score(X_val, y_val)


def test_transform_input_transforms_once(table, routing):
    X, y, ids, X_val, y_val = table
    pipe = make_pipeline(pooled(StandardScaler()), federated(), transform_input=["X_val"])
    if not routing:
        with pytest.raises(ValueError, match="transform_input"):
            pipe.fit(X, y, clients=ids, X_val=X_val, y_val=y_val)
        return
    pipe.fit(X, y, clients=ids, X_val=X_val, y_val=y_val)
    assert pipe[-1].history_["val_score"].iloc[-1] == pipe.score(X_val, y_val) > 0.8


def test_clients_that_no_step_takes_are_an_error(table):
    X, y, ids, *_ = table
    with pytest.raises(TypeError, match="clients"):
        make_pipeline(pooled(StandardScaler()), LogisticRegression()).fit(X, y, clients=ids)
    with pytest.raises(TypeError, match="clients"):
        make_pipeline(pooled(StandardScaler())).fit_transform(X, y, clients=ids, X_val=X)
    columns = ColumnTransformer([("all", Requesting(), [0, 1, 2])])
    if not sklearn.get_config()["enable_metadata_routing"]:  # a ColumnTransformer needs routing
        with pytest.raises(ValueError, match="enable_metadata_routing=True"):
            make_pipeline(columns, federated()).fit(X, y, clients=ids)
    else:
        pipe = make_pipeline(columns, federated()).fit(X, y, clients=ids)
        assert pipe[0].named_transformers_["all"].n_clients_ == 4


def test_other_estimators_get_transformed_validation_rows(table):
    X, y, _, X_val, y_val = table
    model = HistGradientBoostingClassifier(early_stopping=True, max_iter=5)
    pipe = make_pipeline(pooled(StandardScaler()), model).fit(X, y, X_val=X_val, y_val=y_val)
    expected = -log_loss(y_val, pipe.predict_proba(X_val))
    assert pipe[-1].validation_score_[-1] == pytest.approx(expected)


@pools
def test_the_rest_is_as_in_scikit_learns_pipeline(table, tmp_path, routing):
    X, y, ids, X_val, y_val = table
    pipe = make_pipeline(StandardScaler(), federated(), memory=str(tmp_path), verbose=True)
    assert isinstance(pipe, Pipeline) and isinstance(pipe, FederatedPipeline)
    plain = sklearn.pipeline.make_pipeline(StandardScaler(), federated())
    assert [name for name, _ in pipe.steps] == [name for name, _ in plain.steps]
    assert pipe.get_params().keys() == plain.get_params().keys()
    copy = clone(pipe).set_params(federatedclassifier__n_rounds=2, verbose=False)
    copy.fit(X, y, clients=ids, X_val=X_val, y_val=y_val)
    assert copy[-1].n_rounds_ == 2 and copy.n_features_in_ == 3
    assert "federatedclassifier" in copy._repr_html_()
    assert isinstance(copy[:-1], FederatedPipeline)
    assert copy.predict(X).shape == (160,) and copy.predict_proba(X).shape == (160, 2)
    np.testing.assert_array_equal(copy.classes_, [0, 1])
    if not routing:  # with routing, the model would have to request weights
        assert copy.score(X, y, sample_weight=np.ones(160)) == copy.score(X, y)
    assert not hasattr(make_pipeline(StandardScaler()), "score")


def test_score_with_clients_needs_a_federated_estimator(table):
    X, y, *_ = table
    pipe = make_pipeline(pooled(StandardScaler()), LogisticRegression()).fit(X, y)
    with pytest.raises(TypeError, match="'logisticregression'.*takes no clients in score"):
        pipe.score(X, y, clients=y)

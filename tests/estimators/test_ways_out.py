"""Errors and warnings name the way out of mistakes that new users make."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

import skfed
from skfed import FederatedClassifier, FederatedRegressor
from skfed.metrics import client_scores
from skfed.model_selection import WithinClientStratifiedKFold
from skfed.preprocessing import FederatedPCA, FederatedStandardScaler
from skfed.selection import BaseSelector


class Ending(nn.Module):
    """A linear layer, and what comes after it."""

    def __init__(self, end):
        super().__init__()
        self.layer, self.end = nn.Linear(5, 3), end

    def forward(self, X):
        return self.end(self.layer(X))


def of_end(end):
    torch.manual_seed(0)
    return NeuralNetClassifier(Ending(end), criterion=nn.NLLLoss, lr=0.1)


@pytest.mark.parametrize(
    ("end", "found"),
    [(nn.LogSoftmax(dim=1), "log-probabilities"), (nn.Identity(), "negative numbers")],
    ids=["log_softmax", "logits"],
)
def test_skorch_takes_the_logarithm_itself(blobs, end, found):
    X, y, clients = blobs
    message = rf"returns {found}, .* softmax instead of log_softmax, or .*CrossEntropyLoss\."
    with pytest.raises(ValueError, match=message):
        FederatedClassifier(of_end(end), n_rounds=1).fit(X, y, clients=clients)
    model = FederatedClassifier(of_end(nn.Softmax(dim=1)), n_rounds=2, random_state=0)
    assert model.fit(X, y, clients=clients).history_["n_failed"].sum() == 0


def test_targets_that_are_not_scaled(blobs):
    X, _, clients = blobs
    y = 1e4 * (1 + X[:, 0])
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    model = FederatedRegressor(module, n_rounds=10, random_state=0)
    with pytest.warns(
        ConvergenceWarning, match="If y is not scaled, pass standardize_targets=True"
    ):
        model.fit(X, y, clients=clients)
    scaled = model.set_params(standardize_targets=True).fit(X, y, clients=clients)
    assert scaled.score(X, y) > 0.2


def test_folds_of_rows_that_are_sorted_by_client(blobs):
    X, y, clients = blobs
    search = GridSearchCV(
        FederatedClassifier(priority=["a"], n_rounds=1),
        {"n_rounds": [1]},
        cv=3,
        error_score="raise",
    )
    with pytest.raises(ValueError, match=r"not in clients: 'a'.*fold.*WithinClientStratifiedKFold"):
        search.set_params(cv=[(np.arange(60, 140), np.arange(60))]).fit(X, y, clients=clients)
    cv = WithinClientStratifiedKFold(3)
    search.set_params(cv=cv).fit(X, y, clients=clients, groups=clients)


@pytest.mark.parametrize(
    "fit",
    [
        lambda X, y, clients: FederatedClassifier(n_rounds=1).fit(X, y, clients=clients),
        lambda X, y, clients: FederatedPCA().fit(X, clients=clients),
    ],
    ids=["classifier", "PCA"],
)
def test_missing_values(blobs, fit):
    X, y, clients = blobs
    X = X.copy()
    X[3, 1] = np.nan
    with pytest.raises(
        ValueError, match=r"(?s)contains NaN.*skfed\.preprocessing\.FederatedSimpleImputer"
    ):
        fit(X, y, clients)


class Listing(BaseSelector):
    """Returns a list."""

    def _select(self, round):
        return [0, 1]


def test_a_list_for_a_cohort(blobs):
    X, y, clients = blobs
    with pytest.raises(TypeError, match=r"gave \[0, 1\]: give a Cohort, .* Cohort\.mean\("):
        FederatedClassifier(selector=Listing(), n_rounds=1).fit(X, y, clients=clients)


def test_a_search_is_not_saved_but_its_best_estimator(blobs, tmp_path):
    X, y, clients = blobs
    search = GridSearchCV(FederatedClassifier(random_state=0), {"n_rounds": [1, 2]}, cv=2)
    search.fit(X, y, clients=clients)
    with pytest.raises(TypeError, match="GridSearchCV is a search.* save its best_estimator_"):
        skfed.save(search, tmp_path / "model")
    skfed.save(search.best_estimator_, tmp_path / "model")
    loaded = skfed.load(search.best_estimator_, tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), search.predict(X))


def test_a_label_that_fit_has_not_seen(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=1, random_state=0).fit(X, y, clients=clients)
    others = np.where(np.arange(len(y)) == 5, 9, y)
    message = r"has the label 9, .*\[0, 1, 2\], the labels in fit: leave its rows out, or fit with"
    with pytest.raises(ValueError, match="^y " + message):
        client_scores(model, X, others, clients=clients)
    with pytest.raises(ValueError, match="^y_val " + message):
        model.fit(X, y, clients=clients, X_val=X, y_val=others)


def test_a_dict_before_a_transformer_is_not_shown_whole(blobs):
    X, y, clients = blobs
    pipeline = skfed.make_pipeline(FederatedStandardScaler(), FederatedClassifier(n_rounds=1))
    message = (
        r"X is a dict with the keys \['one', 'two'\], but FederatedStandardScaler takes an array"
    )
    with pytest.raises(ValueError, match=message) as error:
        pipeline.fit({"one": X, "two": X}, y, clients=clients)
    assert len(str(error.value)) < 250


def test_a_pipeline_with_other_parameters_than_the_saved_one(blobs, tmp_path):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=1, random_state=0)
    pipeline = skfed.make_pipeline(FederatedStandardScaler(with_mean=False), model)
    skfed.save(pipeline.fit(X, y, clients=clients), tmp_path / "model")
    other = skfed.make_pipeline(FederatedStandardScaler(), model)
    message = "was saved with with_mean=False, but like has with_mean=True"
    with pytest.raises(ValueError, match=message):
        skfed.load(other, tmp_path / "model")


class Keyed(sparse.csr_matrix, Mapping):
    """A sparse matrix that is a mapping, as those by keys are in scipy before 1.13."""


def test_a_sparse_matrix_that_is_a_mapping_is_no_dict(blobs):
    X, y, clients = blobs
    with pytest.raises(TypeError, match="Sparse data was passed"):
        FederatedClassifier(n_rounds=1).fit(Keyed(X), y, clients=clients)

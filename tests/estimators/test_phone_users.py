"""Real phone users: searches in a Pipeline, and what federation costs in accuracy."""

import os

import numpy as np
import pytest
import sklearn
import torch
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.datasets import load_wisdm
from skfed.metrics import priority_accuracy
from skfed.model_selection import WithinClientKFold

PAYING = [1, 2, 3, 6, 8, 12]
SEARCHES = {
    "eps": (FedAlignSelector(warmup=1), {"selector__eps": [0.1, 0.5]}),
    "d": (PowerOfChoice(d=6, ignore_priority=True), {"selector__d": [3, 6, 12]}),
}


@pytest.fixture(scope="module")
def wisdm(data_home):
    return load_wisdm(data_home=data_home)


@pytest.mark.parametrize("routing", [False, True], ids=["routing off", "routing on"])
@pytest.mark.parametrize("search", SEARCHES)
def test_grid_search_in_a_pipeline(wisdm, search, routing):
    selector, grid = SEARCHES[search]
    federated = FederatedClassifier(selector=selector, priority=PAYING, n_rounds=4, random_state=0)
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), federated)
    grid = {f"federatedclassifier__{name}": values for name, values in grid.items()}
    # Folds within each user, so that every paying user is in every training set.
    folds = StratifiedKFold(3, shuffle=True, random_state=0).split(wisdm.X, wisdm.clients)
    grid_search = GridSearchCV(pipeline, grid, cv=list(folds))
    name = "clients" if routing else "federatedclassifier__clients"
    with sklearn.config_context(enable_metadata_routing=routing):
        grid_search.fit(wisdm.X, wisdm.y, **{name: wisdm.clients})
    assert np.isfinite(grid_search.cv_results_["mean_test_score"]).all()
    best = grid_search.best_estimator_[-1]
    assert (len(best.clients_), best.priority_.sum()) == (36, 6)
    assert best.history_["samples_trained"].gt(0).all()
    assert set(grid_search.predict(wisdm.X)) <= set(wisdm.y)


@pytest.mark.parametrize("routing", [False, True], ids=["routing off", "routing on"])
def test_searches_without_a_pipeline_and_cross_val_score(wisdm, routing):
    X = StandardScaler().fit_transform(wisdm.X.fillna(0))
    folds = list(StratifiedKFold(3, shuffle=True, random_state=0).split(X, wisdm.clients))
    model = FederatedClassifier(selector=PowerOfChoice(d=6), n_rounds=2, random_state=0)
    with sklearn.config_context(enable_metadata_routing=routing):
        search = GridSearchCV(model, {"selector__d": [3, 6]}, cv=folds)
        search.fit(X, wisdm.y, clients=wisdm.clients)
        scores = cross_val_score(model, X, wisdm.y, cv=folds, params={"clients": wisdm.clients})
    assert len(search.best_estimator_.clients_) == 36
    assert scores == pytest.approx(search.cv_results_["mean_test_score"][1], abs=0.1)


def test_a_search_over_both_papers_selectors_is_scored_by_the_paying_users(wisdm):
    """With routing on by clients=; with routing off a scorer finds the user by X's index."""
    federated = FederatedClassifier(priority=PAYING, n_rounds=3, random_state=0)
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), federated)
    step = "federatedclassifier__"
    grid = [
        {f"{step}selector": [FedAlignSelector()], f"{step}selector__eps": [0.1, 0.5]},
        {
            f"{step}selector": [PowerOfChoice(d=2, ignore_priority=True)],
            f"{step}selector__d": [4, 12],
        },
    ]
    by_row = lambda model, X, y: priority_accuracy(model, X, y, wisdm.clients[X.index])  # noqa: E731
    folds = WithinClientKFold(2, random_state=0)
    given = {"cv": folds, "refit": False}
    off = GridSearchCV(pipeline, grid, scoring=by_row, **given)
    off.fit(wisdm.X, wisdm.y, groups=wisdm.clients, **{f"{step}clients": wisdm.clients})
    with sklearn.config_context(enable_metadata_routing=True):
        on = GridSearchCV(pipeline, grid, scoring=priority_accuracy, **given)
        on.fit(wisdm.X, wisdm.y, clients=wisdm.clients)
    for name in ("mean_test_score", "rank_test_score"):
        np.testing.assert_array_equal(off.cv_results_[name], on.cv_results_[name])
    assert len(set(on.cv_results_["mean_test_score"])) > 2
    assert (on.cv_results_["mean_test_score"] > 1 / 6).all()


class MLP(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(43, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6)
        )


def split_within_users(clients, seed):
    """Hold out a quarter of each user's rows."""
    rng = np.random.default_rng(seed)
    test = np.zeros(len(clients), bool)
    for user in np.unique(clients):
        rows = rng.permutation(np.flatnonzero(clients == user))
        test[rows[: len(rows) // 4]] = True
    return ~test, test


def train_pooled(X, y, n_passes, seed):
    """Train the net on all rows by plain minibatch SGD."""
    torch.manual_seed(seed)
    module = MLP()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(n_passes):
        for rows in torch.randperm(len(X)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(X[rows]), y[rows]).backward()
            optimizer.step()
    return module


@pytest.mark.slow
def test_federated_training_comes_within_3_points_of_pooled_training(wisdm):
    """The same net, at most as many passes over the data; SKFED_SEEDS=5 averages over 5 seeds."""
    n_seeds, n_passes = int(os.environ.get("SKFED_SEEDS", 1)), 50
    net = NeuralNetClassifier(MLP, criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=32)
    y = LabelEncoder().fit_transform(wisdm.y)
    scores = []
    for seed in range(n_seeds):
        train, test = split_within_users(wisdm.clients, seed)
        prepare = make_pipeline(SimpleImputer(), StandardScaler())
        X = prepare.fit_transform(wisdm.X[train]).astype(np.float32)
        X_test = prepare.transform(wisdm.X[test]).astype(np.float32)
        # Draws by size favour large users, so fewer rounds than 50 passes times 12 rounds a pass.
        federated = FederatedClassifier(
            net, selector=RandomSelector(0.1), n_rounds=540, random_state=seed
        )
        federated.fit(X, y[train], clients=wisdm.clients[train])
        assert 0.9 < federated.history_["samples_trained"].sum() / (n_passes * len(X)) <= 1
        pooled = train_pooled(torch.as_tensor(X), torch.as_tensor(y[train]), n_passes, seed)
        right = pooled(torch.as_tensor(X_test)).argmax(1).numpy() == y[test]
        scores.append((federated.score(X_test, y[test]), right.mean()))
    federated_score, pooled_score = np.mean(scores, axis=0)
    print(
        f"WISDM, accuracy, mean of {n_seeds} seeds: federated {federated_score:.3f}, "
        f"pooled {pooled_score:.3f}"
    )
    assert pooled_score > 0.8
    assert federated_score > pooled_score - 0.03

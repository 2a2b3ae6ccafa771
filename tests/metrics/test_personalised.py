"""Scores of clients before and after they have fine-tuned the global model."""

from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import Callback, LRScheduler
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor
from skfed.aggregation import Scaffold
from skfed.metrics import client_scores, personalised_scores
from skfed.privacy import GaussianMechanism
from skfed.schedules import LinearDecay
from skfed.server._standardize import Wanted


@pytest.fixture(scope="module")
def rows(blobs):
    """Return the training and the test rows of all clients, each X, y, clients."""
    X, y, clients = blobs
    return (X[::2], y[::2], clients[::2]), (X[1::2], y[1::2], clients[1::2])


@pytest.fixture(scope="module")
def targets(rows):
    """Return the same rows with a number to predict, and the others as X."""
    return tuple((X[:, :4], X[:, 4] + np.arange(len(X)) % 3, clients) for X, _, clients in rows)


def regressor(targets, batch_size=-1, callbacks=(), **params):
    net = NeuralNetRegressor(
        nn.Linear,
        module__in_features=4,
        module__out_features=1,
        lr=0.1,
        batch_size=batch_size,
        callbacks=list(callbacks),
    )
    given = {"n_rounds": 2, "engine": "loop", "random_state": 0} | params
    return FederatedRegressor(net, **given).fit(*targets[0])


def test_the_score_before_is_that_of_the_global_model(rows):
    train, test = rows
    model = FederatedClassifier(priority=["a", "b"], n_rounds=3, random_state=0).fit(*train)
    scores, expected = personalised_scores(model, *train, *test), client_scores(model, *test)
    assert scores.columns.tolist() == [
        "n_samples", "priority", "global_accuracy", "personalised_accuracy"
    ]  # fmt: skip
    names = {"accuracy": "global_accuracy"}
    both = ["n_samples", "priority", "accuracy"]
    pd.testing.assert_frame_equal(scores.iloc[:, :3], expected[both].rename(columns=names))


def test_without_steps_both_scores_are_equal(rows, targets):
    train, test = rows
    model = FederatedClassifier(n_rounds=3, random_state=0).fit(*train)
    scores = personalised_scores(model, *train, *test, local_steps=0)
    assert (scores["global_accuracy"] == scores["personalised_accuracy"]).all()
    scores = personalised_scores(regressor(targets), *targets[0], *targets[1], local_steps=0)
    assert (scores["global_r2"] == scores["personalised_r2"]).all()


def test_one_step_by_hand(targets):
    """With a batch of all rows, one step of SGD is w - lr dF_k/dw on all of a client's rows."""
    train, test = targets
    model = regressor(targets)
    scores = personalised_scores(model, *train, *test, local_steps=1)
    for client, row in scores.iterrows():
        X, y = (part[train[2] == client].astype(float) for part in train[:2])
        residual = X @ model.coef_ + model.intercept_ - y
        coef = model.coef_ - 0.1 * 2 * X.T @ residual / len(y)
        intercept = model.intercept_ - 0.1 * 2 * residual.mean()
        X_test, y_test = (part[test[2] == client] for part in test[:2])
        expected = r2_score(y_test, X_test @ coef + intercept)
        assert row["personalised_r2"] == pytest.approx(expected, abs=1e-5)
        assert row["personalised_r2"] != pytest.approx(row["global_r2"], abs=1e-3)


def alone(model, client, train, test, **params):
    """Return the score after one more round of one client alone."""
    model = deepcopy(model).set_params(**{"local_steps": 3} | params)
    X, y, clients = (part[train[2] == client] for part in train)
    model.partial_fit(X, y, clients=clients)
    return model.score(*(part[test[2] == client] for part in test[:2]))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"lr_schedule": LinearDecay(0.3, 0.05), "local_epochs": 2},
        {"callbacks": [LRScheduler("StepLR", step_size=1, gamma=0.5)]},
        {"aggregator": Scaffold(), "proximal_mu": 0.5},
    ],
    ids=["plain", "schedule", "scheduler of skorch", "SCAFFOLD, FedProx"],
)
def test_a_client_trains_as_in_the_next_round(targets, params):
    """Bit for bit, so that its minibatches are drawn by seed, round and client."""
    model = regressor(targets, batch_size=4, **params)
    scores = personalised_scores(model, *targets[0], *targets[1], local_steps=3)
    plain = {"proximal_mu": 0.0, "aggregator": None}
    for client, score in scores["personalised_r2"].items():
        assert score == alone(model, client, *targets, **plain)


def test_class_weights_are_used(rows, monkeypatch):
    train, test = rows
    # A single client's round alone would scale the columns by its own rows.
    monkeypatch.setattr(FederatedClassifier, "_wanted", lambda self, server: Wanted())
    model = FederatedClassifier(
        class_weight={0: 50.0}, lr_schedule=1.0, n_rounds=1, engine="loop", random_state=0
    )
    scores = personalised_scores(model.fit(*train), *train, *test, local_steps=3)
    for client, score in scores["personalised_accuracy"].items():
        assert score == alone(model, client, *rows)
    balanced = FederatedClassifier(class_weight="balanced", n_rounds=1, random_state=0)
    assert len(personalised_scores(balanced.fit(*train), *train, *test)) == 6


def test_a_client_does_not_depend_on_the_others_or_on_the_order_of_rows(targets):
    train, test = targets
    model = regressor(targets, batch_size=4)
    scores = personalised_scores(model, *train, *test)
    for group in (["b"], ["f", "a"]):
        ours = [tuple(part[np.isin(own[2], group)] for part in own) for own in targets]
        few = personalised_scores(model, *ours[0], *ours[1])
        pd.testing.assert_frame_equal(few, scores.loc[sorted(group)])
    # By turns, with each client's rows in their order.
    turns = np.argsort([np.sum(train[2][:i] == c) for i, c in enumerate(train[2])], kind="stable")
    mixed = personalised_scores(model, *(part[turns] for part in train), *test)
    pd.testing.assert_frame_equal(mixed, scores)


def test_nothing_changes(rows, same_model):
    train, test = rows
    model = FederatedClassifier(n_rounds=2, warm_start=True, random_state=0).fit(*train)
    other = deepcopy(model)
    before = {name: tensor.clone() for name, tensor in model.net_.module_.state_dict().items()}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second = (personalised_scores(model, *train, *test) for _ in range(2))
    pd.testing.assert_frame_equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(w, before[n]) for n, w in model.net_.module_.state_dict().items())
    pd.testing.assert_frame_equal(model.history_, other.history_)
    for one in (model, other):
        one.set_params(n_rounds=4).fit(*train)
    assert same_model(model, other)


def test_a_model_that_was_read_from_a_file(targets, tmp_path):
    model = regressor(targets, batch_size=4)
    expected = personalised_scores(model, *targets[0], *targets[1])
    model.save(tmp_path / "model")
    read = clone(model).load(tmp_path / "model")
    pd.testing.assert_frame_equal(personalised_scores(read, *targets[0], *targets[1]), expected)


def test_clients_that_differ_gain():
    X = np.random.default_rng(0).normal(size=(400, 2))
    clients = np.repeat(["a", "b", "c", "d"], 100)
    y = np.where(clients == "a", X[:, 0] < 0, X[:, 0] > 0)
    train, test = ((X[i::2], y[i::2], clients[i::2]) for i in (0, 1))
    model = FederatedClassifier(n_rounds=20, random_state=0).fit(*train)
    scores = personalised_scores(model, *train, *test, local_steps=30)
    assert scores.loc["a", "global_accuracy"] < 0.1
    assert scores.loc["a", "personalised_accuracy"] > 0.8
    assert (scores["personalised_accuracy"] > 0.8).all()


def test_pipelines_and_searches(rows):
    train, test = rows
    step = FederatedClassifier(n_rounds=3, random_state=0)
    pipeline = make_pipeline(StandardScaler(), step)
    search = GridSearchCV(pipeline, {"federatedclassifier__n_rounds": [3]}, cv=2)
    search.fit(*train[:2], federatedclassifier__clients=train[2])
    scaler = StandardScaler().fit(train[0])
    step.fit(scaler.transform(train[0]), *train[1:])
    scaled = [(scaler.transform(X), y, clients) for X, y, clients in rows]
    expected = personalised_scores(step, *scaled[0], *scaled[1])
    pd.testing.assert_frame_equal(personalised_scores(search, *train, *test), expected)
    best = search.best_estimator_
    pd.testing.assert_frame_equal(personalised_scores(best, *train, *test), expected)


def test_clients_may_be_new_and_those_without_rows_are_left_out(rows):
    train, test = rows
    known = np.isin(train[2], list("abc"))
    model = FederatedClassifier(n_rounds=2, random_state=0).fit(*(part[known] for part in train))
    few = tuple(part[train[2] != "b"] for part in train)
    fewer = tuple(part[test[2] != "e"] for part in test)
    scores = personalised_scores(model, *few, *fewer)
    assert scores["priority"].to_dict() == {"a": True, "c": True, "d": False, "f": False}


def test_several_targets_and_clients_without_r2(targets):
    (X, y, clients), test = targets
    both = np.column_stack([y, -y])
    model = FederatedRegressor(n_rounds=2, random_state=0).fit(X, both, clients)
    y_test = np.column_stack([test[1], -test[1]])
    y_test[test[2] == "c"] = 1.0
    scores = personalised_scores(model, X, both, clients, test[0], y_test, test[2], local_steps=5)
    missing = scores[["global_r2", "personalised_r2"]].isna()
    assert missing.all(axis=1).to_dict() == {c: c == "c" for c in "abcdef"}
    assert missing.sum().sum() == 2


def test_noise_and_clipping_are_left_out(targets):
    noisy = GaussianMechanism(clip=1e-9, noise_multiplier=1.0)
    model = regressor(targets)
    expected = personalised_scores(model, *targets[0], *targets[1])
    model.set_params(update_privacy=noisy, loss_privacy=noisy)
    pd.testing.assert_frame_equal(personalised_scores(model, *targets[0], *targets[1]), expected)


def test_a_rate_is_set_by_the_schedule(targets):
    model = regressor(targets).set_params(lr_schedule=0.0)
    scores = personalised_scores(model, *targets[0], *targets[1])
    np.testing.assert_allclose(scores["global_r2"], scores["personalised_r2"], rtol=1e-6)


def test_a_client_that_diverges_is_named(targets):
    model = regressor(targets).set_params(lr_schedule=1e30)
    with pytest.raises(ValueError, match=r"client 'a' is not finite after local_steps=10: take"):
        personalised_scores(model, *targets[0], *targets[1])


class Failing(Callback):
    """Raises at the clients, once it is told to."""

    fails = False

    def on_batch_end(self, net, **kwargs):
        if self.fails:
            raise RuntimeError("no")


def test_a_client_that_fails_is_named(rows, monkeypatch):
    train, test = rows
    net = NeuralNetClassifier(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss, callbacks=[Failing])
    model = FederatedClassifier(net, n_rounds=1, random_state=0).fit(*train)
    monkeypatch.setattr(Failing, "fails", True)
    with pytest.raises(RuntimeError, match="no") as raised:
        personalised_scores(model, *train, *test)
    assert raised.value.__notes__ == ["personalised_scores: while client 'a' trains"]


def test_errors_say_what_to_do(rows):
    train, test = rows
    model = FederatedClassifier(n_rounds=1, random_state=0).fit(*train)
    with pytest.raises(ValueError, match=r"clients_test has no client of clients: \['x'\] are not"):
        personalised_scores(model, *train, *test[:2], ["x"] * len(test[1]))
    with pytest.raises(ValueError, match="local_steps"):
        personalised_scores(model, *train, *test, local_steps=-1)
    with pytest.raises(ValueError, match="clients has 2 entries, but X has 70 rows"):
        personalised_scores(model, *train[:2], ["a", "b"], *test)
    with pytest.raises(ValueError, match="X, y: .*inconsistent"):
        personalised_scores(model, train[0], train[1][1:], train[2], *test)
    with pytest.raises(TypeError, match="has no federated step"):
        personalised_scores(StandardScaler(), *train, *test)


@pytest.fixture
def rare_at_priority():
    rng = np.random.default_rng(0)
    clients = np.repeat(list("abcd"), 100)
    X = rng.normal(size=(400, 4))
    X[:, 3] *= 1e3 * (clients == "d")
    return X, X[:, :3].sum(axis=1) + rng.normal(0, 0.1, 400), clients


def test_fine_tuning_by_a_rate_of_a_clients_own(rare_at_priority):
    """The priority clients know nothing of a column, whose values at d are 1e3."""
    selector = FedAlignSelector(eps=np.inf, warmup=0)
    X, y, clients = rare_at_priority
    model = FederatedRegressor(random_state=0, selector=selector, priority=["a", "b"], n_rounds=20)
    model.fit(X, y, clients=clients)
    scores = personalised_scores(model, X, y, clients, X, y, clients)
    assert (scores["global_r2"] > 0.9).all()
    assert (scores["personalised_r2"] > 0.9).all()
    # Rows of a priority client that are not those of the fit.
    scores = personalised_scores(model, 1e3 * X, y, clients, 1e3 * X, y, clients)
    assert np.isfinite(scores["personalised_r2"]).all()


def test_fine_tuning_by_a_schedule_of_ones_own(rare_at_priority):
    X, y, clients = rare_at_priority
    X = X[:, :3]
    model = FederatedRegressor(n_rounds=5, random_state=0).fit(X, y, clients=clients)
    model.set_params(lr_schedule=0.0)
    scores = personalised_scores(model, X, y, clients, X, y, clients)
    np.testing.assert_array_equal(scores["personalised_r2"], scores["global_r2"])

"""The lowest validation score of a priority client, and whose it is."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import r2_score
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping
from torch import nn

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector
from skfed._problem import Classification, Regression

ALL_CLIENTS = RandomSelector(1.0, probability="uniform", replace=False, ignore_priority=True)
COLUMNS = ["val_score_worst", "val_worst"]


class Same(nn.Linear):
    """Returns its input."""

    def __init__(self, width):
        super().__init__(width, width, bias=False)
        nn.init.eye_(self.weight)


def fit(kind, X, y, clients, width, **params):
    """Fit to rows that are validation rows too, without moving the model."""
    given = {"selector": ALL_CLIENTS, "lr_schedule": 0.0, "n_rounds": 1, "random_state": 0}
    model = kind(Same(width), **given | params)
    X = np.asarray(X, np.float32)
    return model.fit(X, y, clients=clients, X_val=X, y_val=y, clients_val=clients)


def worst(model):
    return model.history_[COLUMNS].iloc[-1].tolist()


def test_of_a_classifier_it_is_the_lowest_accuracy_of_a_priority_client():
    predicted = np.array([0, 1, 0, 1, 1, 0, 0])
    y = np.array([0, 1, 1, 1, 0, 1, 1])  # a: 2 of 3 are right, b: 1 of 2, free: 0 of 2
    clients = ["a", "a", "a", "b", "b", "free", "free"]
    model = fit(FederatedClassifier, np.eye(2)[predicted], y, clients, 2, priority=["a", "b"])
    assert worst(model) == [1 / 2, "b"]
    assert model.history_["val_score"].iloc[-1] == 3 / 5
    everybody = fit(FederatedClassifier, np.eye(2)[predicted], y, clients, 2)
    assert worst(everybody) == [0.0, "free"]


def test_of_a_regressor_it_is_the_lowest_r2_that_is_defined():
    """Clients with one row, or with equal targets, have no R^2."""
    clients = np.repeat([1, 2, 3, 4], [2, 3, 1, 3])
    predicted = [[0], [1], [1], [2], [4], [9], [7], [8], [9]]
    y = np.array([0, 2, 1, 2, 3, 0, 0.1, 0.1, 0.1])
    # 1: 1 - 1 / 2. 2: 1 - 1 / 2 again, so that the first of them is named.
    model = fit(FederatedRegressor, predicted, y, clients, 1)
    assert worst(model) == [0.5, 1]
    rows = clients > 2
    none = fit(FederatedRegressor, np.array(predicted)[rows], y[rows], clients[rows], 1)
    assert np.isnan(worst(none)[0])
    assert worst(none)[1] is None
    assert np.isfinite(none.history_["val_score"].iloc[-1])


def test_it_is_not_defined_if_an_output_is_not_finite():
    problem = Regression((1,))
    y, owners = np.array([[0.0], [1.0], [0.0], [1.0]]), np.array([0, 0, 1, 1])
    outputs = np.array([[0.0], [1.0], [0.0], [np.inf]])
    assert np.isnan(problem.client_scores(outputs, y, owners)).all()


def test_scores_of_all_clients_at_once_are_those_of_each():
    rng = np.random.default_rng(0)
    owners = rng.permutation(np.repeat([0, 2, 5], [4, 7, 30]))
    labels, votes = rng.integers(0, 3, 41), rng.integers(0, 3, 41)
    y, outputs = 1e3 + rng.normal(size=(41, 2)), 1e3 + rng.normal(size=(41, 2))
    y[owners == 2, 1] = 0.5  # one of two targets does not vary
    classes, numbers = Classification(np.arange(3)), Regression((2,))
    of_classes = classes.client_scores(votes, labels, owners)
    of_numbers = numbers.client_scores(outputs, y, owners)
    for k in range(6):
        own = owners == k
        if own.any():
            assert of_classes[k] == classes.score(votes[own], labels[own])
            assert of_numbers[k] == pytest.approx(r2_score(y[own], outputs[own]), rel=1e-9)
        else:
            assert np.isnan([of_classes[k], of_numbers[k]]).all()


def test_rounds_without_validation_and_fits_without_owners(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=3, validate_every=2, warm_start=True, random_state=0)
    ids = np.unique(clients, return_inverse=True)[1]  # whole numbers
    model.fit(X, y, clients=ids, X_val=X, y_val=y, clients_val=ids)
    assert model.history_["val_score_worst"].isna().tolist() == [True, False, False]
    assert model.history_["val_worst"].dtype == object
    first, *names = model.history_["val_worst"]
    assert first is None
    assert {type(name) for name in names} == {int}
    model.partial_fit(X, y, clients=ids)
    assert model.history_["val_worst"].tolist() == [first, *names, None]
    assert not {*COLUMNS} & {
        *model.set_params(n_rounds=1, warm_start=False)
        .fit(X, y, clients=ids, X_val=X, y_val=y)
        .history_
    }


@pytest.mark.parametrize(
    "ids",
    [
        [3, 1, 2],
        [("a", 1), ("a", 2), ("b", 1)],
        [pd.Timestamp(2024, 1, day, tz="UTC") for day in (1, 2, 3)],
        np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "datetime64[D]"),
        [b"x", "x", 2.5],
    ],
    ids=["int", "tuple", "timestamp", "datetime64", "mixed"],
)
def test_a_resumed_fit_has_the_same_columns(blobs, tmp_path, ids):
    X, y, _ = blobs
    ids = [ids[i % 3] for i in range(len(y))]
    data = {"X": X, "y": y, "clients": ids, "X_val": X[:50], "y_val": y[:50]}

    class Killed(RandomSelector):
        fails_in = 3

        def _select(self, round):
            if type(self).fails_in == round.index:
                type(self).fails_in = None
                raise RuntimeError("killed")
            return super()._select(round)

    model = FederatedClassifier(selector=Killed(2), n_rounds=5, validate_every=2, random_state=0)
    with pytest.raises(RuntimeError, match="killed"):
        clone(model).set_params(checkpoint=tmp_path).fit(**data, clients_val=ids[:50])
    resumed = clone(model).set_params(checkpoint=tmp_path).fit(**data, clients_val=ids[:50])
    whole = clone(model).fit(**data, clients_val=ids[:50])
    columns = ["val_loss", "val_score", *COLUMNS]
    pd.testing.assert_frame_equal(resumed.history_[columns], whole.history_[columns])
    assert whole.history_["val_worst"].iloc[-1] in {*whole.clients_.tolist()}
    loaded = clone(model)
    whole.save(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.load(tmp_path / "model").history_, whole.history_)


def test_a_checkpoint_of_other_owners_is_not_resumed(blobs, tmp_path):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=2, random_state=0, checkpoint=tmp_path)
    data = {"X": X, "y": y, "clients": clients, "X_val": X, "y_val": y}
    histories = [
        clone(model).fit(**data, clients_val=owners).history_
        for owners in (None, clients, clients[::-1])
    ]
    assert not {*COLUMNS} & {*histories[0]}
    first, other = (history[COLUMNS] for history in histories[1:])
    assert not first.equals(other)


def test_callbacks_monitor_it(blobs):
    X, y, clients = blobs
    net = NeuralNetClassifier(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss, lr=0.1)
    stopper = EarlyStopping("val_score_worst", lower_is_better=False, patience=1, threshold=9)
    torch.manual_seed(0)
    model = FederatedClassifier(
        net.set_params(callbacks=[stopper]), selector=ALL_CLIENTS, n_rounds=9, random_state=0
    )
    given = {"clients": clients, "X_val": X, "y_val": y}
    model.fit(X, y, **given, clients_val=clients)
    recorded = model.net_.history[:, "val_score_worst"]
    assert recorded == model.history_["val_score_worst"].tolist()
    assert model.n_rounds_ == 2
    with pytest.raises(ValueError, match="'val_score_worst'.*pass clients_val, too, to fit"):
        model.fit(X, y, **given)

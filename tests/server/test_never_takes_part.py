"""Who never takes part is named at the end of a fit."""

import warnings

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.selection import BaseSelector, Cohort


class Nobody(BaseSelector):
    def _select(self, round):
        return Cohort.mean(np.empty(0, int))


def table(sizes):
    rng = np.random.default_rng(0)
    clients = np.repeat(list("abcd"), sizes)
    X = rng.normal(size=(len(clients), 3)).astype("float32")
    return X, (X[:, 0] > 0).astype(int), clients


def fit(sizes=(32, 33, 20, 40), **params):
    """With batches of 16, the last of 33 rows has one row, of which there is no variance."""
    X, y, clients = table(sizes)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, batch_size=16, lr=0.1)
    everybody = RandomSelector(1.0, "uniform", False)
    params = {"selector": everybody, "n_rounds": 4, "random_state": 0} | params
    return FederatedClassifier(net, **params).fit(X, y, clients=clients)


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_a_client_that_fails_in_every_round_is_named(engine):
    match = r"1 client\(s\), such as 'b', never took part.*failed in 4 of 4.*local_steps draws"
    with pytest.warns(UserWarning, match=match):
        model = fit(engine=engine)
    assert model.history_["n_aggregated"].tolist() == [3] * 4


@pytest.mark.parametrize("params", [{"local_steps": 2}, {"sizes": (32, 34, 20, 40)}])
def test_the_way_out(params):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fit(**params)
    assert model.history_["n_aggregated"].tolist() == [4] * 4


class Sometimes(nn.Linear):
    def forward(self, X):
        if self.training and X[0, 0] > 1:
            raise ValueError("too large")
        return super().forward(X)


def test_other_clients_that_fail_in_ten_rounds_are_named():
    X, y, clients = table((32, 33, 20, 40))
    X[clients == "c", 0] = 2
    torch.manual_seed(0)
    model = FederatedClassifier(Sometimes(3, 2), n_rounds=30, engine="loop", random_state=0)
    with pytest.warns(UserWarning, match="such as 'c', never took part.* 30 of 30 .*large"):
        model.fit(X, y, clients=clients)


def test_a_client_that_fails_now_and_then_is_not_named():
    X, y, clients = table((32, 33, 20, 40))
    model = FederatedClassifier(Sometimes(3, 2), n_rounds=12, engine="loop", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y, clients=clients)
    assert model.history_["n_failed"].sum() > 0


@pytest.mark.parametrize("n_rounds", [3, 10])
def test_a_selector_that_never_chooses_anybody_is_named(n_rounds):
    X, y, clients = table((32, 33, 20, 40))
    model = FederatedClassifier(selector=Nobody(), n_rounds=n_rounds, random_state=0)
    match = rf"in none of the {n_rounds} rounds has selector=Nobody\(\) chosen a client"
    with pytest.warns(UserWarning, match=match):
        model.fit(X, y, clients=clients)


def test_a_poll_of_rows_that_do_not_count_says_so():
    X, y, clients = table((30, 30, 30, 30))
    net = NeuralNetClassifier(
        nn.Linear(3, 2), criterion=nn.CrossEntropyLoss, criterion__ignore_index=0, batch_size=2
    )
    y[clients == "a"] = 0
    selector = PowerOfChoice(d=4, clients_per_round=2)
    model = FederatedClassifier(net, selector=selector, n_rounds=2, random_state=0)
    model.fit(X, y, clients=clients)
    assert model.history_["failed"].tolist() == [("a",)] * 2
    (cause,) = model.history_["causes"][0]
    assert cause.startswith("ValueError: it has no loss, as none of the rows")

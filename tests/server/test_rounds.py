"""Rounds against values worked out by hand, and against skorch's own training."""

import copy
from typing import ClassVar

import numpy as np
import pytest
import torch
from joblib import parallel_config
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from skorch.dataset import ValidSplit
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.selection import BaseSelector, Cohort

ALL = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)
BATCHES = []  # what the clients trained on; a list of the module, since callbacks are copied


class RecordBatches(Callback):
    def on_batch_begin(self, net, batch=None, training=None, **kwargs):
        BATCHES.append((batch[0].clone(), batch[1].clone()))


@pytest.fixture
def batches():
    BATCHES.clear()
    return BATCHES


def linear_net(n_features, n_classes, **params):
    params = {"criterion": nn.CrossEntropyLoss, "lr": 0.5, "batch_size": -1, **params}
    return NeuralNetClassifier(
        nn.Linear, module__in_features=n_features, module__out_features=n_classes, **params
    )


def test_one_round_on_two_tiny_clients_by_hand():
    """Softmax regression from zero: p = 1/2, so one step of size 1 on rows x of class 0 gives
    W = [[x/2], [-x/2]] and b = [1/2, -1/2]; class 1 the negative. Client a holds x=2 of class 0,
    client b holds x=4 of class 1 and x=8 of class 0, whose mean step is (8 - 4) / 4 = 1."""
    X = np.array([[2.0], [4.0], [8.0]])
    y = np.array([0, 1, 0])
    net = NeuralNetClassifier(
        ZeroLinear, criterion=nn.CrossEntropyLoss, lr=1.0, batch_size=-1, verbose=0
    )
    model = FederatedClassifier(net, selector=ALL, n_rounds=1).fit(X, y, clients=["a", "b", "b"])
    module = model.net_.module_
    # a: W0 = 1, b0 = 1/2; b: W0 = 1, b0 = 0; weights 1/3 and 2/3.
    np.testing.assert_allclose(module.weight.detach().ravel(), [1, -1], rtol=1e-6)
    np.testing.assert_allclose(module.bias.detach(), [1 / 6, -1 / 6], rtol=1e-6)
    assert model.history_["train_loss"][0] == pytest.approx(np.log(2))


class ZeroLinear(nn.Linear):
    def __init__(self):
        super().__init__(1, 2)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


@pytest.mark.parametrize(
    "optimizer", [{"optimizer__momentum": 0.9, "optimizer__nesterov": True}, "adam"]
)
def test_epochs_of_one_client_equal_skorchs_own_training(blobs, batches, optimizer):
    X, y, _ = blobs
    params = {"optimizer": torch.optim.Adam, "lr": 0.01} if optimizer == "adam" else optimizer
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    net = NeuralNetClassifier(
        module, criterion=nn.CrossEntropyLoss, batch_size=32, callbacks=[RecordBatches], **params
    )
    federated = FederatedClassifier(net, n_rounds=1, local_epochs=3, random_state=0)
    federated.fit(X, y, clients=np.zeros(len(y), int))
    seen = list(batches)
    assert [len(yb) for _, yb in seen] == [32, 32, 32, 32, 12] * 3

    epochs = iter([seen[:5], seen[5:10], seen[10:]])
    alone = NeuralNetClassifier(
        module,
        criterion=nn.CrossEntropyLoss,
        train_split=None,
        max_epochs=3,
        verbose=0,
        iterator_train=lambda dataset, **kwargs: Replay(epochs),
        **params,
    ).fit(X, y)
    mine, theirs = federated.net_.module_.parameters(), alone.module_.parameters()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    losses = [b["train_loss"] for epoch in alone.history for b in epoch["batches"]]
    assert federated.history_["train_loss"][0] == pytest.approx(np.mean(losses))


def test_each_client_starts_with_a_fresh_optimizer(blobs):
    """Momentum of one client does not carry over to the next: the round is the mean of two."""
    X, y, _ = blobs
    clients = np.arange(len(y)) % 2
    net = linear_net(5, 3, optimizer__momentum=0.9)
    together = FederatedClassifier(net, selector=ALL, n_rounds=2, local_steps=3, random_state=0)
    together.fit(X, y, clients=clients)

    start = FederatedClassifier(net, lr_schedule=0.0, n_rounds=1, random_state=0)
    module = start.fit(X, y, clients=clients).net_.module_
    for _ in range(2):
        trained = []
        for k in range(2):
            alone = copy.deepcopy(module)
            optimizer = torch.optim.SGD(alone.parameters(), lr=0.5, momentum=0.9)
            rows = torch.from_numpy(X[clients == k]), torch.from_numpy(y[clients == k])
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(alone(rows[0]), rows[1]).backward()
                optimizer.step()
            trained.append(alone.state_dict())
        module.load_state_dict({n: (trained[0][n] + trained[1][n]) / 2 for n in trained[0]})
    for mine, theirs in zip(together.net_.module_.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


class Replay:
    """An iterator_train that gives one recorded epoch each time it is gone through."""

    def __init__(self, epochs):
        self.epochs = epochs

    def __iter__(self):
        return iter(next(self.epochs))


def test_minibatches_are_fresh_and_all_rows_are_used_over_the_rounds(blobs, batches):
    X, y, clients = blobs
    net = linear_net(5, 3, batch_size=8, callbacks=[RecordBatches])
    model = FederatedClassifier(net, selector=ALL, n_rounds=60, local_steps=1, random_state=0)
    model.fit(X, y, clients=clients)
    rows = {x.numpy().tobytes() for Xb, _ in batches for x in Xb}
    assert rows == {x.tobytes() for x in X}
    of_the_last_client = batches[5::6]
    assert len({Xb.numpy().tobytes() for Xb, _ in of_the_last_client}) == 60


def test_epochs_in_different_rounds_are_different_permutations(blobs, batches):
    X, y, clients = blobs
    net = linear_net(5, 3, batch_size=64, callbacks=[RecordBatches])
    FederatedClassifier(net, selector=ALL, n_rounds=2, random_state=0).fit(X, y, clients=clients)
    first, second = batches[0][0], batches[6][0]
    assert not torch.equal(first, second)
    assert {x.numpy().tobytes() for x in first} == {x.numpy().tobytes() for x in second}


class Twice(BaseSelector):
    """Client 0 twice, client 1 once."""

    def _select(self, round):
        return Cohort.mean(np.array([0, 0, 1]))


def test_a_client_drawn_twice_trains_twice_independently(blobs, batches):
    X, y, clients = blobs
    net = linear_net(5, 3, batch_size=4, callbacks=[RecordBatches])
    model = FederatedClassifier(net, selector=Twice(), n_rounds=1, local_steps=1, random_state=0)
    model.fit(X, y, clients=clients)
    assert len(batches) == 3
    assert not torch.equal(batches[0][0], batches[1][0])
    row = model.history_.iloc[0]
    assert row["cohort"] == ("a", "a", "b")
    assert (row["models_down"], row["models_up"], row["n_trained"]) == (2, 3, 3)
    assert row["n_aggregated"] == 3


MODEL = (5 * 3 + 3) * 4  # bytes of the linear net below


def test_the_ledger_of_random_selection_by_hand(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(linear_net(5, 3), selector=ALL, n_rounds=2, local_epochs=3)
    history = model.fit(X, y, clients=clients).history_
    row = history.iloc[1]
    assert row["round"] == 1
    assert row["cohort"] == ("a", "b", "c", "d", "e", "f")
    assert row["polled"] == ()
    expected = {
        "models_down": 6,
        "models_up": 6,
        "scalars_down": 0,
        "scalars_up": 0,
        "bytes_down": 6 * MODEL,
        "bytes_up": 6 * MODEL,
        "samples_evaluated": 0,
        "samples_trained": 3 * 140,
        "n_polled": 0,
        "n_trained": 6,
        "n_aggregated": 6,
        "lr": 0.5,
    }
    assert row[list(expected)].to_dict() == expected
    assert np.isnan(row["objective"])


def test_the_ledger_of_power_of_choice_by_hand(blobs):
    X, y, clients = blobs
    selector = PowerOfChoice(d=6, clients_per_round=2)
    model = FederatedClassifier(linear_net(5, 3), selector=selector, n_rounds=1, local_steps=4)
    row = model.fit(X, y, clients=clients).history_.iloc[0]
    sizes = dict(zip(*np.unique(clients, return_counts=True), strict=True))
    expected = {
        "models_down": 6,  # to the candidates; the two that train have it already
        "models_up": 2,
        "scalars_down": 0,
        "scalars_up": 6,
        "bytes_down": 6 * MODEL,
        "bytes_up": 2 * MODEL + 6 * 8,
        "samples_evaluated": 140,
        "samples_trained": 4 * sum(sizes[k] for k in row["cohort"]),
        "n_polled": 6,
        "n_trained": 2,
        "n_aggregated": 2,
    }
    assert row[list(expected)].to_dict() == expected


def test_the_ledger_and_objective_of_fedalign_by_hand():
    """Zero-initialised, so every loss is log 2 in round 0. Free client "c" has flipped labels, so
    after a step it is far above F and silent; "b" is like the priority client "a"."""
    X = np.array([[1.0], [-1.0]] * 3)
    y = np.array([0, 1, 0, 1, 1, 0])
    net = NeuralNetClassifier(ZeroLinear, criterion=nn.CrossEntropyLoss, lr=1.0, batch_size=-1)
    model = FederatedClassifier(
        net, selector=FedAlignSelector(eps=0.1, warmup=1), priority=["a"], n_rounds=2
    ).fit(X, y, clients=list("aabbcc"))
    warm, aligned = model.history_.iloc[0], model.history_.iloc[1]
    assert (warm["cohort"], warm["polled"]) == (("a",), ())
    assert np.isnan(warm["objective"])
    assert (warm["models_down"], warm["models_up"], warm["scalars_down"]) == (1, 1, 0)
    # One step of size 1 on a: W = [1/2, -1/2], b = 0: the margin is 1 on each row.
    assert aligned["objective"] == pytest.approx(np.log1p(np.exp(-1)))
    assert (aligned["cohort"], aligned["polled"]) == (("a", "b"), ("a", "b", "c"))
    expected = {
        "models_down": 3,
        "models_up": 2,
        "scalars_down": 2,  # the bound, to b and c
        "scalars_up": 2,  # F_a and F_b; c is silent
        "bytes_down": 3 * 16 + 2 * 8,
        "bytes_up": 2 * 16 + 2 * 8,
        "samples_evaluated": 6,
        "samples_trained": 4,
        "n_polled": 3,
        "n_trained": 2,
        "n_aggregated": 2,
    }
    assert aligned[list(expected)].to_dict() == expected


class PollsOdd(BaseSelector):
    """Asks for the error of a batch, and for a loss on two rows, and trains client 0."""

    def _select(self, round):
        errors = round.poll([0, 1], metric="error", max_samples="batch")
        assert ((errors >= 0) & (errors <= 1)).all()
        round.poll([1], max_samples=2)
        return Cohort.mean(np.array([0]))


def test_a_partial_poll_evaluates_distinct_rows(blobs):
    X, y, clients = blobs
    sizes = []

    class CountRows(nn.Linear):
        def forward(self, rows):
            if not torch.is_grad_enabled() and len(rows) > 1:
                sizes.append(len({row.numpy().tobytes() for row in rows}))
            return super().forward(rows)

    selector = PowerOfChoice(d=6, clients_per_round=1, loss="batch")
    net = linear_net(5, 3, batch_size=9).set_params(module=CountRows)
    FederatedClassifier(net, selector=selector, n_rounds=3, engine="loop").fit(
        X, y, clients=clients
    )
    assert sizes == [9] * 18


class KeepsAnswers(BaseSelector):
    """Polls all for their loss and keeps the answers; trains client 0."""

    answers: ClassVar[list[np.ndarray]] = []

    def _select(self, round):
        self.answers.append(round.poll(np.arange(len(round.sizes))))
        return Cohort.mean(np.array([0]))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_poll_is_of_the_rows_that_train_not_powd_validation_rows(blobs, engine):
    """A published copy of power-of-choice polls for the loss of each client's validation rows."""
    X, y, clients = blobs
    net = linear_net(5, 3).set_params(train_split=ValidSplit(2))
    model = FederatedClassifier(
        net, selector=KeepsAnswers(), lr_schedule=0.0, n_rounds=1, engine=engine, random_state=0
    )
    model.fit(X, y, clients=clients, X_val=X[:2], y_val=y[:2])
    losses = -np.log(model.predict_proba(X)[np.arange(len(y)), y])
    expected = [losses[clients == k].mean() for k in np.unique(clients)]
    np.testing.assert_allclose(KeepsAnswers.answers.pop(), expected, rtol=1e-5)


def test_the_training_loss_is_weighted_as_the_updates_are(blobs):
    X, y, clients = blobs
    net = linear_net(5, 3)
    weighted = FederatedClassifier(net, selector=ALL, n_rounds=1, local_steps=1, random_state=0)
    row = weighted.fit(X, y, clients=clients).history_.iloc[0]
    # One full batch a client at the initial model, weighted by size: the loss over all rows.
    frozen = FederatedClassifier(net, lr_schedule=0.0, n_rounds=1, random_state=0)
    probabilities = frozen.fit(X, y, clients=clients).predict_proba(X)[np.arange(len(y)), y]
    assert row["train_loss"] == pytest.approx(-np.log(probabilities).mean(), rel=1e-5)


class Tied(nn.Module):
    """Two layers that share a weight, a buffer that is not saved, and one that is."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5, bias=False)
        self.second = nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(5, 3, bias=False)
        self.register_buffer("calls", torch.zeros(1), persistent=False)

    def forward(self, X):
        if self.training:
            self.calls += 1
        return self.head(self.second(self.first(X)) * (1 + self.calls))


class Scaled(nn.CrossEntropyLoss):
    """A criterion with class weights (a setting) and a parameter (part of the model)."""

    def __init__(self):
        super().__init__(weight=torch.ones(3))
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, output, target):
        return super().forward(output * self.temperature, target)


def test_a_model_is_each_parameter_and_buffer_once(blobs, same_model):
    X, y, clients = blobs
    net = NeuralNetClassifier(Tied, criterion=Scaled, lr=0.01)
    params = {"selector": ALL, "n_rounds": 2, "random_state": 0}
    model = FederatedClassifier(net, **params).fit(X, y, clients=clients)
    assert model.history_["bytes_up"][0] == 6 * 4 * (25 + 15 + 1 + 1)
    with parallel_config(backend="loky"):
        parallel = FederatedClassifier(net, n_jobs=2, **params).fit(X, y, clients=clients)
    assert same_model(model, parallel)
    assert model.net_.module_.calls.item() == 2  # one batch a client and round, averaged
    assert model.net_.criterion_.temperature.item() != 1


def test_partial_polls_are_charged_for_what_they_evaluate(blobs):
    X, y, clients = blobs
    net = linear_net(5, 3, batch_size=15)
    model = FederatedClassifier(net, selector=PollsOdd(), n_rounds=1).fit(X, y, clients=clients)
    row = model.history_.iloc[0]
    assert row["samples_evaluated"] == 10 + 15 + 2  # a has 10 rows, b 20
    assert (row["n_polled"], row["scalars_up"], row["models_down"]) == (3, 3, 2)
    assert np.isnan(row["objective"])


class Reports(BaseSelector):
    """Notes what the clients reported and trains client 1."""

    seen = ()

    def _select(self, round):
        Reports.seen = (*Reports.seen, round.reported.copy())
        return Cohort.mean(np.array([1]))


def test_the_last_training_loss_is_reported_and_infinite_before(blobs):
    X, y, clients = blobs
    Reports.seen = ()
    model = FederatedClassifier(linear_net(5, 3), selector=Reports(), n_rounds=1, random_state=0)
    model.fit(X, y, clients=clients).partial_fit(X, y, clients=clients)
    assert np.isinf(Reports.seen[0]).all()
    assert Reports.seen[1][1] == model.history_["train_loss"][0]
    assert np.isinf(np.delete(Reports.seen[1], 1)).all()


class Nobody(BaseSelector):
    def _select(self, round):
        return Cohort.mean(np.empty(0, int))


def test_an_empty_cohort_keeps_the_model_and_is_recorded(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(selector=Nobody(), n_rounds=2).fit(X, y, clients=clients)
    assert not any(parameter.any() for parameter in model.net_.module_.parameters())
    assert model.history_["cohort"].tolist() == [(), ()]
    # Before round 0 each of 6 clients has sent three moments of 5 columns, and 3 shares.
    assert model.history_["bytes_up"].tolist() == [6 * (3 * 5 + 3) * 8, 0]


def test_the_objective_is_the_weighted_loss_of_the_priority_clients(blobs):
    X, y, clients = blobs
    selector = PowerOfChoice(d=1.0, clients_per_round=1, ignore_priority=True)
    model = FederatedClassifier(selector=selector, priority=["b", "d"], n_rounds=2, random_state=0)
    model.fit(X, y, clients=clients)
    after_one = FederatedClassifier(
        selector=selector, priority=["b", "d"], n_rounds=1, random_state=0
    ).fit(X, y, clients=clients)
    rows = np.isin(clients, ["b", "d"])
    probabilities = after_one.predict_proba(X[rows])[np.arange(rows.sum()), y[rows]]
    assert model.history_["objective"][1] == pytest.approx(-np.log(probabilities).mean(), rel=1e-5)


def test_a_diverged_client_is_named():
    X, y = np.array([[1e30], [-1e30]], dtype=np.float32), np.array([0, 1])
    net = NeuralNetClassifier(ZeroLinear, criterion=nn.CrossEntropyLoss, lr=1e30)
    with pytest.raises(
        ValueError, match=r"not finite.*lower the learn[^$]*client 'bad' in round 0"
    ):
        FederatedClassifier(net, n_rounds=2, on_client_error="raise").fit(
            X, y, clients=["bad", "bad"]
        )
    with pytest.raises(ValueError, match=r"not finite[^$]*client 'bad'; every client failed in ev"):
        FederatedClassifier(net, n_rounds=2).fit(X, y, clients=["bad", "bad"])

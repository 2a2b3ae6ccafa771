"""Small polls and trainings of the loop engine are not sent to other processes."""

import os
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from joblib import parallel_config
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice
from skfed.engines._loop import LoopEngine
from skfed.engines.workers import _net_cost
from skfed.engines.workers._net_cost import FORWARD, STEP, NetCost

N_CLIENTS = 6


class Sum(nn.Module):
    """A criterion of one operation, which writes one number."""

    def forward(self, output, y):
        return (output[0] if isinstance(output, tuple) else output).sum()


def cost_of(module, X, criterion=Sum):
    net = NeuralNetRegressor(module, criterion=criterion).initialize()
    return NetCost.of(net, X, torch.ones(len(X), 3))


def test_a_stack_is_counted_as_by_hand():
    """Products of 5 x 4 and 4 x 3 weights, an activation between them, and 39 float32."""
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    cost = cost_of(module, torch.ones(8, 5))
    assert cost == NetCost(
        model_bytes=4 * 39,
        n_operations=3 + 1,
        row_flops=2 * (20 + 12),
        row_bytes=4 * (4 + 4 + 3 + 1 / 8),
    )
    # 10 evaluations with 1,000 rows in all; then as many steps, of three passes each.
    row = 64 * 1e-11 + 44.5 * 1e-10
    assert cost.seconds(FORWARD, 10, 1000) == pytest.approx(
        10 * (1.9e-4 + 4 * 2e-6 + 2 * 156e-10) + 1000 * row
    )
    assert cost.seconds(STEP, 10, 1000) == pytest.approx(
        10 * (1.9e-4 + 3 * (4 * 2e-6 + 2 * 156e-10)) + 3 * 1000 * row
    )


class Products(nn.Module):
    """A criterion that multiplies the outputs of each row with those of all."""

    def forward(self, output, y):
        return (output @ output.mT).exp().mean()


def test_the_products_of_a_criterion_are_counted():
    cost = cost_of(nn.Linear(5, 3), torch.ones(8, 5), Products)
    assert cost.row_flops == 2 * 5 * 3 + 2 * 3 * 8
    assert cost.n_operations == 1 + 3


def test_the_products_of_a_convolution_are_counted():
    """3 x 3 weights of 2 channels at each of 6 x 6 places."""
    assert cost_of(nn.Conv2d(1, 2, 3), torch.ones(4, 1, 8, 8)).row_flops == 2 * 9 * 2 * 36


@pytest.mark.parametrize(("kind", "n_gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
def test_the_products_of_recurrent_layers_are_counted(kind, n_gates):
    """Two layers, each forward and backward, over 9 places of 5 columns, with 3 units a gate."""
    module = kind(5, 3, num_layers=2, bidirectional=True, batch_first=True)
    cost = cost_of(module, torch.ones(7, 9, 5))
    assert cost.row_flops == 9 * 2 * n_gates * 3 * 2 * ((5 + 3) + (6 + 3))


def test_a_recurrent_layer_has_some_operations_for_each_place():
    counts = [
        cost_of(nn.GRU(5, 3, batch_first=True), torch.ones(7, n, 5)).n_operations for n in (10, 30)
    ]
    assert 2.5 < counts[1] / counts[0] <= 3


class Attending(nn.Linear):
    """Attention of places to each other by 2 heads."""

    def forward(self, X):
        X = super().forward(X).unflatten(2, (2, 3)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(X, X, X)


@pytest.mark.parametrize(
    ("module", "n_columns_of_products"),
    [(Attending(6, 6), 6), (nn.TransformerEncoderLayer(6, 2, 5, batch_first=True), 4 * 6 + 2 * 5)],
    ids=["attention", "layer"],
)
def test_the_products_of_attention_are_counted(module, n_columns_of_products):
    """With the keys and with the values, 3 columns a head; then those of 6 columns a place."""
    cost = cost_of(module, torch.ones(7, 9, 6))
    assert cost.row_flops == 2 * (2 * 2 * 9 * 9 * 3) + 9 * 2 * 6 * n_columns_of_products


class Failing(nn.Linear):
    def forward(self, X):
        raise ValueError("no")


def test_a_net_that_fails_is_unknown():
    assert cost_of(Failing(5, 3), torch.ones(7, 5)) is None


def test_a_net_whose_module_has_another_name_is_unknown():
    class Renamed(NeuralNetClassifier):
        def initialize_module(self):
            self.layer_ = nn.Linear(5, 3)
            return self

        def infer(self, x, **fit_params):
            return self.layer_(x)

    net = Renamed(nn.Linear, criterion=nn.CrossEntropyLoss).initialize()
    assert NetCost.of(net, torch.ones(7, 5), torch.ones(7, dtype=torch.long)) is None


@pytest.mark.parametrize(
    ("seconds", "n_workers", "model_bytes", "expected"),
    [
        # Two workers save half, four three quarters; 25 ms, and 10 ns a byte and worker, are lost.
        (0.051, 2, 0, True),
        (0.049, 2, 0, False),
        (0.034, 4, 0, True),
        (0.033, 4, 0, False),
        (0.091, 2, 10**6, True),
        (0.089, 2, 10**6, False),
    ],
)
def test_sending_must_take_less_time_than_it_saves(seconds, n_workers, model_bytes, expected):
    assert NetCost(model_bytes, 1, 1.0, 1.0).is_worth_sharing(seconds, n_workers) is expected


@pytest.fixture
def cost_in_fit(monkeypatch):
    """Return a function that fits a net with two jobs, and returns the cost that was found."""
    found = []
    real = LoopEngine.__init__

    def kept(self, *arguments):
        found.append(arguments[4])
        real(self, *arguments)

    def fit(net, X, y, clients):
        monkeypatch.setattr(LoopEngine, "__init__", kept)
        FederatedClassifier(net, n_rounds=1, engine="loop", n_jobs=2).fit(X, y, clients=clients)
        return found[-1]

    return fit


class ManySteps(NeuralNetClassifier):
    def train_step(self, batch, **fit_params):
        return [super(ManySteps, self).train_step(batch, **fit_params) for _ in range(9)][-1]


class Smooth(nn.Module):
    def forward(self, output, y):
        return nn.functional.cross_entropy(output, y, label_smoothing=0.1)


class Penalty(nn.CrossEntropyLoss):
    """A criterion that needs the gradient of its loss."""

    def forward(self, output, y):
        loss = super().forward(output, y)
        return loss + torch.autograd.grad(loss, output, create_graph=True)[0].square().sum()


class Twice(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        return super().step(closure)


@pytest.mark.parametrize(
    ("kind", "settings", "known"),
    [
        (NeuralNetClassifier, {}, True),
        (NeuralNetClassifier, {"criterion": Smooth}, True),
        (NeuralNetClassifier, {"optimizer": torch.optim.Adamax}, True),
        (ManySteps, {}, False),
        (NeuralNetClassifier, {"optimizer": torch.optim.LBFGS}, False),
        (NeuralNetClassifier, {"optimizer": torch.optim.Adafactor}, False),
        (NeuralNetClassifier, {"criterion": Penalty}, False),
        (NeuralNetClassifier, {"optimizer": Twice}, False),
    ],
    ids=[
        "plain",
        "own criterion",
        "Adamax",
        "own steps",
        "LBFGS",
        "Adafactor",
        "penalty",
        "own optimizer",
    ],
)
def test_a_step_of_more_than_its_passes_is_unknown(blobs, cost_in_fit, kind, settings, known):
    X, y, clients = blobs
    net = kind(nn.Linear(5, 3), **{"criterion": nn.CrossEntropyLoss, **settings})
    assert (cost_in_fit(net, X, y, clients) is not None) is known


class Pairs(nn.CrossEntropyLoss):
    """A criterion that compares each row with each other."""

    def forward(self, output, y):
        return super().forward(output, y) + (output @ output.mT).mean()


@pytest.mark.parametrize(("batch_size", "n_rows"), [(18, 16), (-1, 70), (66, 52)])
def test_a_row_costs_what_it_costs_in_a_batch(cost_in_fit, batch_size, n_rows):
    """A row of three clients of 10 rows and one of 90 is in a batch of so many, on average."""
    clients = np.repeat(range(4), [10, 10, 10, 90])
    X, y = np.ones((120, 5), dtype=np.float32), np.arange(120) % 3
    net = NeuralNetClassifier(nn.Linear(5, 3), criterion=Pairs, batch_size=batch_size)
    assert cost_in_fit(net, X, y, clients).row_flops == 2 * 5 * 3 + 2 * 3 * n_rows


def recording(folder):
    """Return modules that leave a file with the number of the process that uses them."""

    class Recording(nn.Linear):  # in here, since joblib sends such a class by value
        def __init__(self):
            super().__init__(5, 3)

        def forward(self, X):
            (folder / str(os.getpid())).touch()
            return super().forward(X)

    return Recording


@pytest.mark.parametrize(
    ("backend", "round_trip", "elsewhere"),
    [(None, 0.025, False), (None, 0.0, True), ("loky", 0.025, True)],
    ids=["small", "large", "named"],
)
def test_small_rounds_stay_in_this_process(
    blobs, same_model, tmp_path, monkeypatch, backend, round_trip, elsewhere
):
    """Unless a backend is named."""
    X, y, clients = blobs
    monkeypatch.setattr(_net_cost, "_ROUND_TRIP", round_trip)
    net = NeuralNetClassifier(recording(tmp_path), criterion=nn.CrossEntropyLoss)
    params = {"selector": PowerOfChoice(d=N_CLIENTS, clients_per_round=4), "n_rounds": 2}
    params |= {"engine": "loop", "random_state": 0}
    with parallel_config(backend=backend) if backend else nullcontext():
        two = FederatedClassifier(net, n_jobs=2, **params).fit(X, y, clients=clients)
    processes = {int(path.name) for path in tmp_path.iterdir()}
    assert (processes != {os.getpid()}) is elsewhere
    one = FederatedClassifier(net, **params).fit(X, y, clients=clients)
    assert same_model(one, two)
    np.testing.assert_array_equal(one.history_["objective"], two.history_["objective"])

"""Recurrent layers in the stacked engine against the loop engine, which is the reference."""

import pytest
import torch
from parity import assert_same, both, net
from torch import nn

from skfed import FederatedClassifier


class Reader(nn.Module):
    """Reads five features one after the other; the states before the first are trained too."""

    def __init__(self, layer, n_classes=6):
        super().__init__()
        self.rnn = layer
        n_ways = 1 + layer.bidirectional
        self.first = nn.Parameter(torch.zeros(layer.num_layers * n_ways, 1, layer.hidden_size))
        n_outputs = n_ways * layer.hidden_size * (1 + layer.num_layers)
        self.out = nn.Linear(n_outputs, n_classes)

    def forward(self, X):
        steps = X[:, :5].unsqueeze(2)
        first = self.first.expand(-1, len(X), -1).contiguous()
        if not self.rnn.batch_first:
            steps = steps.transpose(0, 1)
        if isinstance(self.rnn, nn.LSTM):
            output, (_, last) = self.rnn(steps, (first, first.tanh()))
        else:
            output, last = self.rnn(steps, first)
        if not self.rnn.batch_first:
            output = output.transpose(0, 1)
        weights = torch.arange(1, 6, dtype=X.dtype).unsqueeze(1)  # another for each step
        of_steps = (weights * output).sum(1)
        return self.out(torch.cat([of_steps, last.transpose(0, 1).flatten(1)], 1))


class FromCells(nn.Module):
    """The same by a cell, which has no batching rule: each client's loss is differentiated."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(1, 4)
        self.out = nn.Linear(4, 6)

    def forward(self, X):
        h = None
        for step in X[:, :5].unbind(1):
            h = self.cell(step.unsqueeze(1), h)
        return self.out(h)


class Projected(nn.Module):
    """An LSTM whose outputs have fewer features than its memory."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(1, 4, proj_size=2, batch_first=True)
        self.out = nn.Linear(2, 6)

    def forward(self, X):
        return self.out(self.rnn(X[:, :5].unsqueeze(2))[0][:, -1])


class Packed(nn.Module):
    """Reads rows of different lengths."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 4, batch_first=True)
        self.out = nn.Linear(4, 6)

    def forward(self, X):
        lengths = torch.full((len(X),), 5)
        steps = nn.utils.rnn.pack_padded_sequence(X[:, :5].unsqueeze(2), lengths, batch_first=True)
        return self.out(self.rnn(steps)[1][0])


LAYERS = {
    "gru": lambda: nn.GRU(1, 4, batch_first=True),
    "gru, time first": lambda: nn.GRU(1, 4),
    "gru without biases": lambda: nn.GRU(1, 4, bias=False, batch_first=True),
    "gru of two layers in both directions": lambda: nn.GRU(1, 4, 2, bidirectional=True),
    "lstm": lambda: nn.LSTM(1, 4, batch_first=True),
    "lstm in both directions": lambda: nn.LSTM(1, 4, bidirectional=True),
    "lstm of two layers without biases": lambda: nn.LSTM(1, 4, 2, bias=False),
    "tanh": lambda: nn.RNN(1, 4, batch_first=True),
    "relu of two layers": lambda: nn.RNN(1, 4, 2, nonlinearity="relu"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_on_ragged_clients(ragged, layer):
    torch.manual_seed(0)
    module = Reader(LAYERS[layer]()).double()
    loop, stacked = both(ragged, net(module, optimizer__momentum=0.9), local_epochs=2)
    assert_same(loop, stacked)
    before = dict(module.named_parameters())
    for name, after in stacked.net_.module_.named_parameters():
        assert (after - before[name]).abs().max() > 1e-4  # each is trained


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_they_are_stacked_in_float32(ragged, kind):
    """torch computes an LSTM of float32 by oneDNN, for which torch.func has no batching rule."""
    X, y, clients = ragged
    torch.manual_seed(0)
    estimator = net(Reader(kind(1, 4, batch_first=True)))
    loop, stacked = both((X.astype("float32"), y, clients), estimator)
    assert_same(loop, stacked, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_the_bits_are_the_same_for_two_jobs(ragged, kind, same_model):
    X, y, clients = ragged
    torch.manual_seed(0)
    estimator = net(Reader(kind(1, 4, batch_first=True)).double())
    params = {"engine": "stacked", "memory_budget": 2**18, "random_state": 0, "n_rounds": 2}
    one, two = (
        FederatedClassifier(estimator, n_jobs=n_jobs, **params).fit(X, y, clients=clients)
        for n_jobs in (1, 2)
    )
    assert same_model(one, two)


def test_a_cell(ragged):
    torch.manual_seed(0)
    assert_same(*both(ragged, net(FromCells().double()), local_epochs=2))


@pytest.mark.parametrize(
    "module",
    [Packed(), Reader(nn.GRU(1, 4, 2, dropout=0.5))],
    ids=["rows of different lengths", "dropout between layers"],
)
def test_what_the_loop_trains(ragged, module):
    X, y, clients = ragged
    model = FederatedClassifier(net(module.double()), n_rounds=1).fit(X, y, clients=clients)
    assert model.engine_.startswith("loop: ")


def test_a_projection_is_left_to_torch(ragged):
    torch.manual_seed(0)
    assert_same(*both(ragged, net(Projected().double())))

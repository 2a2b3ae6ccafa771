"""Recurrent layers in the stacked engine against the loop engine, which is the reference."""

import inspect
import re
import sys
from functools import partial

import numpy as np
import pytest
import torch
from parity import ALL, assert_same, both, net
from torch import nn

from skfed import FederatedClassifier
from skfed.engines.products._recurrent import StackedRecurrence
from skfed.engines.products._recurrent_layer import CELLS, RecurrentLayer


class Reader(nn.Module):
    """Reads five features one after the other; the states before the first are trained too."""

    def __init__(self, layer, n_classes=6):
        super().__init__()
        self.rnn = layer
        n_directions = 1 + layer.bidirectional
        n_states = n_directions * layer.num_layers
        self.initial = nn.Parameter(torch.zeros(n_states, 1, layer.hidden_size))
        self.out = nn.Linear((n_directions + n_states) * layer.hidden_size, n_classes)

    def forward(self, X):
        steps = X[:, :5].unsqueeze(2)
        initial = self.initial.expand(-1, len(X), -1).contiguous()
        if not self.rnn.batch_first:
            steps = steps.transpose(0, 1)
        output, last = self.rnn(steps, initial)
        if not self.rnn.batch_first:
            output = output.transpose(0, 1)
        weights = torch.arange(1, 6, dtype=X.dtype).unsqueeze(1)  # another for each step
        of_steps = (weights * output).sum(1)
        return self.out(torch.cat([of_steps, last.transpose(0, 1).flatten(1)], 1))


class Twice(nn.Module):
    """A layer that is used twice and one whose weights of the hidden state are not trained."""

    def __init__(self):
        super().__init__()
        self.first = nn.GRU(1, 4)
        self.second = nn.GRU(4, 4)
        self.second.weight_hh_l0.requires_grad_(False)
        self.out = nn.Linear(8, 6)

    def forward(self, X):
        both = [self.first(X[None, :, i : i + 5].permute(2, 1, 0))[0] for i in (0, 5)]
        rows = torch.stack([self.second(output)[0] for output in both]).view(2, 5, -1, 4)
        other = both[0].view(-1, 4).view(5, -1, 4)  # contiguous, as torch's
        return self.out(torch.cat([rows.mean((0, 1)), other.mean(0)], 1))


class OneSequence(nn.Module):
    """The rows of a batch, after a linear layer, each as an input without a batch."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(1, 4)
        self.out = nn.Linear(4, 6)

    def forward(self, X):
        return self.out(torch.stack([self.rnn(row[:5, None])[1][0] for row in X]))


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


MODULES = {
    "gru": lambda: Reader(nn.GRU(1, 4, batch_first=True)),
    "gru, time first": lambda: Reader(nn.GRU(1, 4)),
    "gru without biases": lambda: Reader(nn.GRU(1, 4, bias=False, batch_first=True)),
    "gru of two layers in both directions": lambda: Reader(nn.GRU(1, 4, 2, bidirectional=True)),
    "gru in both directions": lambda: Reader(nn.GRU(1, 4, bidirectional=True)),
    "gru of two layers without biases": lambda: Reader(nn.GRU(1, 4, 2, bias=False)),
    "tanh": lambda: Reader(nn.RNN(1, 4, batch_first=True)),
    "tanh in both directions without biases": lambda: Reader(
        nn.RNN(1, 4, bias=False, bidirectional=True)
    ),
    "relu of two layers": lambda: Reader(nn.RNN(1, 4, 2, nonlinearity="relu")),
    "one after the other, twice": Twice,
    "without a batch": OneSequence,
}


@pytest.mark.parametrize("module", MODULES)
def test_each_module_on_ragged_clients(ragged, module):
    torch.manual_seed(0)
    module = MODULES[module]().double()
    loop, stacked = both(ragged, net(module, optimizer__momentum=0.9), local_epochs=2)
    assert_same(loop, stacked)
    before = dict(module.named_parameters())
    for name, after in stacked.net_.module_.named_parameters():
        moved = (after - before[name]).abs().max()
        assert moved > 1e-4 if after.requires_grad else moved == 0


def test_gradients_by_hand():
    """One unit of ReLU, with weights of 3 and 4 and no biases, reads 1 and 2.

    h is 3 * 1 = 3, then 3 * 2 + 4 * 3 = 18. The last is 3 x_2 + 4 * 3 x_1.
    """
    inputs = torch.tensor([1.0, 2.0], requires_grad=True)
    weight_ih, weight_hh, initial = (torch.tensor([w], requires_grad=True) for w in (3.0, 4.0, 0.0))
    ih, hh, h = (one.view(1, 1, 1) for one in (weight_ih, weight_hh, initial))
    cell, sequence = CELLS[torch.rnn_relu], inputs.view(1, 1, 2, 1)
    outputs = RecurrentLayer.apply(cell, False, sequence, ih, hh, None, None, h)
    assert outputs.flatten().tolist() == [3, 18]
    outputs[0, 0, 1].backward()
    assert inputs.grad.tolist() == [12, 3]
    assert weight_ih.grad.item() == 2 + 4 * 1
    assert weight_hh.grad.item() == 3  # h after the first step; that before it is 0
    assert initial.grad.item() == 4 * 4


CELL_GATES = {torch.gru: 3, torch.rnn_tanh: 1, torch.rnn_relu: 1}


def drawn_arguments(kind):
    """Return random inputs, parameters and initial states of two clients for ``RecurrentLayer``."""
    generator = torch.Generator().manual_seed(0)
    gates = CELL_GATES[kind] * 3
    shapes = [(4, 5, 2), (gates, 2), (gates, 3), (gates,), (gates,), (4, 3)]
    return [
        torch.randn(2, *shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", CELL_GATES, ids=lambda kind: kind.__name__)
def test_gradients_are_those_of_finite_differences(kind, reverse):
    layer = partial(RecurrentLayer.apply, CELLS[kind], reverse)
    assert torch.autograd.gradcheck(layer, drawn_arguments(kind))


@pytest.mark.parametrize("kind", CELL_GATES, ids=lambda kind: kind.__name__)
def test_nan_of_one_client_changes_no_bit_of_another(kind):
    """And a second backward pass has the gradients of the first."""
    found = []
    for value in (1.0, torch.nan):
        inputs, *others = drawn_arguments(kind)
        inputs.data[0, 1, 2] = value
        outputs = RecurrentLayer.apply(CELLS[kind], False, inputs, *others)
        weights = torch.arange(1.0, 6).unsqueeze(1)  # another for each step
        total = (weights * outputs).sum((1, 2, 3)).sum()
        first, second = (
            torch.autograd.grad(total, [inputs, *others], retain_graph=True) for _ in range(2)
        )
        for one, other in zip(first, second, strict=True):
            assert torch.equal(one.nan_to_num(0), other.nan_to_num(0))
        found.append([outputs, *first])
    assert found[1][0][0].isnan().any()
    for finite, other in zip(*found, strict=True):
        assert torch.equal(other[1], finite[1])


@pytest.mark.parametrize("module", ["gru", "gru in both directions", "tanh", "relu of two layers"])
def test_no_function_of_python_is_called_at_each_step_in_time(module):
    """Resuming a generator is not counted: it keeps its own frame."""
    rnn = MODULES[module]().rnn
    n_calls = [_count_calls(rnn, torch.zeros(2, n_steps, 3, 1)) for n_steps in (5, 20)]
    assert n_calls[0] == n_calls[1] > 0


def _count_calls(rnn, X):
    """Return how many Python functions outputs and gradients call for a stack of inputs."""
    n_calls = 0

    def count(frame, event, argument):
        nonlocal n_calls
        n_calls += event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR

    def counted(function, *arguments):
        sys.setprofile(count)
        try:
            return function(*arguments)
        finally:
            sys.setprofile(None)

    rnn.batch_first = True
    with StackedRecurrence():
        outputs = torch.func.vmap(lambda rows: counted(rnn, rows)[0])(X.transpose(1, 2))
    n_forward = n_calls
    counted(outputs.sum().backward)
    assert n_calls > n_forward
    return n_calls


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_float32(ragged, kind):
    X, y, clients = ragged
    torch.manual_seed(0)
    estimator = net(Reader(kind(1, 4, batch_first=True)))
    loop, stacked = both((X.astype("float32"), y, clients), estimator)
    assert_same(loop, stacked, atol=1e-5)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_fused_optimizers(ragged, optimizer):
    """They read gradients in the order of memory."""
    torch.manual_seed(0)
    module = Reader(nn.GRU(1, 4, batch_first=True)).double()
    settings = {"optimizer": optimizer, "optimizer__fused": True, "lr": 0.01}
    assert_same(*both(ragged, net(module, **settings)), atol=1e-7)


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_the_bits_are_the_same_for_two_jobs(ragged, kind, same_model):
    X, y, clients = ragged
    torch.manual_seed(0)
    estimator = net(Reader(kind(1, 4, batch_first=True)).double())
    # Each client is a chunk.
    params = {"engine": "stacked", "selector": ALL, "memory_budget": 1, "random_state": 0}
    one, two = (
        FederatedClassifier(estimator, n_jobs=n_jobs, n_rounds=2, **params).fit(
            X, y, clients=clients
        )
        for n_jobs in (1, 2)
    )
    assert same_model(one, two)


def test_a_client_that_is_not_finite_changes_no_other(ragged):
    X, y, clients = ragged
    X = X.copy()
    X[clients == 3, :5] = 1e308  # its sums overflow
    torch.manual_seed(0)
    estimator = net(Reader(nn.RNN(1, 4, nonlinearity="relu", batch_first=True)).double())
    loop, stacked = both((X, y, clients), estimator)
    assert_same(loop, stacked)
    assert all(3 not in cohort for cohort in stacked.history_["cohort"])


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Packed(), "torch.func cannot batch"),
        (Reader(nn.GRU(1, 4, 2, dropout=0.5)), "draws random numbers other than by dropout"),
    ],
    ids=["rows of different lengths", "dropout between layers"],
)
def test_what_the_loop_trains(ragged, module, reason):
    X, y, clients = ragged
    model = FederatedClassifier(net(module.double()), n_rounds=1).fit(X, y, clients=clients)
    assert model.engine_.startswith("loop: ")
    assert reason in model.engine_


class Last(nn.Module):
    """The output of a recurrent layer after the last step."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.out = nn.Linear(layer.hidden_size, 3)

    def forward(self, X):
        return self.out(self.layer(X)[0][:, -1])


TOO_LARGE = "loop: on a CPU, a step with so much to compute gains nothing"


@pytest.mark.parametrize(
    ("layer", "batch_size", "chosen"),
    [
        (nn.GRU(28, 64, batch_first=True), 32, "stacked: torch.func"),
        (nn.GRU(28, 256, batch_first=True), 32, "stacked: torch.func"),
        (nn.GRU(28, 512, batch_first=True), 32, TOO_LARGE),
        (nn.RNN(28, 512, batch_first=True), 32, "stacked: torch.func"),
        (nn.RNN(28, 768, batch_first=True), 32, TOO_LARGE),
    ],
    ids=str,
)
def test_auto_stacks_them_as_far_as_it_gains(layer, batch_size, chosen):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(64, 28, 28)).astype("float32"), rng.integers(0, 3, 64)
    model = FederatedClassifier(net(Last(layer), batch_size=batch_size), n_rounds=1)
    assert model.fit(X, y, clients=np.arange(64) % 2).engine_ == chosen


def test_the_loop_trains_an_lstm():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(8, 2, 28)).astype("float32"), rng.integers(0, 3, 8)
    model = FederatedClassifier(net(Last(nn.LSTM(28, 4, batch_first=True))), n_rounds=1)
    reason = "the module has an nn.LSTM, which only the loop trains"
    assert model.fit(X, y, clients=np.arange(8) % 2).engine_ == f"loop: {reason}"
    message = f"engine='stacked' cannot run this estimator: {reason}. Pass engine='auto'"
    with pytest.raises(ValueError, match=re.escape(message)):
        model.set_params(engine="stacked").fit(X, y, clients=np.arange(8) % 2)


class OfConstants(nn.Module):
    """Adds the output of a layer that is not registered, for inputs that are the same for all."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 6, batch_first=True)
        self.others = [nn.GRU(1, 6).double()]  # not among the parameters

    def forward(self, X):
        constants = self.others[0](torch.ones(3, 1, 1, dtype=X.dtype))[1][0]
        return self.rnn(X[:, :5].unsqueeze(2))[1][0] + constants


def test_a_layer_without_anything_of_a_client_is_left_to_the_loop(ragged):
    X, y, clients = ragged
    model = FederatedClassifier(net(OfConstants().double()), n_rounds=1)
    chosen = model.fit(X, y, clients=clients).engine_
    assert chosen.endswith("a recurrent layer whose inputs and weights are not batched")


def test_a_batched_weight_has_no_address():
    """nn.RNNBase asks for the addresses of weights on a GPU."""
    weight, seen = torch.ones(2), []

    def ask(batched):
        seen.extend([batched.data_ptr(), weight.data_ptr()])
        return batched

    with StackedRecurrence():
        torch.func.vmap(ask)(torch.ones(3, 2))
    assert seen == [0, weight.data_ptr()]

"""The first layer of clients that train on few rows, whose steps are kept as products."""

import numpy as np
import pytest
import torch
from families import Focal
from joblib import parallel_config
from parity import ALL, assert_same, both, flat, net
from torch import nn

from skfed import FederatedClassifier
from skfed.aggregation import CoordinateMedian, NormClipping, Scaffold, WeightedMean
from skfed.aggregation._low_rank import LowRankStack
from skfed.engines import _stacked_steps
from skfed.engines._data import Memory
from skfed.engines._linear import CrossEntropy, Linear, LinearStack
from skfed.engines._low_rank import LowRankLinear, most_rows
from skfed.engines._replies import collect
from skfed.engines._requests import LocalTraining, TrainRequest
from skfed.privacy import GaussianMechanism
from skfed.schedules import BaseSchedule
from skfed.selection import Cohort

N_INPUTS, N_HIDDEN = 260, 40  # so that up to 40 rows are few
SIZES = [2, 40, 7, 18, 60, 34, 10, 25, 41]  # the fifth and the last have too many


@pytest.fixture(scope="module")
def wide():
    """Nine clients in 260 dimensions, six classes: X, y, clients."""
    rng = np.random.default_rng(0)
    clients = np.repeat(np.arange(9), SIZES)
    y = rng.integers(0, 6, len(clients))
    y[:6] = range(6)
    return rng.normal(size=(len(y), N_INPUTS)) + 2 * np.eye(N_INPUTS)[y], y, clients


@pytest.fixture
def used(monkeypatch):
    """The shapes of the rows of each layer whose steps were kept as products."""
    shapes = []

    class Spy(LowRankLinear):
        def __init__(self, *args):
            super().__init__(*args)
            shapes.append(tuple(self.rows.shape))

    monkeypatch.setattr(_stacked_steps, "LowRankLinear", Spy)
    return shapes


def build(*before, bias=True, n_inputs=N_INPUTS):
    torch.manual_seed(0)
    first = nn.Linear(n_inputs, N_HIDDEN, bias=bias)
    layers = first, nn.Tanh(), nn.Linear(N_HIDDEN, 12), nn.ReLU(), nn.Linear(12, 6)
    return nn.Sequential(*before, *layers).double()


def one_layer():
    torch.manual_seed(0)
    return nn.Linear(N_INPUTS, N_HIDDEN).double()


class Shifted(nn.Module):
    """A buffer is subtracted before the first layer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1, 1, N_INPUTS).double())
        self.layers = build()

    def forward(self, X):
        return self.layers(X.sub(self.mean))


def short_net(module, **settings):
    return net(module, **{"batch_size": 8, **settings})


MODULES = {
    "three layers": build,
    "no bias": lambda: build(bias=False),
    "softmax regression": one_layer,
    "a function before it": lambda: build(nn.Tanh()),
    "a buffer before it": Shifted,
    "flattened": lambda: build(nn.Flatten()),
    "many features of one": Shifted,  # the buffer has more elements than a row of X
}


def data_for(module, data):
    X, y, clients = data
    if module == "flattened":
        X = X.reshape(len(X), 4, 5, 13)
    if module == "many features of one":
        X = X[:, :1]
    return X, np.arange(len(y)) % N_HIDDEN if module == "softmax regression" else y, clients


@pytest.fixture
def none_alone(monkeypatch):
    """No chunk fails, so that its members train one by one."""

    def recover(self, run, error):
        raise error

    monkeypatch.setattr(_stacked_steps.ChunkTraining, "recover", recover)


@pytest.mark.parametrize("module", MODULES)
def test_modules(wide, used, none_alone, module):
    loop, stacked = both(data_for(module, wide), short_net(MODULES[module]()))
    assert_same(loop, stacked)
    assert used == [(7, 40, N_INPUTS)] * 3


class EpochsRate(BaseSchedule):
    """A rate that falls with each epoch within a round."""

    def _at(self, round, n_rounds, step, n_steps):
        return 0.1 / (1 + step)


@pytest.mark.parametrize(
    ("params", "n_rows"),
    [
        ({"local_steps": 3}, 24),
        ({"local_steps": 1}, 8),
        ({"local_epochs": 2}, 32),  # four steps of the client of 10 rows
        ({"local_epochs": 2, "lr_schedule": EpochsRate()}, 32),
        ({"lr_schedule": lambda t: 0.1 / (t + 1)}, 40),
        ({"memory_budget": 400_000}, 40),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else str(value),
)
def test_ways_to_train(wide, used, params, n_rows):
    loop, stacked = both(wide, short_net(build()), **params)
    assert_same(loop, stacked)
    assert max(shape[1] for shape in used) == n_rows


@pytest.mark.parametrize("criterion", [Focal, nn.NLLLoss])
def test_criteria(wide, used, criterion):
    module = nn.Sequential(build(), nn.Softmax(1)) if criterion is nn.NLLLoss else build()
    assert_same(*both(wide, short_net(module, criterion=criterion)))
    assert used


def test_weights_of_rows(wide, used):
    X, y, clients = wide
    weights = np.random.default_rng(1).uniform(0, 2, len(y)) * (np.arange(len(y)) % 4 > 0)
    params = {"selector": ALL, "n_rounds": 3, "random_state": 0}
    models = [
        FederatedClassifier(short_net(build()), engine=engine, **params).fit(
            X, y, clients=clients, sample_weight=weights
        )
        for engine in ("loop", "stacked")
    ]
    assert_same(*models)
    assert used


def test_float32_is_as_near_to_float64_as_the_loop(wide, used):
    exact, _ = both(wide, short_net(build()))
    X, y, clients = wide
    loop, stacked = both((X.astype("float32"), y, clients), short_net(build().float()))
    assert used
    states = [flat(model.net_.module_) for model in (exact, loop, stacked)]
    torch.testing.assert_close(states[2], states[0], rtol=0, atol=2e-6)
    assert (states[2] - states[0]).norm() <= 2 * (states[1] - states[0]).norm()


@pytest.mark.parametrize(
    ("settings", "params"),
    [
        ({"optimizer__momentum": 0.9}, {}),
        ({"optimizer__weight_decay": 0.1}, {}),
        ({"optimizer": torch.optim.Adam, "lr": 0.01}, {}),
        ({}, {"proximal_mu": 0.5}),
        ({}, {"aggregator": CoordinateMedian()}),
        ({}, {"aggregator": NormClipping(0.1)}),
        ({}, {"aggregator": Scaffold()}),
        ({}, {"update_privacy": GaussianMechanism(clip=0.1, noise_multiplier=0.1)}),
        ({}, {"local_steps": 21}),
    ],
    ids=str,
)
def test_where_each_clients_weights_are_needed_or_rows_are_many(wide, used, settings, params):
    estimator = short_net(**{"module": build(), **settings})
    loop, stacked = both(wide, estimator, **params)
    assert_same(loop, stacked)
    assert not used


def test_few_inputs(wide, used):
    X, y, clients = wide
    assert_same(*both((X[:, :255], y, clients), short_net(build(n_inputs=255))))
    assert not used


def test_a_client_that_is_not_finite_fails_alone(wide, used):
    X, y, clients = wide
    X = X.copy()
    X[clients == 3] *= 1e200  # beyond float64 from its second step on
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(N_INPUTS, N_HIDDEN), nn.ReLU(), nn.Linear(N_HIDDEN, 6))
    loop, stacked = both((X, y, clients), short_net(module.double()))
    assert_same(loop, stacked)
    assert used
    assert stacked.history_["failed"].tolist() == loop.history_["failed"].tolist()
    assert any(3 in failed for failed in stacked.history_["failed"])


def test_rows_whose_products_are_not_finite_train_as_in_the_loop(wide, used):
    X, y, clients = wide
    X = X.astype("float32")
    X[clients == 3] *= 1e20
    loop, stacked = both((X, y, clients), short_net(build().float(), lr=1e-30))
    assert used
    assert stacked.history_["failed"].tolist() == loop.history_["failed"].tolist() == [()] * 3


@pytest.mark.parametrize("backend", ["threading", "loky"])
@pytest.mark.parametrize("n_jobs", [2, 3])
def test_the_bits_are_the_same_for_any_n_jobs(wide, used, backend, n_jobs):
    params = {"selector": ALL, "n_rounds": 2, "random_state": 0, "memory_budget": 2_000_000}
    X, y, clients = wide

    def fit(n_jobs):
        model = FederatedClassifier(short_net(build()), engine="stacked", n_jobs=n_jobs, **params)
        return flat(model.fit(X, y, clients=clients).net_.module_)

    one = fit(1)
    assert len(used) > 2  # chunks
    with parallel_config(backend=backend):
        assert torch.equal(fit(n_jobs), one)


def test_weights_that_stay_are_the_models_own(wide, used):
    module = build()
    before = flat(module)
    _, stacked = both(wide, short_net(module, lr=0.0))
    assert used
    assert torch.equal(flat(stacked.net_.module_), before)


def plain_request(w, weights=(0.5, 0.5)):
    return TrainRequest(
        round=0,
        state={"module.weight": w},
        parameters=["module.weight"],
        cohort=Cohort(np.arange(2), np.array(weights)),
        training=LocalTraining(),
        aggregator=WeightedMean(),
    )


@pytest.mark.parametrize(
    ("n_outputs", "n_inputs", "dtype", "expected"),
    [
        (40, 256, torch.float32, 40),
        (40, 255, torch.float32, 0),
        (300, 256, torch.float64, 256),
        (40, 256, torch.float16, 0),
        (40, 256, torch.bfloat16, 0),
    ],
)
def test_the_most_rows(n_outputs, n_inputs, dtype, expected):
    method = LinearStack([Linear("weight", None)], CrossEntropy())
    request = plain_request(torch.zeros(n_outputs, n_inputs, dtype=dtype))
    assert most_rows(method, request, plain_sgd=True) == expected
    assert most_rows(method, request, plain_sgd=False) == 0


@pytest.fixture
def parts(monkeypatch):
    """The numbers of clients whose rows were written and multiplied at once."""
    found, begin = [], LowRankLinear.begin

    def watched(self, fill):
        def noted(part, rows):
            found.append(len(rows))
            fill(part, rows)

        begin(self, noted)

    monkeypatch.setattr(LowRankLinear, "begin", watched)
    return found


@pytest.fixture
def small_parts(monkeypatch):
    """A part has the rows of at most two clients."""
    monkeypatch.setattr(LowRankLinear, "part_bytes", 2 * 40 * N_INPUTS * 8)


@pytest.mark.parametrize("module", MODULES)
def test_rows_are_multiplied_some_clients_at_a_time(wide, parts, small_parts, none_alone, module):
    assert_same(*both(data_for(module, wide), short_net(MODULES[module]())))
    assert parts == [1, 2, 2, 2] * 3  # of seven clients


def test_the_bits_are_the_same_for_any_order_of_x(wide, parts, small_parts):
    X, y, clients = wide
    params = {"selector": ALL, "n_rounds": 2, "random_state": 0, "engine": "stacked"}
    one, other = (
        FederatedClassifier(short_net(build()), **params).fit(ordered, y, clients=clients)
        for ordered in (X, np.asfortranarray(X))
    )
    assert len(parts) == 16
    assert torch.equal(flat(one.net_.module_), flat(other.net_.module_))


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_the_bits_of_chunks_of_many_parts_are_the_same_for_two_jobs(parts, backend):
    """Products of these shapes have other bits if chunks, of 80 clients, have other parts."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    clients = np.repeat(np.arange(160), 33)
    X, y = rng.normal(size=(len(clients), 257)), rng.integers(0, 6, len(clients))
    module = nn.Sequential(nn.Linear(257, 33), nn.Tanh(), nn.Linear(33, 6)).double()
    model = FederatedClassifier(
        short_net(module, batch_size=11), selector=ALL, n_rounds=1, random_state=0, engine="stacked"
    ).fit(X, y, clients=clients)
    assert parts == [26, 27, 27] * 2
    one = flat(model.net_.module_)
    with parallel_config(backend=backend):
        model.set_params(n_jobs=2).fit(X, y, clients=clients)
    assert torch.equal(flat(model.net_.module_), one)


def test_a_layer_by_hand():
    """Two clients with three steps of one row, w = (1, 0), a bias of 1: outputs and products."""
    state = {"weight": torch.tensor([[1.0, 0.0]]), "bias": torch.tensor([1.0])}
    X = torch.tensor([[[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]], [[5.0, 1.0], [1.0, 1.0], [2.0, 2.0]]])
    layer = LowRankLinear(Linear("weight", "bias"), state, (2, 3, 1), Memory())
    layer.begin(lambda clients, rows: rows.copy_(X[clients]))
    assert layer.outputs.tolist() == [[[2], [4], [1]], [[6], [2], [3]]]
    # Of rows 2 and 3 with rows 1 and 2, plus 1 for the bias.
    assert layer.products.tolist() == [[[4, 10], [3, 1]], [[7, 3], [13, 5]]]


# The stack


@pytest.fixture
def stack():
    rng = torch.Generator().manual_seed(0)
    return LowRankStack(
        *(torch.randn(shape, generator=rng) for shape in [(3, 4), (2, 5, 3), (2, 5, 4)])
    )


def test_a_stack_by_hand():
    w = torch.tensor([[1.0, 2.0]])
    left, right = torch.tensor([[[3.0]], [[-1.0]]]), torch.tensor([[[1.0, 10.0]], [[2.0, 0.0]]])
    stack = LowRankStack(w, left, right)
    assert stack[0].tolist() == [[4.0, 32.0]]
    assert stack[1].tolist() == [[-1.0, 2.0]]
    assert stack.written_out().tolist() == [[[4.0, 32.0]], [[-1.0, 2.0]]]
    assert stack.weighted_sum(np.array([0.5, 0.25])).tolist() == [[1.75, 16.5]]


def test_a_weighted_sum_is_that_of_the_members(stack):
    weights = np.array([0.3, 0.9])
    expected = sum(q * w.double() for q, w in zip(weights, stack.written_out(), strict=True))
    found = stack.weighted_sum(weights)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def collected(stack, weights, losses=(0.0, 0.0)):
    request, n = plain_request(stack.w, weights), np.ones(2, dtype=int)
    states = {"module.weight": stack}
    return collect(request, np.arange(2), states, np.array(losses), n, [None, None])


def test_a_member_whose_loss_alone_is_not_finite(stack):
    ((members, part),) = collected(stack, [0.25, 0.75], losses=[0.0, np.nan]).parts
    assert members.tolist() == [0]
    torch.testing.assert_close(part["module.weight"], 0.25 * stack[0].double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_member_may_overflow_though_the_sum_does_not(stack, sign):
    left, right = stack.left.clone(), stack.right.clone()
    left[1], right[1] = sign * 1e20, 1e19  # 5e39 is beyond float32, a thousandth of it is not
    updates = collected(LowRankStack(stack.w, left, right), [0.999, 0.001])
    assert updates.reports[0].finite.tolist() == [True, False]
    ((members, part),) = updates.parts
    assert members.tolist() == [0]
    torch.testing.assert_close(
        part["module.weight"], 0.999 * stack[0].double(), rtol=1e-6, atol=1e-6
    )


def test_what_no_member_has_changed(stack):
    still = LowRankStack(stack.w, torch.zeros_like(stack.left), stack.right)
    assert collected(still, [0.5, 0.5]).changed == frozenset()
    assert collected(stack, [0.5, 0.5]).changed == {"module.weight"}

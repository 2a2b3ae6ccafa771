"""What is held in memory: never X as a whole, never more models than the budget allows."""

import tracemalloc

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed._federation import make_federation
from skfed.engines import Batching, StackedEngine, make_engine
from skfed.engines._data import Dataset
from skfed.engines._evaluate import BatchEvaluation, cut_into_products
from skfed.engines._memory import Memory
from skfed.engines._stacked import cut
from skfed.engines._stacked_steps import ChunkTraining
from skfed.nets import CLASSIFIER, NetPool, _evaluate, make_net


@pytest.fixture
def mapped(tmp_path):
    """A read-only memory map of 20 MB over 50 clients: X, y, clients."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "X.npy", rng.normal(size=(10_000, 500)).astype("float32"))
    X = np.load(tmp_path / "X.npy", mmap_mode="r")
    return X, rng.integers(0, 3, len(X)), rng.integers(0, 50, len(X))


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_a_memory_map_is_not_copied(mapped, engine):
    X, y, clients = mapped
    model = FederatedClassifier(selector=PowerOfChoice(), n_rounds=2, engine=engine)
    model.fit(X[:100], y[:100], clients=clients[:100])  # what is imported and cached at first use
    tracemalloc.start()
    try:
        model.fit(X, y, clients=clients)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < X.nbytes / 8
    assert not X.flags.writeable


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_are_taken_in_any_layout(order):
    X = np.asarray(np.random.default_rng(0).normal(size=(20, 2, 3)), order=order)
    X.flags.writeable = False
    rows = np.array([[3, 3, 19], [0, 7, 1]])
    source = Dataset(X, np.arange(20), "cpu")
    numbers, y = source.prepare(rows)
    np.testing.assert_array_equal(source.take(numbers, Memory()).numpy(), X[rows])
    np.testing.assert_array_equal(y.numpy(), rows)


def test_x_in_fortrans_order_is_not_copied_whole():
    X = np.asfortranarray(np.zeros((50_000, 20)))
    source, rows, memory = Dataset(X, np.arange(len(X)), "cpu"), np.array([3, 1, 4]), Memory()
    tracemalloc.start()
    try:
        source.take(rows, memory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < X.nbytes / 8


def test_memory_of_a_name_is_used_again_where_the_dtype_is_the_same():
    memory, float32 = Memory(), torch.float32
    first = memory.empty("X", (6,), float32)
    assert memory.empty("X", (6,), float32) is first
    assert memory.empty("X", (2, 2), float32).data_ptr() == first.data_ptr()
    assert memory.empty("y", (6,), float32).data_ptr() != first.data_ptr()
    assert memory.empty("X", (2, 2), torch.float64).dtype == torch.float64


def test_cohorts_are_cut_evenly_those_with_most_steps_first():
    """Into an even number of chunks, for two jobs, unless half a chunk is enough."""
    n_steps = np.array([3, 9, 3, 5, 9, 1, 3])
    chunks = cut(n_steps, limit=3, alike=False, max_steps=999)
    assert [chunk.tolist() for chunk in chunks] == [[1, 4], [3, 0], [2, 6], [5]]
    numbers = [len(cut(n_steps, limit, alike=False, max_steps=999)) for limit in (1, 4, 13, 14)]
    assert numbers == [7, 2, 2, 1]
    alike = cut(n_steps, limit=2, alike=True, max_steps=999)
    assert [chunk.tolist() for chunk in alike] == [[1, 4], [3], [0, 2], [6], [5]]
    assert cut(np.empty(0, int), 3, True, 999) == []


def test_a_client_with_many_steps_does_not_lay_out_as_many_for_the_others():
    """A chunk of the longest and nine others would lay out 10 times its 1000 steps."""
    n_steps = np.array([1000] + [2] * 9)
    chunks = cut(n_steps, limit=10, alike=False, max_steps=2100)
    assert sorted(np.concatenate(chunks)) == list(range(10))
    assert all(len(chunk) == 1 or len(chunk) * n_steps[chunk].max() <= 2100 for chunk in chunks)


@pytest.fixture
def make_stacked(blobs):
    """Return a function that makes an engine with a memory budget for softmax regression."""

    def make(memory_budget):
        X, y, clients = blobs
        y = np.unique(y, return_inverse=True)[1]
        model_net = make_net(CLASSIFIER, None, X, 3, seed=0)
        batching = Batching(make_federation(clients, len(X)), 0, batch_size=10)
        net_pool = NetPool(model_net, X[:1])
        engine, _ = make_engine("stacked", net_pool, X, y, batching, memory_budget, n_jobs=None)
        assert isinstance(engine, StackedEngine)
        return engine

    return make


def test_the_budget_bounds_chunks(make_stacked):
    """A model has 18 weights, 10 means and deviations, and at worst 4 copies; a row 5 values, as
    many standardised ones and 3 logits, and a gradient of each."""
    plan = make_stacked(1).plan
    assert (plan.model_bytes, plan.row_bytes) == (4 * 28, 4 * 13)
    client = 4 * 4 * 28 + 2 * 10 * 4 * 13
    assert make_stacked(3 * client)._clients_a_chunk(largest=40) == 3
    assert make_stacked(3 * client - 1)._clients_a_chunk(largest=40) == 2
    assert make_stacked(1)._clients_a_chunk(largest=40) == 1
    # A client of fewer rows than a batch takes less.
    assert make_stacked(3 * client)._clients_a_chunk(largest=1) > 3


def test_the_budget_bounds_polls(blobs, monkeypatch, make_stacked):
    X, y, clients = blobs
    n_rows = []
    run = BatchEvaluation.run

    def watch(self, load):
        n_rows.append(sum(map(len, self.positions)))
        return run(self, load)

    monkeypatch.setattr(BatchEvaluation, "run", watch)
    FederatedClassifier(
        selector=PowerOfChoice(d=6), n_rounds=1, memory_budget=32 * 7, random_state=0
    ).fit(X, y, clients=clients)
    assert sum(n_rows) == len(X)
    assert max(n_rows) <= 7


def test_the_budget_bounds_batches_of_validation(blobs, monkeypatch):
    """A row takes 52 bytes; the net's batches have 128 rows."""
    X, y, clients = blobs
    n_rows = []
    to_tensors = _evaluate.to_tensors

    def watch(net, X, y):
        n_rows.append(len(X))
        return to_tensors(net, X, y)

    def val_loss(memory_budget):
        n_rows.clear()
        model = FederatedClassifier(n_rounds=1, memory_budget=memory_budget, random_state=0)
        return model.fit(X, y, clients=clients, X_val=X, y_val=y).history_["val_loss"]

    monkeypatch.setattr(_evaluate, "to_tensors", watch)
    whole = val_loss(2**30)
    assert n_rows == [len(X)]
    np.testing.assert_allclose(val_loss(52 * 30), whole, rtol=1e-5)
    assert n_rows == [30] * 4 + [len(X) - 4 * 30]


def test_a_poll_is_multiplied_in_parts_that_stay_in_cache(blobs, monkeypatch):
    """Of a quarter of the rows that fit, and none of a few rows alone: it would round otherwise."""
    assert list(cut_into_products(10, 4)) == [(0, 4), (4, 10)]
    assert list(cut_into_products(3, 4)) == [(0, 3)]
    X, y, clients = (np.concatenate([part] * 4) for part in blobs)
    n_rows = []
    take = Dataset.take

    def watch(self, rows, memory):
        n_rows.append(len(rows))
        return take(self, rows, memory)

    def losses(memory_budget):
        n_rows.clear()
        model = FederatedClassifier(
            selector=PowerOfChoice(d=6), n_rounds=1, memory_budget=memory_budget, random_state=0
        )
        return model.fit(X, y, clients=clients).history_["objective"]

    monkeypatch.setattr(Dataset, "take", watch)
    whole = losses(2**30)
    assert len(n_rows) == 1
    np.testing.assert_array_equal(losses(52 * len(X)), whole)
    assert sum(n_rows) == len(X)
    assert n_rows == [128, 128, 128, len(X) - 3 * 128]


class FirstFeatures(nn.Linear):
    """Its output in evaluation is a view of X."""

    def forward(self, X):
        return super().forward(X) if self.training else X[:, :3]


def test_a_poll_is_right_where_outputs_are_views_of_x(blobs):
    X, y, clients = (np.concatenate([part] * 4) for part in blobs)
    net = NeuralNetClassifier(
        FirstFeatures(X.shape[1], 3), criterion=nn.CrossEntropyLoss, train_split=None
    )

    def losses(memory_budget):
        model = FederatedClassifier(
            net,
            selector=PowerOfChoice(d=6),
            n_rounds=1,
            engine="stacked",
            memory_budget=memory_budget,
            random_state=0,
        )
        return model.fit(X, y, clients=clients).history_["objective"]

    np.testing.assert_array_equal(losses(20 * len(X)), losses(2**30))


def test_a_cohort_does_not_hold_all_models_of_a_mean(blobs, monkeypatch):
    """With one client a chunk, parts are sums of the size of a model, and come one by one."""
    X, y, clients = blobs
    open_chunks = []
    run = ChunkTraining.run

    def watch(self, load):
        updates = run(self, load)
        [(_, part)] = updates.parts
        open_chunks.append({name: tuple(t.shape) for name, t in part.items()})
        return updates

    monkeypatch.setattr(ChunkTraining, "run", watch)
    FederatedClassifier(
        selector=RandomSelector(1.0, probability="uniform", replace=False),
        n_rounds=1,
        memory_budget=1,
    ).fit(X, y, clients=clients)
    shapes = {"module.linear.weight": (3, 5), "module.linear.bias": (3,)}  # what travels
    assert open_chunks == [shapes] * 6


def test_a_client_costs_at_most_100_bytes_beyond_the_data():
    n_clients = 20_000
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * n_clients, 4)).astype("float32")
    y, clients = rng.integers(0, 3, len(X)), np.arange(len(X)) % n_clients
    selector = PowerOfChoice(d=100, clients_per_round=10)
    model = FederatedClassifier(selector=selector, n_rounds=3, random_state=0)
    model.fit(X[:400], y[:400], clients=np.arange(400) % 200)  # what is cached at first use
    tracemalloc.start()
    try:
        model.fit(X, y, clients=clients)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * n_clients + 2**18

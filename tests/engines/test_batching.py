import numpy as np
import pytest

from skfed._federation import make_federation
from skfed.engines import Batching, LocalTraining
from skfed.engines._batching import minibatches
from skfed.utils._seeding import Purpose, stream, stream_states, streams


def test_an_epoch_is_a_fresh_permutation_with_the_last_partial_batch():
    steps = minibatches(np.random.default_rng(0), 10, 4, local_epochs=2, local_steps=None)
    iterations, batches = zip(*steps, strict=True)
    assert iterations == (0, 0, 0, 1, 1, 1)
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    first, second = np.concatenate(batches[:3]), np.concatenate(batches[3:])
    assert sorted(first) == sorted(second) == list(range(10))
    assert first.tolist() != second.tolist()


def test_draws_are_those_of_numpy():
    """A resumed fit needs the same draws, and results are published with their seed."""
    own, numpys = np.random.default_rng(0), np.random.default_rng(0)
    epochs = np.concatenate([rows for _, rows in minibatches(own, 10, 4, 2, local_steps=None)])
    assert epochs.tolist() == [*numpys.permutation(10), *numpys.permutation(10)]
    steps = [rows.tolist() for _, rows in minibatches(own, 10, 4, 1, local_steps=3)]
    assert steps == [numpys.choice(10, 4, replace=False).tolist() for _ in range(3)]


@pytest.mark.parametrize(("n_samples", "size"), [(10, 4), (3, 3)])
def test_a_step_draws_min_b_D_k_rows_without_replacement(n_samples, size):
    steps = minibatches(np.random.default_rng(0), n_samples, 4, 9, local_steps=30)
    iterations, batches = zip(*steps, strict=True)
    assert iterations == tuple(range(30))
    assert all(len(set(batch.tolist())) == size for batch in batches)
    assert set(np.concatenate(batches).tolist()) == set(range(n_samples))


def test_the_streams_of_many_clients_are_those_of_each():
    clients = [np.random.default_rng(i).bytes(16) for i in range(50)]
    copies = np.arange(50) % 3
    for seed in (0, 1, 2**32 - 1):
        states = stream_states(seed, Purpose.MINIBATCHES, 7, clients, copies)
        for rng, client, copy in zip(streams(states), clients, copies, strict=True):
            own = stream(seed, Purpose.MINIBATCHES, 7, client, copy)
            assert rng.bit_generator.state == own.bit_generator.state
            assert rng.integers(2**32, size=5).tolist() == own.integers(2**32, size=5).tolist()


@pytest.mark.parametrize("batch_size", [3, 8, -1])
@pytest.mark.parametrize("training", [LocalTraining(epochs=2), LocalTraining(steps=4)])
def test_the_minibatches_of_many_clients_are_those_of_each(batch_size, training):
    sizes = np.array([9, 8, 5, 1])
    ids = np.random.default_rng(0).permutation(np.repeat(range(4), sizes))
    federation = make_federation(ids, len(ids))
    batching = Batching(federation, 5, batch_size)
    members = [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]
    many = batching.minibatches_of_many(training, 6, members)
    rows = [federation.rows(k) for k, _ in members]
    numbers, counts, iterations = many.side_by_side(rows)
    for i, (k, copy) in enumerate(members):
        steps = list(batching.minibatches(training, 6, k, copy)())
        assert counts[:, i].tolist() == [len(own) for _, own in steps] + [0] * (
            len(counts) - len(steps)
        )
        for step, (iteration, own) in enumerate(steps):
            assert numbers[step, i, : len(own)].tolist() == rows[i][own].tolist()
            assert i or iterations[step] == iteration
    assert np.isin(numbers[:, 4], rows[4]).all()  # also where they are not used


@pytest.mark.parametrize("batch_size", [3, 8, -1])
@pytest.mark.parametrize("training", [LocalTraining(epochs=2), LocalTraining(steps=4)])
def test_numbers_of_rows_are_known_before_they_are_drawn(batch_size, training):
    federation = make_federation(np.repeat(range(4), [9, 8, 5, 1]), 23)
    batching, clients = Batching(federation, 5, batch_size), np.array([3, 0, 0, 2, 1])
    trained = [sum(batching.minibatches(training, 6, k, 0)().sizes) for k in clients]
    assert batching.n_trained(training, clients).tolist() == trained
    for limit in (None, "batch", 2, 100):
        polled = [len(rows) for rows in batching.polled(6, clients, limit)]
        assert batching.n_polled(clients, limit).tolist() == polled


def test_the_polled_rows_of_many_clients_are_those_of_each():
    sizes = [9, 8, 5, 1]
    federation = make_federation(np.repeat(range(4), sizes), 23)
    batching, clients = Batching(federation, 5, 3), np.array([3, 0, 0, 2, 1])
    for limit, n_rows in (("batch", 3), (5, 5)):
        for k, rows in zip(clients, batching.polled(6, clients, limit), strict=True):
            own, rng = range(sizes[k]), batching.stream(Purpose.POLL, 6, k)
            if n_rows < sizes[k]:
                own = rng.choice(sizes[k], n_rows, replace=False)
            assert list(rows) == list(own)
    assert batching.polled(6, clients, None) == [range(sizes[k]) for k in clients]

"""Chunks of clients: cut by the memory budget, trained side by side, with the same result."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from families import OPTIMIZERS, build
from joblib import parallel_config
from parity import ALL, flat, net
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.aggregation import WeightedMean
from skfed.engines._stacked_steps import ChunkTraining

POW_D = PowerOfChoice(d=6, clients_per_round=3)


@pytest.mark.parametrize("family", ["mlp", "gated", "batch normalisation"])
def test_the_memory_budget_cuts_cohorts_and_changes_rounding_only(ragged, family):
    X, y, clients = ragged
    estimator = net(build(family, 21, 6), **OPTIMIZERS["momentum"])
    models = [
        FederatedClassifier(
            estimator,
            selector=POW_D,
            n_rounds=4,
            local_epochs=2,
            engine="stacked",
            memory_budget=budget,
            random_state=0,
        ).fit(X, y, clients=clients)
        for budget in (1, 20_000, 2**30)
    ]
    for other in models[1:]:
        torch.testing.assert_close(
            flat(other.net_.module_), flat(models[0].net_.module_), rtol=0, atol=1e-9
        )


@pytest.mark.parametrize("backend", ["threading", "loky"])
@pytest.mark.parametrize("family", ["mlp", "gated"])
def test_n_jobs_gives_the_same_bits(ragged, same_model, family, backend):
    X, y, clients = ragged
    estimator = net(build(family, 21, 6).float())
    params = {"selector": POW_D, "n_rounds": 4, "memory_budget": 60_000}
    serial = FederatedClassifier(estimator, engine="stacked", random_state=0, **params)
    serial.fit(X, y, clients=clients)
    with parallel_config(backend=backend):
        parallel = FederatedClassifier(
            estimator, engine="stacked", random_state=0, n_jobs=2, **params
        ).fit(X, y, clients=clients)
    assert same_model(serial, parallel)
    assert serial.history_["train_loss"].equals(parallel.history_["train_loss"])


def test_the_default_backend_of_n_jobs_gives_the_same_bits_with_dropout(ragged, same_model):
    X, y, clients = ragged
    estimator = net(nn.Sequential(nn.Linear(21, 8), nn.Dropout(0.5), nn.Linear(8, 6)))
    one, two = (
        FederatedClassifier(
            estimator,
            engine="stacked",
            selector=ALL,
            n_rounds=3,
            n_jobs=n_jobs,
            memory_budget=20_000,
            random_state=0,
        ).fit(X, y, clients=clients)
        for n_jobs in (1, 2)
    )
    assert same_model(one, two)


def test_torchs_number_of_threads_is_left_as_it_was(ragged):
    X, y, clients = ragged
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        FederatedClassifier(
            None, engine="stacked", selector=ALL, n_rounds=3, n_jobs=2, memory_budget=1
        ).fit(X, y, clients=clients)
        seen = [torch.get_num_threads()]
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert seen == [2, 2]
    finally:
        torch.set_num_threads(before)


def test_two_fits_in_two_threads_do_not_disturb_each_other(ragged, same_model):
    X, y, clients = ragged
    dropout = net(nn.Sequential(nn.Linear(21, 8), nn.Dropout(0.5), nn.Linear(8, 6)))

    def fit(seed):
        model = FederatedClassifier(dropout, engine="stacked", selector=ALL, n_rounds=5)
        return model.set_params(random_state=seed).fit(X, y, clients=clients)

    alone = [fit(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(fit, range(4)))
    assert all(same_model(*pair) for pair in zip(alone, together, strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_threads_of_a_fit_end_with_it(ragged, monkeypatch, fails):
    X, y, clients = ragged
    met, all_met, train = set(), threading.Barrier(3), ChunkTraining.run

    def run(self, load):
        """Wait for the others once: a thread that is free would take the task of another."""
        if threading.current_thread() not in met:
            met.add(threading.current_thread())
            all_met.wait(30)
        return train(self, load)

    monkeypatch.setattr(ChunkTraining, "run", run)
    before, during = set(threading.enumerate()), []

    class Looking(RandomSelector):
        def _select(self, round):
            new = set(threading.enumerate()) - before
            during.append({one for one in new if not one.name.startswith("tqdm")})
            if fails and round.index == 1:
                raise ValueError("this round is not wanted")
            return super()._select(round)

    model = FederatedClassifier(
        net(build("mlp", 21, 6)),
        selector=Looking(1.0),
        n_rounds=3,
        engine="stacked",
        memory_budget=20_000,
        n_jobs=3,
    )
    if fails:
        with pytest.raises(ValueError, match="not wanted"):
            model.fit(X, y, clients=clients)
    else:
        model.fit(X, y, clients=clients)
    assert len(during[-1]) == 2  # the calling thread is the third
    assert not during[-1] & set(threading.enumerate())


def test_fits_that_overlap_leave_torchs_number_of_threads(ragged):
    """The second begins within the first, in a new thread, and ends after it."""
    X, y, clients = ragged
    inside, left = threading.Event(), threading.Event()

    class First(RandomSelector):
        def _select(self, round):
            if round.index == 0:
                inside.set()
                assert second_is_in.wait(30)
            return super()._select(round)

    second_is_in = threading.Event()

    class Second(RandomSelector):
        def _select(self, round):
            second_is_in.set()
            assert left.wait(30)
            return super()._select(round)

    def fit(selector):
        FederatedClassifier(selector=selector, n_rounds=1).fit(X, y, clients=clients)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(fit, First(1.0))
            assert inside.wait(30)
            second = pool.submit(fit, Second(1.0))
            first.result(60)
            left.set()
            second.result(60)
            seen = [torch.get_num_threads(), ThreadPoolExecutor(1).submit(torch.get_num_threads)]
        assert [seen[0], seen[1].result()] == [3, 3]
    finally:
        torch.set_num_threads(before)


def test_a_round_uses_one_torch_thread(ragged):
    """Others would keep a core busy after each operation of the server, which clients need."""
    X, y, clients = ragged
    seen = []

    class Looking(RandomSelector):
        def _select(self, round):
            seen.append(torch.get_num_threads())
            return super()._select(round)

    class LookingMean(WeightedMean):
        def combine(self, *args):
            seen.append(torch.get_num_threads())
            return super().combine(*args)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        FederatedClassifier(selector=Looking(1.0), aggregator=LookingMean(), n_rounds=1).fit(
            X, y, clients=clients
        )
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]

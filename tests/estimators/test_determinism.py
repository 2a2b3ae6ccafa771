"""Same random_state, same result: in one process, in two, and whatever serves the clients."""

import hashlib
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from joblib import parallel_config
from rules import COMPARED
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.selection import BaseSelector, Cohort


class Dropout(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def classifier(**params):
    net = NeuralNetClassifier(Dropout, criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=8)
    params = {"selector": PowerOfChoice(d=4, clients_per_round=2), "random_state": 3, **params}
    return FederatedClassifier(net, n_rounds=4, **params)


def digest(model):
    """Return the bytes of a fitted model and of its cohorts, hashed."""
    state = b"".join(t.numpy().tobytes() for t in model.net_.module_.state_dict().values())
    return hashlib.sha256(state + repr(model.history_["cohort"].tolist()).encode()).hexdigest()


def test_twice_in_one_process(blobs):
    X, y, clients = blobs
    model = classifier()
    first = digest(model.fit(X, y, clients=clients))
    torch.manual_seed(77)
    np.random.seed(77)  # noqa: NPY002 - the global state must not matter
    assert digest(model.fit(X, y, clients=clients)) == first
    assert digest(classifier(random_state=4).fit(X, y, clients=clients)) != first


RESULTS = """
import numpy as np
from joblib import parallel_config
from skfed import FederatedClassifier, PowerOfChoice

def results(backend):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 5)), rng.integers(0, 3, 60)
    clients = [f"user {k}" for k in rng.integers(0, 8, 60)]
    found = []
    for engine in ("loop", "stacked"):
        model = FederatedClassifier(
            selector=PowerOfChoice(d=4, clients_per_round=2),
            n_rounds=5,
            engine=engine,
            n_jobs=2,
            random_state=0,
        )
        with parallel_config(backend=backend):
            model.fit(X, y, clients=clients)
        state = b"".join(t.numpy().tobytes() for t in model.net_.module_.state_dict().values())
        found.append([model.engine_, state.hex(), *map(list, model.history_["cohort"])])
    return found
"""

FORKS = """
import json
import multiprocessing
import torch
torch.set_num_threads(1)  # threads of a product do not survive a fork
multiprocessing.log_to_stderr("INFO")
print(json.dumps(results("multiprocessing")))
"""


class DrawsAlways(nn.Linear):
    """Random in evaluation too."""

    def __init__(self):
        super().__init__(5, 3)

    def forward(self, X):
        return super().forward(nn.functional.dropout(X, 0.5, training=True))


def test_layers_that_draw_while_they_are_evaluated(blobs):
    X, y, clients = blobs
    net = NeuralNetClassifier(DrawsAlways, criterion=nn.CrossEntropyLoss, lr=0.1)
    digests = set()
    for seed in range(3):
        torch.manual_seed(seed)
        model = FederatedClassifier(
            net, selector=PowerOfChoice(d=6, clients_per_round=2), n_rounds=4, random_state=0
        ).fit(X, y, clients=clients, X_val=X, y_val=y)
        digests.add((digest(model), tuple(model.history_["val_loss"])))
    assert len(digests) == 1


MASKS = []


class ShowsMask(nn.Module):
    """Dropout whose masks the test can see, so it is for the loop engine."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, X):
        if self.training:
            mask = torch.rand(5) < 0.5
            MASKS.append(mask.tolist())
            X = X * mask
        return self.linear(X)


class TwiceEach(BaseSelector):
    def _select(self, round):
        return Cohort.mean(np.array([0, 0, 1, 1]))


def test_random_layers_differ_by_round_client_and_copy(blobs):
    X, y, clients = blobs
    MASKS.clear()
    net = NeuralNetClassifier(ShowsMask, criterion=nn.CrossEntropyLoss, batch_size=1)
    params = {"selector": TwiceEach(), "n_rounds": 3, "local_steps": 20, "engine": "loop"}
    FederatedClassifier(net, random_state=0, **params).fit(X, y, clients=clients)
    draws = [str(MASKS[i : i + 20]) for i in range(0, len(MASKS), 20)]
    assert len(draws) == len(set(draws)) == 12


def test_predict_leaves_the_global_generator_alone(blobs):
    X, y, clients = blobs
    model = classifier().fit(X, y, clients=clients)
    before = torch.get_rng_state()
    model.predict(X)
    assert torch.equal(torch.get_rng_state(), before)


def test_in_another_process_and_its_forks():
    """It hashes strings in its own way. This process may have threads, which no fork survives."""
    namespace = {}
    exec(RESULTS, namespace)
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    run = [sys.executable, "-c", RESULTS + FORKS]
    there = subprocess.run(run, env=env, capture_output=True, text=True, check=True, timeout=300)
    assert "child process calling" in there.stderr
    assert json.loads(there.stdout) == namespace["results"]("sequential")


def test_the_global_generators_are_left_alone(blobs):
    X, y, clients = blobs
    torch.manual_seed(1)
    states = torch.get_rng_state().tolist, np.random.get_state, random.getstate
    before = [repr(state()) for state in states]
    classifier().fit(X, y, clients=clients)
    after = [repr(state()) for state in (torch.get_rng_state().tolist, *states[1:])]
    assert after == before


@pytest.mark.parametrize(
    "selector",
    [
        RandomSelector(clients_per_round=3, ignore_priority=True),
        PowerOfChoice(d=4, clients_per_round=2, ignore_priority=True),
        FedAlignSelector(eps=0.3, warmup=1),
        *COMPARED,
    ],
    ids=repr,
)
def test_interleaving_the_clients_rows_differently(blobs, same_model, selector):
    """Each client's own rows stay in order; how they are mixed in X is of no account."""
    X, y, clients = blobs
    mixed = np.random.default_rng(0).permutation(clients)
    rows = np.empty(len(y), int)
    for client in np.unique(clients):
        rows[mixed == client] = np.flatnonzero(clients == client)
    assert not (mixed == clients).all()
    params = {"selector": selector, "priority": ["a", "b"]}
    one = classifier(**params).fit(X, y, clients=clients)
    other = classifier(**params).fit(X[rows], y[rows], clients=mixed)
    assert same_model(one, other)
    assert one.history_["cohort"].tolist() == other.history_["cohort"].tolist()


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_n_jobs_and_backend_do_not_matter(blobs, same_model, backend):
    X, y, clients = blobs
    serial = classifier().fit(X, y, clients=clients)
    with parallel_config(backend=backend):
        parallel = classifier(n_jobs=2).fit(X, y, clients=clients)
    assert same_model(serial, parallel)
    assert serial.history_["cohort"].tolist() == parallel.history_["cohort"].tolist()


def test_a_module_class_of_a_notebook_reaches_other_processes(blobs, same_model):
    """Pickle cannot find such a class by name; joblib sends it by value."""

    class Local(nn.Sequential):
        def __init__(self):
            super().__init__(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))

    X, y, clients = blobs
    with parallel_config(backend="loky"):
        models = [
            FederatedClassifier(Local, n_rounds=2, n_jobs=n_jobs, random_state=0).fit(
                X, y, clients=clients
            )
            for n_jobs in (1, 2)
        ]
    assert same_model(*models)


def test_other_clients_do_not_change_a_clients_draws(blobs, same_model):
    """A free client that never joins leaves no trace, although it shifts every index."""
    X, y, clients = blobs
    rows = clients != "a"
    params = {"selector": FedAlignSelector(warmup=1.0), "priority": ["c", "e"]}
    with_a = classifier(**params).fit(X, y, clients=clients)
    without_a = classifier(**params).fit(X[rows], y[rows], clients=clients[rows])
    assert same_model(with_a, without_a)


ALL = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)


@pytest.mark.parametrize("match", ["loss", "accuracy"])
@pytest.mark.parametrize("warmup", [0, 0.5])
def test_fedalign_with_eps_0_is_fedavg_on_the_priority_clients(blobs, same_model, match, warmup):
    X, y, clients = blobs
    priority = ["a", "c", "f"]
    rows = np.isin(clients, priority)
    selector = FedAlignSelector(eps=0, warmup=warmup, match=match)
    fedalign = classifier(selector=selector, priority=priority).fit(X, y, clients=clients)
    fedavg = classifier(selector=ALL).fit(X[rows], y[rows], clients=clients[rows])
    assert same_model(fedalign, fedavg)


@pytest.mark.parametrize("match", ["loss", "accuracy"])
def test_fedalign_with_eps_inf_is_fedavg_on_all(blobs, same_model, match):
    X, y, clients = blobs
    selector = FedAlignSelector(eps=np.inf, warmup=0, match=match)
    fedalign = classifier(selector=selector, priority=["a"]).fit(X, y, clients=clients)
    fedavg = classifier(selector=ALL).fit(X, y, clients=clients)
    assert same_model(fedalign, fedavg)
    assert (fedalign.history_["n_aggregated"] == 6).all()


def test_random_state_instances_are_drawn_from_as_scikit_learn_does(blobs, same_model):
    X, y, clients = blobs
    one = classifier(random_state=np.random.RandomState(0)).fit(X, y, clients=clients)
    other = classifier(random_state=np.random.RandomState(0)).fit(X, y, clients=clients)
    assert same_model(one, other)


def test_two_fits_in_two_threads_do_not_disturb_each_other(blobs):
    X, y, clients = blobs

    def one(seed):
        return digest(classifier(random_state=seed).fit(X, y, clients=clients))

    alone = [one(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(one, range(4)))
    assert together == alone
    assert len(set(alone)) == 4

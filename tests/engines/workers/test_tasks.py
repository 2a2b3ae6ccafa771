"""Each job gets one task a round, and no result depends on how many there are."""

import logging
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import wait as futures_wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from operator import methodcaller
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from joblib import parallel_config
from parity import ALL, net
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice
from skfed.aggregation import CoordinateMedian, WeightedMean
from skfed.engines._stacked_steps import ChunkTraining
from skfed.engines.workers import _tasks, _workers
from skfed.engines.workers._tasks import balanced_tree, consecutive_tree, divide, fold
from skfed.engines.workers._work import run_or_split
from skfed.engines.workers._workers import Workers


def test_works_go_to_the_half_that_is_lighter():
    """9 | 5, then 4 to the half of 5, then 2 (9 = 5 + 4) to the first, 1 to the second, 1 to it."""
    assert balanced_tree([9, 5, 4, 2, 1, 1]) == ((0, 3), ((1, 5), (2, 4)))
    assert balanced_tree([1, 9]) == (1, 0)
    assert balanced_tree([3, 3, 3, 3]) == ((0, 2), (1, 3))  # ties stay in order
    assert balanced_tree([1, 1, 1, 20]) == (3, ((0, 2), 1))
    assert balanced_tree([7]) == 0


def test_works_of_a_poll_stay_in_order():
    assert consecutive_tree([1, 1, 1, 1]) == ((0, 1), (2, 3))
    assert consecutive_tree([9, 1, 1, 1]) == (0, ((1, 2), 3))
    assert consecutive_tree([1, 1, 1, 9]) == (((0, 1), 2), 3)
    assert consecutive_tree([7]) == 0


@pytest.mark.parametrize("make_tree", [balanced_tree, consecutive_tree])
def test_a_tree_holds_each_work_once_and_is_not_deep(make_tree):
    rng = np.random.default_rng(0)
    for costs in (rng.integers(1, 1000, 500).tolist(), [1] * 500, [2**i for i in range(40)]):
        tree = make_tree(costs)
        leaves = fold(tree, lambda i: [i], list.__add__)
        assert sorted(leaves) == list(range(len(costs)))
        assert fold(tree, lambda i: 0, lambda a, b: 1 + max(a, b)) <= 40


@dataclass
class Named:
    """A work of one client that returns its name, in upper case if it has failed."""

    name: str
    cost: int
    fails: bool = False

    @property
    def clients(self):
        return [self.name]

    def run(self, load):
        if self.fails:
            raise ValueError(self.name)
        return self.name

    def recover(self, run, error):
        return self.name.upper()


def joined(one, other):
    return f"({one} {other})"


def named(fails=""):
    costs = {"a": 9, "b": 5, "c": 4, "d": 2, "e": 1, "f": 1}
    return [Named(name, cost, name in fails) for name, cost in costs.items()]


@pytest.fixture
def tasks(monkeypatch):
    """The tasks of each call of workers, and their results."""
    calls, real = [], Workers.map

    def kept(self, tasks, data):
        results = list(real(self, tasks, data))
        calls.append((tasks, results))
        return results

    monkeypatch.setattr(Workers, "map", kept)
    return calls


@pytest.mark.parametrize(
    ("n_jobs", "expected"),
    [
        (1, ["adbfce"]),
        (2, ["ad", "bfce"]),
        (3, ["a", "db", "fce"]),
        (4, ["a", "d", "bf", "ce"]),
        (6, ["a", "d", "b", "f", "ce"]),
        (8, list("adbfce")),
    ],
)
def test_each_job_has_about_the_same_cost(tasks, n_jobs, expected):
    """The tree is ((a d) ((b f) (c e))), its costs ((9 2) ((5 1) (4 1))).

    The middles of a, d, b, f, c and e are at 4.5, 10, 13.5, 16.5, 19 and 21.5. Three jobs have
    thirds of 22, which begin at 0, 7.3 and 14.7. Six have thirds of each half, which begin at 0,
    3.7 and 7.3: in the first half a is in the second and d in the last.
    """
    workers = Workers(n_jobs)
    result = workers.run(named(), balanced_tree, joined, SimpleNamespace(local=None))
    workers.close()
    assert result == "((a d) ((b f) (c e)))"
    ((shares, _),) = tasks
    assert ["".join(share.clients) for share in shares] == expected


@pytest.mark.parametrize("make_tree", [balanced_tree, consecutive_tree])
@pytest.mark.parametrize("n_jobs", range(1, 25))
def test_no_job_has_much_more_than_its_share(make_tree, n_jobs):
    costs = np.random.default_rng(n_jobs).integers(1, 100, 300).tolist()
    parts = divide(make_tree(costs), costs, n_jobs)
    positions = [fold(node, lambda i: {i}, set.union) for nodes in parts for node in nodes]
    assert set.union(*positions) == set(range(300)) and sum(map(len, positions)) == 300
    sums = [sum(fold(node, costs.__getitem__, int.__add__) for node in nodes) for nodes in parts]
    assert len(sums) == n_jobs
    assert max(sums) <= sum(costs) / n_jobs + 2 * max(costs)
    if n_jobs in (1, 2, 4, 8, 16):
        assert all(len(nodes) == 1 for nodes in parts)


@pytest.mark.parametrize("n_jobs", [1, 2, 3, 4])
def test_a_work_that_fails_leaves_the_others(n_jobs):
    workers, data = Workers(n_jobs), SimpleNamespace(local=None)
    result = workers.run(named(fails="bd"), balanced_tree, joined, data)
    workers.close()
    assert result == "((a D) ((B f) (c e)))"


@dataclass
class Acting(Named):
    """A work that calls ``act`` while it runs."""

    act: Callable[[], object] = bool

    def run(self, load):
        load(self.clients)
        self.act()
        return self.name


def test_one_work_is_done_in_the_same_way_for_two_jobs():
    """In this thread, inside as many calls: Python's time depends on their number."""
    places = []

    def note_place():
        places.append([frame.name for frame in traceback.extract_stack()])

    for n_jobs in (1, 2):
        workers, data = Workers(n_jobs), SimpleNamespace(local=lambda clients: None)
        workers.run([Acting("a", 1, act=note_place)], balanced_tree, joined, data)
        workers.close()
    assert places[0] == places[1]
    assert places[0][-3:] == ["run_or_split", "run", "note_place"]


def test_an_interrupted_fit_does_not_wait_for_all_clients(monkeypatch):
    """The other thread ends the work that it has begun, and begins no more."""
    begun, waited_for, done = Event(), Event(), []

    def interrupt():
        begun.wait(30)
        raise KeyboardInterrupt

    def end():
        begun.set()
        waited_for.wait(30)
        done.append("b")

    def wait(futures):
        waited_for.set()
        return futures_wait(futures)

    monkeypatch.setattr(_workers, "wait", wait)
    acts = {"a": interrupt, "b": end, "c": lambda: done.append("c")}
    works = [Acting(name, cost, act=acts[name]) for name, cost in {"a": 3, "b": 2, "c": 1}.items()]
    workers, data = Workers(2), SimpleNamespace(local=lambda clients: None)
    with pytest.raises(KeyboardInterrupt):
        workers.run(works, balanced_tree, joined, data)
    workers.close()
    assert done == ["b"]


def test_after_a_death_works_are_sent_one_by_one(monkeypatch):
    """What holds the work of d dies with its process: d alone fails, and the tree is the same."""
    sent = []

    def send(self, calls):
        for call in calls:
            sent.append("".join(call.payload))
            if "d" in call.payload:
                raise BrokenProcessPool
            yield call.run(methodcaller("run", None))
        sent.append("end")

    monkeypatch.setattr(Workers, "_results", send)
    workers = Workers(1)
    workers.has_processes = True
    data = SimpleNamespace(payload=lambda clients, complete=False: clients)
    assert workers.run(named(), balanced_tree, joined, data) == "((a D) ((b f) (c e)))"
    # All of them; d with others, and alone; then the others, to the end.
    assert sent == ["adbfce", *"addbfce", "end"]


class Greedy(WeightedMean):
    """Cannot add up more than one part."""

    def accumulate(self, parts, members, part):
        if parts:
            raise ArithmeticError("no more")
        parts.append((members, part))


@pytest.mark.parametrize("n_jobs", [1, 2, 3])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_an_error_of_the_aggregator_ends_the_fit(ragged, monkeypatch, engine, n_jobs):
    """It is no client's failure, and no work is done again."""
    n_done = []

    def count(*arguments):
        n_done.append(1)
        return run_or_split(*arguments)

    monkeypatch.setattr(_tasks, "run_or_split", count)
    with parallel_config(backend="threading"), pytest.raises(ArithmeticError, match="no more"):
        fit(ragged, engine, aggregator=Greedy(), n_jobs=n_jobs)
    assert 2 <= len(n_done) <= 9


@pytest.mark.parametrize("n_jobs", [2, 3])
def test_a_chunk_that_raises_is_trained_client_by_client(ragged, monkeypatch, same_model, n_jobs):
    """Its updates are joined at its place in the tree."""
    whole = ChunkTraining.run

    def run(self, load):
        if len(self.members) > 1:
            raise RuntimeError("too many at once")
        return whole(self, load)

    budget = {"memory_budget": 10_000}
    one = fit(ragged, "stacked", **budget)
    monkeypatch.setattr(ChunkTraining, "run", run)
    with parallel_config(backend="threading"):
        alone = fit(ragged, "stacked", n_jobs=1, **budget)
        jobs = fit(ragged, "stacked", n_jobs=n_jobs, **budget)
    assert same_model(alone, jobs)
    assert np.allclose(one.predict_proba(ragged[0]), jobs.predict_proba(ragged[0]), atol=1e-12)
    assert not jobs.history_["n_failed"].any()


def fit(data, engine, module=nn.Linear, **params):
    """Fit in float64, so that the order of a sum shows in its bits."""
    X, y, clients = data
    torch.manual_seed(0)
    params = {"selector": ALL, "n_rounds": 2, "memory_budget": 2000, "random_state": 0} | params
    model = FederatedClassifier(
        net(module(X.shape[1], len(set(y))).double()), engine=engine, **params
    )
    return model.fit(X, y, clients=clients)


def own_rule():
    class OwnCombine(WeightedMean):  # in here, since joblib sends such a class by value
        """Gets the part of each work, since its combine is its own."""

        def combine(self, model, parts, cohort, parameters):
            return super().combine(model, parts, cohort, parameters)

    return OwnCombine()


RULES = {"mean": WeightedMean(), "median": CoordinateMedian(), "own combine": own_rule()}


@pytest.fixture(scope="module")
def fits(ragged):
    """Return a function that fits with any rule and engine."""

    def fits(**params):
        selector = PowerOfChoice(d=9, clients_per_round=7)
        return {
            (rule, engine): fit(ragged, engine, aggregator=RULES[rule], selector=selector, **params)
            for rule in RULES
            for engine in ("stacked", "loop")
        }

    return fits


@pytest.fixture(scope="module")
def serial(fits):
    return fits()


@pytest.mark.parametrize("n_jobs", [2, 3, 4])
@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_the_bits_are_the_same_for_any_n_jobs(serial, fits, same_model, n_jobs, backend):
    with parallel_config(backend=backend):
        found = fits(n_jobs=n_jobs)
    for name, model in found.items():
        assert same_model(serial[name], model)
        for column in ("objective", "train_loss", "samples_trained", "cohort"):
            assert serial[name].history_[column].equals(model.history_[column])


@pytest.mark.parametrize("n_jobs", [1, 2, 3, 4])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize(("rule", "n_parts"), [("mean", 1), ("median", 9), ("own combine", 9)])
def test_a_job_gets_one_task_a_round(ragged, tasks, rule, n_parts, engine, n_jobs):
    """It returns one part, if models are added up, else that of each of the nine works."""
    settings = {"selector": PowerOfChoice(d=9, clients_per_round=9), "memory_budget": 1}
    with parallel_config(backend="threading"):
        fit(ragged, engine, aggregator=RULES[rule], n_jobs=n_jobs, **settings)
    assert [len(shares) for shares, _ in tasks] == [n_jobs] * 4  # polls, trainings of two rounds
    for shares, results in tasks[1::2]:
        counts = [sum(len(updates.parts) for updates in found) for found in results]
        if rule == "mean":
            assert counts == [n_parts * (len(one.works) - sum(one.n_joins)) for one in shares]
            assert n_jobs == 3 or counts == [n_parts] * n_jobs
        else:
            assert sum(counts) == n_parts


class Fragile(nn.Linear):
    """Raises at rows that hold 7."""

    def forward(self, X):
        if (X == 7).any():
            raise RuntimeError("no sevens")
        return super().forward(X)


@pytest.mark.parametrize("n_jobs", [1, 2, 3])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_failures_are_logged_in_the_order_of_the_cohort(ragged, caplog, engine, n_jobs):
    """Clients have 2, 40, 7, 18, 20, 34, 10, 25 and 6 rows: another order in the tree."""
    X, y, clients = ragged
    X, failing = X.copy(), [1, 2, 5, 8]
    for k in failing:
        if engine == "loop":
            X[np.flatnonzero(clients == k)[-1]] = 7  # not the first row, which the net is tried on
        else:
            X[clients == k] *= 1e200  # the second step overflows
    module = Fragile if engine == "loop" else nn.Linear
    cause = "no sevens" if engine == "loop" else "its update is not finite"
    params = {"module": module, "n_rounds": 1, "local_epochs": 2, "n_jobs": n_jobs}
    with caplog.at_level(logging.WARNING, logger="skfed"), parallel_config(backend="threading"):
        model = fit((X, y, clients), engine, **params)
    logged = [r.getMessage() for r in caplog.records if "fails in round" in r.getMessage()]
    for k, line in zip(failing, logged, strict=True):
        assert line.startswith(f"client {k} fails in round 0") and cause in line
    assert model.history_["failed"][0] == tuple(failing)
    assert model.history_["cohort"][0] == (0, 3, 4, 6, 7)
    with parallel_config(backend="threading"), pytest.raises(Exception, match=cause) as raised:
        fit((X, y, clients), engine, on_client_error="raise", **params)
    notes = ["while training client 1 in round 0", "client 1 in round 0"]
    assert raised.value.__notes__[:2] == notes


def test_few_sums_are_kept_at_a_time():
    """Of 64 clients at most one for each level of the tree, and the one that is being made."""
    kept, most = [], 0

    class Watched(WeightedMean):
        def accumulate(self, parts, members, part):
            nonlocal most
            super().accumulate(parts, members, part)
            kept.append(weakref.ref(next(iter(parts[0][1].values()))))
            most = max(most, sum(one() is not None for one in kept))

    rng = np.random.default_rng(0)
    clients = np.repeat(np.arange(64), 3)
    data = rng.normal(size=(len(clients), 4)), np.arange(len(clients)) % 3, clients
    fit(data, "loop", aggregator=Watched(), n_rounds=1)
    assert len(kept) == 64 + 63
    assert 2 <= most <= 6 + 2

"""Each job gets one task a round, and no result depends on how many there are."""

import logging
import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from joblib import parallel_config
from parity import ALL, net
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice
from skfed.aggregation import CoordinateMedian, WeightedMean
from skfed.engines._tasks import balanced_tree, consecutive_tree, fold, run_works
from skfed.engines._workers import Workers, run_or_split


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
    """The works of each call of workers, and their results."""
    calls, real = [], Workers.map

    def kept(self, works, data):
        results = list(real(self, works, data))
        calls.append((works, results))
        return results

    monkeypatch.setattr(Workers, "map", kept)
    return calls


@pytest.mark.parametrize(
    ("n_jobs", "expected"),
    [
        (1, ["a d b f c e"]),
        (2, ["a d", "b f c e"]),
        (3, ["a", "d", "b f c e"]),
        (4, ["a", "d", "b f", "c e"]),
        (7, list("adbfce")),
    ],
)
def test_the_heaviest_work_is_cut_until_each_job_has_one(tasks, n_jobs, expected):
    """The halves are 11 = 9 + 2 and 11 = (5 + 1) + (4 + 1)."""
    workers = Workers(n_jobs)
    result = run_works(named(), balanced_tree, joined, workers, SimpleNamespace(local=None))
    workers.close()
    assert result == "((a d) ((b f) (c e)))"
    ((works, _),) = tasks
    assert [" ".join(work.clients) for work in works] == expected


@pytest.mark.parametrize("n_jobs", [1, 2, 3, 4])
def test_a_work_that_fails_leaves_the_others(n_jobs):
    workers, data = Workers(n_jobs), SimpleNamespace(local=None)
    result = run_works(named(fails="bd"), balanced_tree, joined, workers, data)
    workers.close()
    assert result == "((a D) ((B f) (c e)))"


def test_a_task_whose_process_dies_is_joined_in_the_same_order(tasks):
    """As after a death: what holds the work of d fails as a whole, until that is alone."""
    workers = Workers(1)
    run_works(named(), balanced_tree, joined, workers, SimpleNamespace(local=None))
    (((task,), _),) = tasks
    sent = []

    def send(work):
        sent.append("".join(work.clients))
        if "d" in work.clients:
            raise OSError("terminated")
        return work.run(None)

    assert run_or_split(task, send, (OSError,)) == "((a D) ((b f) (c e)))"
    assert sent == ["adbfce", "ad", "a", "d", "bfce"]


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


@pytest.mark.parametrize("n_jobs", [1, 2, 3])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize(("rule", "n_parts"), [("mean", 1), ("median", 9), ("own combine", 9)])
def test_a_job_gets_one_task_a_round(ragged, tasks, rule, n_parts, engine, n_jobs):
    """It returns one part, if models are added up, else that of each of the nine works."""
    settings = {"selector": PowerOfChoice(d=9, clients_per_round=9), "memory_budget": 1}
    with parallel_config(backend="threading"):
        fit(ragged, engine, aggregator=RULES[rule], n_jobs=n_jobs, **settings)
    assert [len(works) for works, _ in tasks] == [n_jobs] * 4  # polls and trainings of two rounds
    for _, results in tasks[1::2]:
        if rule == "mean":
            assert [len(updates.parts) for updates in results] == [n_parts] * n_jobs
        else:
            assert sum(len(updates.parts) for updates in results) == n_parts


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

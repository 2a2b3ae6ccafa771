"""What other processes keep of the clients' rows."""

import pickle
from itertools import cycle

import numpy as np
import pytest

from skfed import FederatedClassifier, PowerOfChoice
from skfed._federation import make_federation
from skfed.engines import _worker_data
from skfed.engines._data import Rows
from skfed.engines._worker_data import CacheMiss, ClientRows, DataRef, WorkerCache, serve
from skfed.engines._workers import Workers


@pytest.fixture
def shelf(monkeypatch):
    monkeypatch.setattr(_worker_data, "_worker_cache", WorkerCache())
    return _worker_data._worker_cache


@pytest.fixture
def held():
    """Five clients of 4 rows of 24 bytes each, target included, where numbers tell them apart."""
    y = np.arange(20)
    X = np.stack([y, y + 0.5]).T
    return ClientRows(Rows(X, y), make_federation(y % 5, len(y)), budget=3 * 4 * 24)


def totals(factor, made):
    return [factor * total for total in made]


def sums(rows, numbers):
    return [rows.X[mine].sum() + rows.y[mine].sum() for mine in numbers]


def journey(share):
    return serve(totals, (2,), pickle.loads(pickle.dumps(share.parcel())))


def test_rows_that_are_lacking_travel_once(held, shelf):
    share = DataRef(held, [3, 0, 3], sums)
    expected = totals(2, share.here())
    lacking = journey(share)
    assert lacking == CacheMiss({held.name(0), held.name(3)})
    again = share.carrying(lacking.names)
    assert again.parcel().arrays.keys() == lacking.names
    assert journey(again) == expected
    share.parcel()  # goes with what was lacking, once
    assert not share.parcel().arrays
    assert journey(share) == expected


def test_what_lacks_twice_travels_whole(held, shelf):
    share = DataRef(held, [0, 1], sums)
    once = share.carrying({held.name(0)})
    assert once.carrying({held.name(1)}).parcel().arrays.keys() == {held.name(0), held.name(1)}


def test_beyond_the_budget_those_unused_for_longest_go(held, shelf):
    for clients in ([0], [1], [2], [0], [3]):
        assert isinstance(journey(DataRef(held, clients, sums).complete()), list)
    held.due.clear()
    assert [isinstance(journey(DataRef(held, [k], sums)), list) for k in range(4)] == [
        True, False, True, True,
    ]  # fmt: skip


def test_a_part_is_made_of_the_whole(held):
    class Made(list):
        def subset(self, which):
            return self[which]

    share = DataRef(held, [0, 1], lambda rows, numbers: Made(sums(rows, numbers)))
    assert share.part(1).here() == DataRef(held, [1], sums).here()[0]


def test_rows_are_named_by_what_they_hold(held):
    X, y = held.rows.X, held.rows.y
    again = ClientRows(Rows(X[::-1], y[::-1]), make_federation(y[::-1] % 5, len(y)), budget=0)
    assert held.name(0) != again.name(0)  # in another order
    forth = ClientRows(Rows(X.copy(), y), make_federation(y % 5, len(y)), budget=9)
    assert held.name(0) == forth.name(0) != forth.name(1)


@pytest.fixture
def processes(monkeypatch):
    """Have work dealt out in turn to so many processes, which are imagined; count rows sent."""
    n_sent, n_workers = [], 1

    def dealt(shelves, self, works):
        for work in works:
            parcel = pickle.loads(pickle.dumps(work.share.parcel()))
            n_sent.append(len(parcel.arrays))
            monkeypatch.setattr(_worker_data, "_worker_cache", next(shelves))
            yield serve(work.function, work.arguments, parcel)

    def start(n):
        nonlocal n_workers
        n_workers = n
        shelves = cycle([WorkerCache() for _ in range(n)])
        monkeypatch.setattr(Workers, "_results", lambda *given: dealt(shelves, *given))
        return n_sent

    real = Workers.__init__

    def elsewhere(self, *arguments, **settings):
        real(self, *arguments, **settings)
        self.elsewhere, self.n_workers = True, n_workers

    monkeypatch.setattr(Workers, "__init__", elsewhere)
    return start


@pytest.mark.parametrize("budget", [1, 2**30])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_rows_reach_processes_that_are_dealt_work_in_turn(
    blobs, same_model, request, engine, n, budget
):
    X, y, clients = blobs
    params = {"selector": PowerOfChoice(d=6, clients_per_round=6), "engine": engine}
    params |= {"n_rounds": 8, "memory_budget": budget, "random_state": 0}
    here = FederatedClassifier(**params).fit(X, y, clients=clients)
    n_sent = request.getfixturevalue("processes")(n)
    there = FederatedClassifier(**params).fit(X, y, clients=clients)
    assert same_model(here, there)
    if budget > 1:
        assert 6 * n <= sum(n_sent) <= 6 * 3 * n
        assert sum(n_sent[-2:]) == 0

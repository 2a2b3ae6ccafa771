"""Splitters by client."""

import numpy as np
import pytest
from sklearn.base import clone

from skfed.model_selection import LeaveClientsOut, WithinClientKFold

CLIENTS = np.array(["a"] * 10 + ["b"] * 3 + ["c"] + ["d"] * 6 + ["e"] * 5 + ["f"] * 2)
X = np.zeros((len(CLIENTS), 2))


def by_test(splitter, clients=CLIENTS):
    folds = list(splitter.split(np.zeros(len(clients)), groups=clients))
    for train, test in folds:
        assert sorted([*train, *test]) == list(range(len(clients)))
    return folds


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_client_is_in_train_and_test(shuffle):
    folds = by_test(WithinClientKFold(3, shuffle=shuffle, random_state=0 if shuffle else None))
    for train, test in folds:
        assert set(CLIENTS[train]) == set("abcdef")
        assert {"a", "b", "d", "e"} <= set(CLIENTS[test])
    tested = np.concatenate([test for _, test in folds])
    # Each row once, but the only row of c.
    assert sorted(tested) == [i for i in range(len(CLIENTS)) if CLIENTS[i] != "c"]
    sizes = [np.isin(test, np.flatnonzero(CLIENTS == "a")).sum() for _, test in folds]
    assert sorted(sizes) == [3, 3, 4]


def test_rows_of_small_clients_are_in_all_folds():
    clients = np.arange(400) // 2
    folds = by_test(WithinClientKFold(5, random_state=0), clients)
    assert all(len(test) == pytest.approx(80, abs=30) for _, test in folds)


def test_whole_clients_are_left_out_but_never_priority_ones():
    folds = by_test(LeaveClientsOut(2, priority=["a", "c"], random_state=0))
    left_out = [set(CLIENTS[test]) for _, test in folds]
    assert left_out[0] | left_out[1] == set("bdef")
    assert not left_out[0] & left_out[1]
    for train, test in folds:
        assert not set(CLIENTS[train]) & set(CLIENTS[test])
        assert {"a", "c"} <= set(CLIENTS[train])


def test_without_priority_everybody_is_left_out_once():
    folds = by_test(LeaveClientsOut(6))
    assert sorted(set(CLIENTS[test]).pop() for _, test in folds) == list("abcdef")


@pytest.mark.parametrize("make", [WithinClientKFold, LeaveClientsOut])
def test_the_seed_and_not_the_order_of_rows_determines_the_folds(make):
    first, again, other = (by_test(make(2, random_state=s)) for s in (0, 0, 1))
    assert all((a[1] == b[1]).all() for a, b in zip(first, again, strict=True))
    assert any(len(a[1]) != len(b[1]) or (a[1] != b[1]).any() for a, b in zip(first, other))  # noqa: B905
    shuffled = np.random.default_rng(0).permutation(len(CLIENTS))
    if make is LeaveClientsOut:
        moved = by_test(make(2, random_state=0), CLIENTS[shuffled])
        for (_, test), (_, there) in zip(first, moved, strict=True):
            assert set(CLIENTS[test]) == set(CLIENTS[shuffled][there])


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match=r"LeaveClientsOut splits by client: pass groups="):
        next(LeaveClientsOut().split(X))
    with pytest.raises(ValueError, match=r"n_splits=5.*groups has 4: lower n_splits"):
        next(LeaveClientsOut(priority=["a", "c"]).split(X, groups=CLIENTS))
    with pytest.raises(ValueError, match="n_splits"):
        next(WithinClientKFold(1).split(X, groups=CLIENTS))
    with pytest.raises(ValueError, match=r"priority names 1 client.*'z'"):
        next(LeaveClientsOut(priority=["z"]).split(X, groups=CLIENTS))


def test_they_are_scikit_learn_splitters():
    splitter = LeaveClientsOut(3, priority=["a"], random_state=1)
    assert splitter.get_n_splits(X, groups=CLIENTS) == 3
    assert "LeaveClientsOut(n_splits=3" in repr(splitter)
    assert splitter.get_metadata_routing().split.requests == {"groups": "clients"}
    assert clone(splitter).priority == ["a"]

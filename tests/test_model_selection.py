"""Splitters by client."""

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_score,
)

from skfed import FederatedClassifier
from skfed.metrics import priority_accuracy
from skfed.model_selection import (
    LeaveClientsOut,
    WithinClientKFold,
    WithinClientStratifiedKFold,
    WithinClientTimeSeriesSplit,
)

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


LABELS = np.random.default_rng(0).integers(0, 3, len(CLIENTS))


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_client_has_its_labels_in_equal_proportions_in_all_folds(shuffle):
    splitter = WithinClientStratifiedKFold(3, shuffle=shuffle, random_state=0 if shuffle else None)
    folds = list(splitter.split(X, LABELS, groups=CLIENTS))
    tested = np.concatenate([test for _, test in folds])
    assert sorted(tested) == [i for i in range(len(CLIENTS)) if CLIENTS[i] != "c"]
    for train, test in folds:
        assert sorted([*train, *test]) == list(range(len(CLIENTS)))
        assert set(CLIENTS[train]) == set("abcdef")
    for client in "abdef":
        own = [test[CLIENTS[test] == client] for _, test in folds]
        assert np.ptp([len(rows) for rows in own]) <= 1
        for label in range(3):
            assert np.ptp([(LABELS[rows] == label).sum() for rows in own]) <= 1


def test_stratified_folds_of_one_client_have_the_sizes_of_scikit_learns():
    y = np.repeat([0, 1, 2], [9, 12, 21])
    own = WithinClientStratifiedKFold(3, random_state=0).split(y, y, groups=[1] * len(y))
    theirs = StratifiedKFold(3).split(y, y)
    for (_, test), (_, expected) in zip(own, theirs, strict=True):
        assert np.bincount(y[test]).tolist() == np.bincount(y[expected]).tolist()


def test_the_seed_determines_the_stratified_folds():
    def tests(seed):
        splitter = WithinClientStratifiedKFold(2, random_state=seed)
        return [test.tolist() for _, test in splitter.split(X, LABELS, groups=CLIENTS)]

    assert tests(0) == tests(0) != tests(1)


@pytest.mark.parametrize("n_splits", [2, 5])
def test_each_client_is_split_in_time_as_scikit_learn_splits_it_alone(n_splits):
    rng = np.random.default_rng(0)
    clients = rng.permutation(np.repeat(["a", "b", "c"], [6, 13, 40]))
    folds = list(WithinClientTimeSeriesSplit(n_splits).split(clients, groups=clients))
    assert len(folds) == n_splits
    for client in "abc":
        rows = np.flatnonzero(clients == client)
        alone = TimeSeriesSplit(n_splits).split(rows)
        for (train, test), (before, after) in zip(folds, alone, strict=True):
            assert train[clients[train] == client].tolist() == rows[before].tolist()
            assert test[clients[test] == client].tolist() == rows[after].tolist()


def test_a_client_of_few_rows_is_tested_in_the_last_folds_and_always_in_train():
    clients = np.array(["few", "one", *["many"] * 8, "few", "few"])
    folds = list(WithinClientTimeSeriesSplit(4).split(clients, groups=clients))
    assert [train[clients[train] == "few"].tolist() for train, _ in folds] == [
        [0], [0], [0], [0, 10]
    ]  # fmt: skip
    assert [test[clients[test] == "few"].tolist() for _, test in folds] == [[], [], [10], [11]]
    assert all("one" in clients[train] and "one" not in clients[test] for train, test in folds)


SPLITTERS = (
    WithinClientKFold(2, random_state=0),
    WithinClientStratifiedKFold(2, random_state=0),
    WithinClientTimeSeriesSplit(2),
)


@pytest.mark.parametrize("cv", SPLITTERS, ids=lambda cv: type(cv).__name__)
def test_a_search_splits_within_clients_with_routing_on_and_off(blobs, cv):
    X, y, clients = blobs
    model = FederatedClassifier(random_state=0, priority=["a", "b"])
    with sklearn.config_context(enable_metadata_routing=True):
        routed = GridSearchCV(model, {"n_rounds": [1, 2]}, cv=cv).fit(X, y, clients=clients)
        priority = cross_val_score(
            model, X, y, cv=cv, scoring=priority_accuracy, params={"clients": clients}
        )
    plain = GridSearchCV(model, {"n_rounds": [1, 2]}, cv=cv)
    plain.fit(X, y, groups=clients, clients=clients)
    scores = "split0_test_score", "split1_test_score"
    assert all((routed.cv_results_[s] == plain.cv_results_[s]).all() for s in scores)
    assert np.isfinite(priority).all()


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
    with pytest.raises(ValueError, match=r"leaves 5 fold\(s\) without test rows.*has 1 row.*Lower"):
        next(WithinClientKFold().split(X, groups=np.arange(len(X))))
    with pytest.raises(ValueError, match=r"n_splits=5 leaves 3 fold\(s\) without test rows"):
        next(WithinClientStratifiedKFold().split(X[:2], [0, 1], groups=["a", "a"]))
    with pytest.raises(ValueError, match=r"WithinClientStratifiedKFold splits by label: pass y"):
        next(WithinClientStratifiedKFold().split(X, groups=CLIENTS))
    with pytest.raises(ValueError, match=r"y has continuous targets.*use WithinClientKFold"):
        next(WithinClientStratifiedKFold().split(X, np.linspace(0, 1, len(X)), groups=CLIENTS))
    with pytest.raises(ValueError, match=r"X, y: .*inconsistent"):
        next(WithinClientStratifiedKFold().split(X, LABELS[1:], groups=CLIENTS))
    with pytest.raises(ValueError, match=r"n_splits=40 needs a client with 41 rows.*has 10"):
        next(WithinClientTimeSeriesSplit(40).split(X, groups=CLIENTS))
    with pytest.raises(ValueError, match=r"WithinClientTimeSeriesSplit splits by client: pass"):
        next(WithinClientTimeSeriesSplit().split(X))
    with pytest.raises(ValueError, match=r"priority names 1 client.*'z'"):
        next(LeaveClientsOut(priority=["z"]).split(X, groups=CLIENTS))


@pytest.mark.parametrize(
    "splitter", [WithinClientKFold, WithinClientStratifiedKFold, LeaveClientsOut]
)
def test_parameters_are_refused_where_scikit_learn_refuses_them(splitter):
    refused = [
        ({"shuffle": False, "random_state": 1}, ValueError, r"random_state=1 has no effect with"),
        ({"shuffle": 1}, TypeError, "shuffle must be an instance of"),
        ({"shuffle": "no"}, TypeError, "shuffle must be an instance of"),
        ({"n_splits": 2.0}, TypeError, "n_splits must be an instance of int"),
        ({"n_splits": "2"}, TypeError, "n_splits must be an instance of int"),
        ({"n_splits": 0}, ValueError, "n_splits == 0, must be >= 2"),
        ({"n_splits": True}, ValueError, "n_splits == True, must be >= 2"),
        ({"random_state": "a"}, ValueError, "'a' cannot be used to seed"),
    ]
    for params, error, message in refused:
        with pytest.raises((ValueError, TypeError)):
            list(KFold(**params).split(X))
        with pytest.raises(error, match=message):
            next(splitter(**params).split(X, LABELS, groups=CLIENTS))


def test_they_are_scikit_learn_splitters():
    splitter = LeaveClientsOut(3, priority=["a"], random_state=1)
    assert splitter.get_n_splits(X, groups=CLIENTS) == 3
    assert "LeaveClientsOut(n_splits=3" in repr(splitter)
    assert splitter.get_metadata_routing().split.requests == {"groups": "clients"}
    assert clone(splitter).priority == ["a"]

"""No choice, and no training, has seen a row that is reported."""

import numpy as np
import pytest

from benchmarks.selection.conditions import (
    CONDITIONS,
    deadline,
    priority_of_one_kind,
    random_priority,
    wrong_labels,
)
from benchmarks.selection.data import DATA, Data, _filled, one_label_each
from benchmarks.selection.splits import TEST, TRAINING, VALIDATION, Split, roles, split

ROWS = np.arange(1000)
LABELS = ROWS % 7 % 3


def redrawn_clients(seed):
    """Return rows that say which they are, of clients that are drawn."""
    clients = np.random.default_rng(seed).integers(20, size=len(ROWS))
    return ROWS[:, None].astype(np.float32), LABELS, clients


PARTITIONED = Data("rows", redrawn_clients, 20)


def rows_of(found):
    return [set(X.ravel().astype(int)) for X in (found.X, found.X_val, found.X_test)]


def test_test_rows_are_the_same_for_all_seeds_and_never_trained_on_or_chosen_by():
    splits = [PARTITIONED.split(seed) for seed in (0, 1, 2, 100)]
    tested = rows_of(splits[0])[2]
    assert any((one.clients != splits[0].clients).any() for one in splits)
    for one in splits:
        train, val, test = rows_of(one)
        assert test == tested
        assert not (train | val) & tested and not train & val
        assert len(train | val | test) == len(ROWS)


def test_a_row_keeps_its_client_and_label():
    _, y, clients = redrawn_clients(5)
    found = PARTITIONED.split(5)
    for part in ("", "_val", "_test"):
        rows = getattr(found, f"X{part}").ravel().astype(int)
        np.testing.assert_array_equal(getattr(found, f"y{part}"), y[rows])
        np.testing.assert_array_equal(getattr(found, f"clients{part}"), clients[rows])


def test_each_label_is_split_into_three_fifths_and_two_times_one():
    role = roles(LABELS)
    for label in range(3):
        shares = np.bincount(role[LABELS == label]) / (LABELS == label).sum()
        np.testing.assert_allclose(shares, [0.6, 0.2, 0.2], atol=0.005)


def test_each_client_of_the_datas_own_is_split_even_if_its_labels_are_few():
    clients = np.repeat(["a", "b", "c"], [10, 50, 940])
    role = roles(LABELS, clients)
    for client in "abc":
        own = np.bincount(role[clients == client], minlength=3)
        assert abs(own - own.sum() * np.array([0.6, 0.2, 0.2])).max() <= 2, client


def test_missing_values_are_filled_from_training_rows_alone():
    X = np.array([[1.0], [3.0], [np.nan], [100.0]], dtype=np.float32)
    filled = _filled(X, np.array([True, True, False, False]))
    assert filled.ravel().tolist() == [1, 3, 2, 100]


def test_one_label_a_client_and_as_many_clients_a_label():
    clients = one_label_each(LABELS, 6, np.random.default_rng(0))
    assert {tuple(np.unique(LABELS[clients == k])) for k in range(6)} == {(0,), (1,), (2,)}
    assert [len(np.unique(clients[LABELS == label])) for label in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("name", ["digits", "synthetic-1-1"])
def test_clients_of_generated_data_have_rows_of_each_role(name):
    found = DATA[name].split(0)
    assert len(np.unique(found.clients)) == DATA[name].n_clients
    assert len(found.y_test) / len(found.y) == pytest.approx(1 / 3, abs=0.02)
    assert DATA[name].clients_per_round == 3


def by_hand():
    """Return ten clients of ten rows, of which client k has k rows of label 1, else label 0."""
    clients = np.repeat(np.arange(10), 10)
    y = (np.tile(np.arange(10), 10) < clients).astype(int)
    X = np.zeros((100, 1), dtype=np.float32)
    return Split(X, y, clients, X, y, clients, X, y, clients)


def test_wrong_labels_are_of_a_fifth_of_the_clients_and_of_no_test_row():
    clean = by_hand()
    found = wrong_labels(clean, np.random.default_rng(0))
    changed = np.unique(clean.clients[found.y != clean.y])
    assert len(changed) == 2
    assert set(np.unique(clean.clients_val[found.y_val != clean.y_val])) <= set(changed)
    np.testing.assert_array_equal(found.y_test, clean.y_test)


def test_priority_of_one_kind_has_the_largest_shares_of_a_label():
    kinds = {
        tuple(sorted(priority_of_one_kind(by_hand(), np.random.default_rng(s)).priority.tolist()))
        for s in range(20)
    }
    assert kinds == {(0, 1), (8, 9)}
    assert len(set(random_priority(by_hand(), np.random.default_rng(0)).priority)) == 2


def test_the_deadline_is_what_three_quarters_of_the_devices_keep():
    """20 steps of 32 rows are 64 s at 10 rows a second; exp(.5 * .6745) = 1.4011 times slower."""
    assert deadline(Data("", redrawn_clients, 20)) == pytest.approx(89.7)
    conditions = [c for c in CONDITIONS.values() if "deadline" in c.training(PARTITIONED)]
    assert len(conditions) == 1 and conditions[0].has_devices


def test_roles_are_named_by_their_order():
    X = np.arange(3.0)[:, None]
    found = split(X, np.arange(3), np.arange(3), np.array([TEST, TRAINING, VALIDATION]))
    assert (found.y.item(), found.y_val.item(), found.y_test.item()) == (1, 2, 0)

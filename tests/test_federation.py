import numpy as np
import pandas as pd
import pytest

from skfed._federation import make_federation, rows_of


def test_rows_sizes_and_fractions_by_hand():
    federation = make_federation(["b", "a", "b", "c", "b"], 5, priority=["a", "c"])
    assert federation.ids.tolist() == ["a", "b", "c"]
    assert federation.sizes.tolist() == [1, 3, 1]
    assert federation.priority.tolist() == [True, False, True]
    assert federation.fractions.tolist() == [0.5, 1.5, 0.5]
    assert [federation.rows(k).tolist() for k in range(3)] == [[1], [0, 2, 4], [3]]


@pytest.mark.parametrize(
    "clients",
    [
        [3, 1, 3, 2],
        np.array([3, 1, 3, 2], dtype=np.int32),
        pd.Series([3, 1, 3, 2], index=[9, 9, 9, 9]),
        pd.Series(["3", "1", "3", "2"], dtype="category"),
        pd.Series([3, 1, 3, 2], dtype="Int64"),
        [(3, "x"), (1, "x"), (3, "x"), (2, "x")],
        [3.5, 1.5, 3.5, 2.5],
        pd.to_datetime(["2026-03-01", "2026-01-01", "2026-03-01", "2026-02-01"]),
    ],
)
def test_ids_of_any_type_are_sorted_by_value(clients):
    federation = make_federation(clients, 4)
    assert [federation.rows(k).tolist() for k in range(3)] == [[1], [3], [0, 2]]


@pytest.mark.parametrize(
    "low, high, dtype",
    [
        (-128, 127, np.int8),
        (-(2**31), -(2**31) + 2**16 - 1, np.int32),
        (2**31 - 2**16, 2**31 - 1, np.int32),
        (0, 2**16, np.int64),
        (-(2**63), 2**63 - 1, np.int64),
        (2**64 - 2**16, 2**64 - 1, np.uint64),
    ],
)
def test_rows_keep_their_order_whatever_the_range_of_ids(low, high, dtype):
    clients = np.array([high, low, high, low, low], dtype)
    federation = make_federation(clients, 5)
    assert federation.ids.tolist() == [low, high]
    assert [federation.rows(k).tolist() for k in range(2)] == [[1, 3, 4], [0, 2]]


def test_mixed_ids_differ_by_type_and_sorted_by_type_name():
    federation = make_federation([1, "1", 1.0, True, 1], 5)
    assert [type(i).__name__ for i in federation.ids] == ["bool", "float", "int", "str"]
    assert federation.sizes.tolist() == [1, 1, 2, 1]


@pytest.mark.parametrize(
    "clients",
    [
        [frozenset({"b", "x"}), frozenset({"a"}), frozenset({"x", "b"}), frozenset({"a", "c"})],
        [2j, 1j, 2j, 3j],
    ],
)
def test_ids_without_an_order_of_their_own_do_not_follow_the_rows(clients):
    federations = [make_federation(clients, 4), make_federation(clients[::-1], 4)]
    assert sorted(federations[0].sizes.tolist()) == [1, 1, 2]
    assert federations[0].ids.tolist() == federations[1].ids.tolist()


def test_tuples_differ_by_the_types_inside():
    federation = make_federation([(1, "x"), (1.0, "x"), (np.int64(1), "x")], 3)
    assert federation.sizes.tolist() == [1, 2]
    assert federation.digest(0) != federation.digest(1)
    assert federation.digest(1) == make_federation([(np.int8(1), "x")], 1).digest(0)


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_dates_as_priority(unit):
    dates = np.array(["2026-01-02", "2026-01-01"], dtype=f"datetime64[{unit}]")
    for clients in (dates, list(dates), pd.Series(dates)):
        assert make_federation(clients, 2, priority=dates[:1]).priority.tolist() == [False, True]


@pytest.mark.parametrize(
    "ids", [[1, 2, -3], [True, False], [1.5, np.inf], ["a", "b{", "é"], [1, "1", 1.5, (1, "a")]]
)
def test_digests_of_many_clients_are_those_of_each(ids):
    federation = make_federation(ids, len(ids))
    one_by_one = [federation.digest(k) for k in range(len(ids))]
    assert federation.digests(np.arange(len(ids))) == one_by_one
    assert federation.digests(np.array([1])) == one_by_one[1:2]
    assert federation.digests(np.zeros(0, dtype=int)) == []


def test_the_digest_depends_on_type_and_value_and_not_on_the_container():
    as_array = make_federation(np.array([7, 8], dtype=np.uint8), 2)
    as_objects = make_federation([7, 8, "7"], 3)
    assert as_array.digest(0) == as_objects.digest(0)
    assert as_objects.digest(0) != as_objects.digest(2)


def test_priority_is_found_across_numeric_types():
    federation = make_federation(np.array([1.0, 2.0]), 2, priority=[2])
    assert federation.priority.tolist() == [False, True]
    assert make_federation([5, 6], 2, priority={6}).priority.tolist() == [False, True]


@pytest.mark.parametrize(
    ("clients", "match"),
    [
        (["a", "b"], "clients has 2 entries, but X has 3 rows"),
        (["a", None, "b"], r"clients has 1 missing value\(s\), the first at row 1"),
        ([1.0, 2.0, np.nan], r"clients has 1 missing value\(s\), the first at row 2"),
        (pd.Series([1, None, 2], dtype="Int64"), "clients has 1 missing"),
        ("abc", "clients must be an array of client ids"),
        (np.zeros((3, 2)), r"one dimension.*got shape \(3, 2\)"),
    ],
)
def test_clients_that_do_not_fit(clients, match):
    with pytest.raises(ValueError, match=match):
        make_federation(clients, 3)


def test_unhashable_and_anonymous_ids():
    with pytest.raises(TypeError, match="clients holds an id that is not hashable"):
        make_federation([[1], [2]], 2)
    with pytest.raises(TypeError, match="priority holds an id that is not hashable"):
        make_federation(["a"], 1, priority=[["a"]])
    with pytest.raises(ValueError, match="memory address"):
        make_federation([object()], 1).digest(0)


@pytest.mark.parametrize(
    ("priority", "match"),
    [
        ([], r"priority is empty \(\[\]\).*name at least one client"),
        (["a", "z"], r"priority names 1 client\(s\) that are not in clients: 'z'.*like 'a', 'b'"),
        ([1], "priority names 1 .* not in clients: 1"),
        ("a", "priority must be a collection of client ids, or a mapping.*got 'a'"),
        ({}, r"priority is empty \(\{\}\)"),
        ({"a": 0.0}, "priority is empty"),
        ({"a": 1.5}, r"priority gives client 'a' the weight 1.5: it must be in \[0, 1\]"),
        ({"a": "high"}, "priority gives client 'a' the weight 'high'"),
    ],
)
def test_priority_that_does_not_fit(priority, match):
    with pytest.raises(ValueError, match=match):
        make_federation(["a", "b"], 2, priority=priority)


def test_rows_of_some_clients():
    assert rows_of(
        ["a", "b", "a", "new"], 4, np.array(["a", "b", "c"]), np.array([True, False, True])
    ).tolist() == [True, False, True, False]
    wanted = rows_of(np.array([1.0, 2.0]), 2, np.array([1, 2]), np.array([False, True]))
    assert wanted.tolist() == [False, True]

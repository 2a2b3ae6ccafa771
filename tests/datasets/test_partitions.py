import numpy as np
import pytest

from skfed.datasets import (
    draw_shards,
    has_priority_label,
    partition_by_shards,
    partition_dirichlet,
)

Y = np.repeat(np.arange(10), 120)


def test_each_client_gets_equal_shards_of_few_classes():
    clients = partition_by_shards(Y, 60, shards_per_client=2, random_state=0)
    assert (np.bincount(clients) == 20).all()
    assert max(len(np.unique(Y[clients == k])) for k in range(60)) == 2
    # One-class shards of 10 rows: a client holds 10 or 20 rows of a class.
    counts = np.array([np.bincount(Y[clients == k], minlength=10) for k in range(60)])
    assert set(counts.ravel()) == {0, 10, 20}


def test_shards_that_do_not_divide_still_cover_every_row():
    clients = partition_by_shards(list("aabbbcc"), 3, shards_per_client=1, random_state=0)
    assert sorted(np.bincount(clients)) == [2, 2, 3]


@pytest.mark.parametrize("alpha", [0.1, 0.3, 2.0])
def test_dirichlet_gives_every_client_min_size_rows(alpha):
    clients = partition_dirichlet(Y, 20, alpha=alpha, min_size=10, random_state=0)
    assert clients.shape == Y.shape
    assert np.bincount(clients, minlength=20).min() >= 10


def test_a_smaller_alpha_is_more_heterogeneous():
    def largest_class_share(alpha):
        clients = partition_dirichlet(Y, 20, alpha=alpha, random_state=0)
        counts = [np.bincount(Y[clients == k], minlength=10) for k in range(20)]
        return np.mean([c.max() / c.sum() for c in counts])

    shares = [largest_class_share(alpha) for alpha in (0.1, 1.0, 100.0)]
    assert shares[0] > 0.5 > shares[1] > shares[2]
    assert shares[2] < 0.15


def test_a_full_client_gets_no_further_class():
    """A client that holds n / K rows of one class gets none of the next class."""
    y = np.repeat([0, 1], 50)
    for seed in range(20):
        clients = partition_dirichlet(y, 2, alpha=1.0, min_size=0, random_state=seed)
        first = np.bincount(clients[y == 0], minlength=2)
        if first.max() == 50:
            assert np.bincount(clients, minlength=2).tolist() == [50, 50]


def drawn_client_by_client(y, n_clients, alpha, rng):
    """Return one draw of a Dirichlet partition, the rows of a label cut into parts."""
    clients, sizes = np.full(len(y), -1), np.zeros(n_clients)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        has_room = sizes < len(y) / n_clients
        shares = rng.dirichlet([alpha] * n_clients) * has_room
        if not shares.sum() > 0:  # those who drew the label have no room; NaN for a tiny alpha
            shares = has_room * 1.0
        ends = (np.cumsum(shares / shares.sum()) * len(rows)).astype(int)
        for k, part in enumerate(np.split(rows, ends[:-1])):
            clients[part], sizes[k] = k, sizes[k] + len(part)
    return clients


@pytest.mark.parametrize("alpha", [1e-4, 0.3, 10.0])
def test_dirichlet_is_that_of_a_loop_over_clients(alpha):
    y = np.random.default_rng(0).choice(["a", "b", "c", "d"], 90, p=[0.6, 0.2, 0.15, 0.05])
    for seed in range(20):
        clients = partition_dirichlet(y, 3, alpha=alpha, min_size=0, random_state=seed)
        expected = drawn_client_by_client(y, 3, alpha, np.random.RandomState(seed))
        assert (clients == expected).all()


@pytest.mark.parametrize("partition", [partition_by_shards, partition_dirichlet])
def test_same_seed_same_partition(partition):
    same = [partition(Y, 10, random_state=0) for _ in range(2)]
    assert (same[0] == same[1]).all()
    assert (same[0] != partition(Y, 10, random_state=1)).any()


PARTITIONS = [partition_by_shards, partition_dirichlet]


def shares(clients, y, labels):
    """Return for each label and client the share of the label's rows that the client has."""
    counts = [np.bincount(clients[y == label], minlength=10) for label in labels]
    return np.array(counts) / np.sum(counts, axis=1, keepdims=True)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("seed", range(5))
def test_test_rows_of_a_label_are_shared_as_its_training_rows(partition, seed):
    y_test = np.random.default_rng(seed).integers(0, 9, 333)  # in other proportions, and no 9
    clients, clients_test = partition(Y, 10, y_test=y_test, random_state=seed)
    assert clients_test.shape == y_test.shape
    assert set(clients_test) <= set(range(10))
    expected = shares(clients, Y, range(9))
    got = shares(clients_test, y_test, range(9))
    sizes = np.bincount(y_test)[:, np.newaxis]
    assert (abs(got - expected) * sizes < 1).all()  # a row up or down
    assert not got[expected == 0].any()


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_multiple_of_the_training_rows_is_shared_exactly(partition):
    y_test = np.tile(Y, 3)
    clients, clients_test = partition(Y, 10, y_test=y_test, random_state=0)
    assert (shares(clients_test, y_test, range(10)) == shares(clients, Y, range(10))).all()


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_training_partition_does_not_depend_on_the_test_rows(partition):
    alone = partition(Y, 10, random_state=3)
    for y_test in (Y[::7], Y[:1], Y[:0]):
        clients, clients_test = partition(Y, 10, y_test=y_test, random_state=3)
        assert (clients == alone).all()
        assert len(clients_test) == len(y_test)
    again = [partition(Y, 10, y_test=Y[::7], random_state=3)[1] for _ in range(2)]
    assert (again[0] == again[1]).all()


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("label", [10, "1"])
def test_a_test_label_that_no_client_holds(partition, label):
    with pytest.raises(ValueError, match=f"y_test has the label {label!r}, which y lacks"):
        partition(Y, 10, y_test=[label], random_state=0)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_missing_labels_are_counted(missing):
    with pytest.raises(ValueError, match=r"y_test lacks 1 label\(s\): give these rows one"):
        partition_dirichlet(["a", "b"] * 30, 2, y_test=np.array(["a", missing], dtype=object))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: partition_by_shards(Y, 0), "n_clients.*Got 0"),
        (lambda: partition_by_shards(Y, 2, shards_per_client=0), "shards_per_client.*Got 0"),
        (lambda: partition_by_shards([1, 2], 2), "n_clients=2.*needs 4 rows at least, but y has 2"),
        (lambda: draw_shards(Y, 3, 1, shards_per_client=2), "n_shards=1 .*shards_per_client=2"),
        (lambda: partition_dirichlet(Y, 0), "n_clients.*Got 0"),
        (lambda: partition_dirichlet(Y, 2, alpha=0), "alpha == 0, must be > 0"),
        (lambda: partition_dirichlet(Y, 121), "min_size=10.*more than the 1200 rows"),
        (lambda: partition_dirichlet(Y, 120, alpha=0.01), "1000 draws.*raise alpha, or lower"),
    ],
)
def test_impossible_partitions(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_drawn_shards_are_shared_between_clients_and_differ_within_one():
    """1200 rows of 10 classes in 60 one-class shards of 20; 12 clients hold 24 each."""
    rows, clients = draw_shards(Y, 12, 60, random_state=0)
    assert (np.bincount(clients) == 24 * 20).all()
    for k in range(12):
        mine = rows[clients == k]
        assert len(set(mine)) == len(mine)
        counts = np.bincount(Y[mine], minlength=10)
        assert (counts % 20 == 0).all()
    assert len(set(rows)) < len(rows)
    again = draw_shards(Y, 12, 60, random_state=0)
    assert np.array_equal(rows, again[0])


@pytest.mark.parametrize(
    "params", [{"n_shards": 0}, {"n_shards": 10}, {"shards_per_client": 61}, {"n_clients": 0}]
)
def test_shards_that_cannot_be_drawn(params):
    with pytest.raises(ValueError, match="n_clients|n_shards|shards_per_client"):
        draw_shards(Y, **{"n_clients": 5, "n_shards": 60, **params})


def test_has_priority_label():
    y, clients = np.array(list("xyyz")), np.array([7, 8, 8, 9])
    held = has_priority_label(np.array(list("zyxw")), y, clients, priority=[7, 9])
    assert held.tolist() == [True, False, True, False]
    with pytest.raises(ValueError, match="priority names 1 client"):
        has_priority_label(y, y, clients, priority=[1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        has_priority_label(y, y, clients[:3], priority=[7])

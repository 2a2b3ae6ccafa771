"""HiCS-FL: entropies worked out by hand, clusters, draws by exact enumeration, and fits."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import entropy

from skfed import FederatedClassifier, FederatedRegressor, HicsFLSelector
from skfed.privacy import GaussianMechanism
from skfed.selection._hics import _cut, _drawn, distances_of, entropies_of
from skfed.selection._mock_round import mock_round

NAN = np.nan
TWO, ZERO, NEW = [0.002, 0, 0], [0, 0, 0], [NAN] * 3


def make(updates, seed=0, n_chosen=1, **view):
    updates = np.array(updates, float)
    past = {"last_layer": updates, "n_chosen": np.broadcast_to(n_chosen, len(updates))}
    rng = np.random.default_rng(seed)
    return mock_round(np.ones(len(updates)), past=past, rng=rng, **view)


def frequencies(selector, updates, n=1000, **view):
    """Return how often each client is chosen, on average."""
    counts = np.zeros(len(updates))
    for seed in range(n):
        cohort = selector.select(make(updates, seed, **view))
        assert cohort.memory is None and not cohort.unbiased
        np.add.at(counts, cohort.clients, 1)
    return counts / n


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ([0.002, 0, 0], 0.6656),
        ([0, 0, 0], np.log(3)),
        ([0.5, 0.5, 0.5], np.log(3)),  # a shift changes nothing
        ([-0.001, 0.001, -0.001], 0.6656),
        ([1, 0, 0], 0),
        ([5, 5, 0], np.log(2)),
        ([1e308, -1e308, 0], 0),
        ([7], 0),
    ],
)
def test_entropies_by_hand(update, expected):
    assert entropies_of(np.array([update]), 0.001)[0] == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 0.1])
def test_entropies_are_those_of_scipy(scale):
    updates = scale * np.random.default_rng(0).normal(size=(20, 10))
    weights = np.exp(updates / 0.001)
    np.testing.assert_allclose(entropies_of(updates, 0.001), entropy(weights.T), atol=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1.0, 1e300])
def test_the_default_tau_is_a_fifth_of_the_median_of_the_largest_entries(scale):
    """Of 1, 2, 5, 8 and 9 the median is 5; of 1 and 2 it is the higher."""
    updates = scale * np.array([[0, 2, 1], [9, 0, 0], [-5, 1, 0], [0, 0, 1], [8, -8, 0]])
    rule = HicsFLSelector()
    assert rule._temperature(updates) == pytest.approx(scale)
    assert rule._temperature(updates[[0, 3]]) == pytest.approx(0.4 * scale)
    assert rule.set_params(tau=7.0)._temperature(updates) == 7


@pytest.mark.parametrize("size", [0.0, 5e-324, 1.7e308])
def test_a_default_tau_of_any_size(size):
    updates = np.array([[0, 0, 0], [0, 0, 0], [size, -size, 0]])
    rule = HicsFLSelector(2, n_clusters=2)
    assert len(np.unique(rule.select(make(updates)).clients)) == 2
    rule.set_params(clients_per_round=1)
    assert len(rule.select(make(updates[[0, 2]])).clients) == 1


def test_by_default_entropies_tell_balanced_clients_at_the_rate_of_the_default_net():
    """15 clients have one class of three, 5 have all."""
    rng = np.random.default_rng(0)
    y = np.concatenate([np.arange(600) // 40 % 3, np.arange(200) % 3])
    clients = np.arange(800) // 40
    X = rng.normal(size=(800, 4)) + 2 * np.eye(4)[y]
    model = FederatedClassifier(selector=HicsFLSelector(2), n_rounds=30, random_state=0)
    cohorts = model.fit(X, y, clients=clients).history_["cohort"][10:20]
    assert np.mean([k >= 15 for cohort in cohorts for k in cohort]) > 0.6


def test_distances_by_hand():
    """Angles 0, pi / 2 and pi, entropies .6656, .3666 and log 3; zeros are at a right angle."""
    updates = np.array([TWO, [0.003, 0, 0], ZERO, ZERO, [-0.002, 0, 0]])
    entropies = np.array([0.6656, 0.3666, 1.0986, 1.0986, 0.8])
    expected = np.zeros((5, 5))
    expected[0, 1:] = [2.99, np.pi / 2 + 4.33, np.pi / 2 + 4.33, np.pi + 1.344]
    expected[1, 2:] = [np.pi / 2 + 7.32, np.pi / 2 + 7.32, np.pi + 4.334]
    expected[2:4, 4] = np.pi / 2 + 2.986
    distances = distances_of(updates, entropies, 10.0)
    np.testing.assert_allclose(distances, expected + expected.T, atol=1e-12)
    assert distances[2, 3] == 0


def test_updates_of_equal_direction_are_at_an_angle_of_zero():
    one = np.random.default_rng(0).normal(size=(1, 10))
    lengths = np.array([1e-300, 1e-3, 1, 7, 1e250])[:, None]
    assert (distances_of(one * lengths, np.zeros(5), 10.0) == 0).all()


@pytest.mark.parametrize(("n_clusters", "found"), [(1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (9, 4)])
def test_equal_merges_are_all_made_or_none(n_clusters, found):
    """Leaves 0 and 1 are equal; 2 and 3 are as far from each other as 4 from them."""
    tree = np.array([[0, 1, 0, 2], [2, 3, 1, 2], [4, 6, 1, 3], [5, 7, 9, 5]], float)
    assert len(np.unique(_cut(tree, n_clusters))) == found


def enumerated(clusters, weights, sizes, n):
    """Return the exact probability of each cohort of n draws of a cluster and a client in it."""
    reached = {frozenset(): 1.0}
    for _ in range(n):
        following = Counter()
        for drawn, probability in reached.items():
            left = [k for k in range(len(clusters)) if k not in drawn]
            open_weight = sum(weights[c] for c in {clusters[k] for k in left})
            for k in left:
                mass = sum(sizes[j] for j in left if clusters[j] == clusters[k])
                share = weights[clusters[k]] / open_weight * sizes[k] / mass
                following[drawn | {k}] += probability * share
        reached = following
    return reached


def test_draws_are_as_frequent_as_enumerated():
    clusters, weights = np.array([2, 0, 1, 1, 2, 2]), np.array([5.0, 1.0, 2.0])
    sizes, n = np.array([3, 1, 4, 2, 2, 5]), 20_000
    rng = np.random.default_rng(0)
    for m in (1, 3, 5):
        draws = [_drawn(rng, clusters, np.log(weights), sizes, m) for _ in range(n)]
        found = Counter(frozenset(drawn.tolist()) for drawn in draws)
        expected = enumerated(clusters.tolist(), weights, sizes, m)
        assert sum(expected.values()) == pytest.approx(1)
        for cohort, p in expected.items():
            assert abs(found[cohort] / n - p) < 5 * np.sqrt(p * (1 - p) / n) + 5 / n


def test_weights_that_would_overflow_only_order_the_clusters():
    clusters, sizes = np.array([0, 0, 1, 2]), np.ones(4, int)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        drawn = _drawn(rng, clusters, np.array([1e5, 0.0, 1e6]), sizes, 3)
        assert drawn[0] == 3 and sorted(drawn[1:].tolist()) == [0, 1]


def test_the_exponent_falls_to_zero_and_stays_there():
    for index, expected in [(0, 0.1503), (50, 0.2961), (100, 0.5), (5000, 0.5)]:
        rule = HicsFLSelector(1, tau=0.001)
        found = frequencies(rule, [TWO, ZERO], index=index, n_rounds=100)
        np.testing.assert_allclose(found, [expected, 1 - expected], atol=0.05)


def test_each_client_is_chosen_once_before_clusters_are_drawn():
    known = np.zeros(7, bool)
    for t in range(4):
        updates = np.where(known[:, None], [TWO], NAN)
        cohort = HicsFLSelector(2).select(make(updates, t, known.astype(int)))
        assert known[cohort.clients].sum() == (1 if t == 3 else 0)
        known[cohort.clients] = True
    assert known.all()


def test_those_never_chosen_are_in_random_order():
    found = frequencies(HicsFLSelector(1), [NEW] * 4, n_chosen=0, sizes=[1, 9, 9, 90])
    np.testing.assert_allclose(found, 0.25, atol=0.05)


def test_a_client_that_never_answered_is_not_preferred():
    """Nor is it left out: a cluster of two has it with 1/2, one of one with 1/2."""
    updates = [TWO, [0, 0.002, 0], NEW]
    found = frequencies(HicsFLSelector(1, n_clusters=2), updates)
    np.testing.assert_allclose(found, [0.375, 0.375, 0.25], atol=0.05)
    found = frequencies(HicsFLSelector(1), [NEW] * 3, sizes=[6, 3, 1])  # nobody has answered
    np.testing.assert_allclose(found, [0.6, 0.3, 0.1], atol=0.05)


def test_infinite_updates_are_none():
    found = frequencies(HicsFLSelector(1, n_clusters=2), [TWO, ZERO, [np.inf, 0, 0]], index=10)
    np.testing.assert_allclose(found, [0.375, 0.375, 0.25], atol=0.05)


def test_equal_clients_are_drawn_by_size():
    found = frequencies(HicsFLSelector(1, n_clusters=3), [TWO] * 3, sizes=[6, 3, 1])
    np.testing.assert_allclose(found, [0.6, 0.3, 0.1], atol=0.05)


def test_one_class_clients_share_clusters_by_their_class():
    """Each leads its class alone by far: entropies of 0, right angles and more between classes."""
    classes = np.arange(30) % 3
    updates = 5 * np.eye(3)[classes] - 1
    entropies = entropies_of(updates, 0.001)
    assert (entropies == 0).all()
    for seed in range(20):
        selector = HicsFLSelector(15, n_clusters=3, tau=0.001)
        clusters, logits = selector._clusters(make(updates, seed), updates, np.ones(30, bool), 15)
        assert len(np.unique(np.stack([classes, clusters]), axis=1).T) == 3
        assert (logits == 0).all()


def test_balanced_clients_come_first():
    balanced = np.arange(40) < 8
    rng = np.random.default_rng(0)
    updates = np.where(balanced[:, None], 1e-5, 0.05) * rng.normal(size=(40, 10))
    early = frequencies(HicsFLSelector(8), updates, n=50)
    late = frequencies(HicsFLSelector(8), updates, n=50, index=10)
    assert early[balanced].sum() > 7 and late[balanced].sum() < 4


def test_a_single_one_in_reach_and_nobody():
    alone = make([TWO, ZERO, NEW], available=[False, True, False])
    cohort = HicsFLSelector(3).select(alone)
    assert (cohort.clients.tolist(), cohort.weights.tolist()) == ([1], [1.0])
    assert HicsFLSelector().select(make([TWO])).clients.tolist() == [0]
    nobody = make([TWO, ZERO], available=[False, False])
    assert HicsFLSelector().select(nobody).clients.tolist() == []


@pytest.mark.parametrize("parameter", ["gamma", "lam", "tau"])
@pytest.mark.parametrize("value", [5e-324, 1e-9, 1e9, 1.7e308])
def test_parameters_of_any_size(parameter, value):
    updates = np.random.default_rng(0).normal(size=(12, 4))
    selector = HicsFLSelector(5, **{parameter: value})
    assert len(np.unique(selector.select(make(updates)).clients)) == 5


def test_there_are_two_clusters_at_least_by_default():
    rule = HicsFLSelector(1, tau=0.001)
    found = frequencies(rule, [TWO, [0.003, 0, 0], ZERO], n_rounds=10**9)
    np.testing.assert_allclose(found, [0.0443, 0.0443, 0.9113], atol=0.05)
    found = frequencies(HicsFLSelector(1, n_clusters=1), [TWO, ZERO], sizes=[3, 1])
    np.testing.assert_allclose(found, [0.75, 0.25], atol=0.05)


@pytest.mark.parametrize(("n_clients", "m"), [(1, 1), (3, 1), (4, 2), (40, 10), (1000, 100)])
def test_the_default_count_is_that_of_the_other_selectors(n_clients, m):
    updates = 0.002 * np.random.default_rng(0).normal(size=(n_clients, 10))
    selector = HicsFLSelector()
    assert len(np.unique(selector.select(make(updates)).clients)) == m
    assert len(selector.select(make(updates, n_chosen=0)).clients) == m
    assert len(selector.select(make(np.full_like(updates, NAN), n_chosen=0)).clients) == m
    assert len(selector.select(make(np.zeros_like(updates))).clients) == m


def fit(blobs, selector, kind=FederatedClassifier, **params):
    X, y, clients = blobs
    model = kind(selector=selector, **{"n_rounds": 8, "random_state": 0} | params)
    return model.fit(X, y, clients=clients)


def test_a_fit_begins_with_everybody(blobs):
    history = fit(blobs, HicsFLSelector(2)).history_
    assert {client for cohort in history["cohort"][:3] for client in cohort} == set("abcdef")
    assert (history["n_aggregated"] == 2).all() and history["n_polled"].sum() == 0


def test_a_fit_of_one_output(blobs):
    X, y, clients = blobs
    history = fit(
        (X, y.astype(np.float32), clients), HicsFLSelector(2), FederatedRegressor
    ).history_
    assert (history["n_aggregated"] == 2).all()


def test_it_is_refused_with_privacy_of_updates(blobs):
    with pytest.raises(ValueError, match="does not cover 'last_layer'"):
        fit(blobs, HicsFLSelector(2), update_privacy=GaussianMechanism(1.0, 0.1))

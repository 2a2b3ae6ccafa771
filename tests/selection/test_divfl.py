"""DivFL: the greedy choice against brute force, who is asked for gradients, and what that costs."""

from itertools import combinations

import numpy as np
import pytest
import torch
from clocked import CLIENTS, X, Y, estimator

from skfed import DivFLSelector, FederatedClassifier
from skfed.privacy import GaussianMechanism
from skfed.selection import _divfl
from skfed.selection._divfl import distances_between, facility_location
from skfed.selection._mock_round import mock_round

NAN = np.nan


def total(distances, chosen):
    """Return G(S)."""
    return distances[list(chosen)].min(axis=0).sum()


def chosen_of(points, m, seed=0):
    points = np.asarray(points, float)
    points = points[:, None] if points.ndim == 1 else points
    return facility_location(distances_between(points), m, np.random.default_rng(seed)).tolist()


def select(sketches, m, memory=None, seed=0, **view):
    """Return the cohort and the clients that were asked."""
    sketches = np.asarray(sketches, float)
    sketches = sketches[:, None] if sketches.ndim == 1 else sketches
    losses, rng = np.ones(len(sketches)), np.random.default_rng(seed)
    made = mock_round(losses, sketches=sketches, memory=memory, rng=rng, **view)
    return DivFLSelector(m).select(made), made.sketched


@pytest.mark.parametrize(
    ("points", "m", "expected"),
    [
        ([0, 1, 2, 3, 10, 11, 13], 1, [3]),
        ([0, 1, 2, 3, 10, 11, 13], 2, [3, 5]),
        ([0, 0, 1, 2, 9], 1, [2]),
        ([[0, 0], [3, 4], [0, 4]], 1, [2]),
        ([7], 1, [0]),
        ([7], 3, [0]),
    ],
)
def test_values_by_hand(points, m, expected):
    assert chosen_of(points, m) == expected


def scattered(rng, n):
    """Return points of some kind: scattered, in groups, with an outlier, or equal in part."""
    points = rng.normal(size=(n, int(rng.integers(1, 6)))) * rng.choice([1e-200, 1, 1e200])
    kind = rng.integers(4)
    if kind == 0:
        points *= rng.lognormal(sigma=2, size=(n, 1))
    elif kind == 1:
        points[0] *= 1e12
    elif kind == 2:
        points = points[rng.integers(n, size=n)]
    return points


def test_each_step_is_the_best_single_addition_of_12_clients():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        distances = distances_between(scattered(rng, 12))
        chosen = facility_location(distances, 12, rng).tolist()
        assert sorted(chosen) == list(range(12))
        for i in range(12):
            sums = [total(distances, [*chosen[:i], k]) for k in range(12) if k not in chosen[:i]]
            assert total(distances, chosen[: i + 1]) <= min(sums) * (1 + 1.1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_of_clients_with_equal_rows_both_engines_choose_the_same(seed):
    fits = [
        estimator(
            selector=DivFLSelector(2, ignore_priority=True),
            n_rounds=7,
            engine=engine,
            random_state=seed,
        ).fit(X, Y, clients=CLIENTS)
        for engine in ("loop", "stacked")
    ]
    one, other = (model.history_["cohort"].tolist() for model in fits)
    assert one == other


def test_it_reaches_1_minus_1_over_e_of_the_best_of_all_cohorts_of_12_clients():
    shares = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        distances = distances_between(rng.normal(size=(12, 2)) * rng.lognormal(size=(12, 1)))
        farthest = 12 * distances.max()
        for m in (2, 3, 5):
            lowest = min(total(distances, s) for s in combinations(range(12), m))
            found = total(distances, facility_location(distances, m, rng))
            shares.append((farthest - found) / (farthest - lowest))
    assert min(shares) >= 1 - 1 / np.e
    assert max(shares) <= 1 + 1e-12


@pytest.mark.parametrize("kind", ["normal", "groups", "outlier"])
def test_many_clients_as_if_all_sums_were_computed_anew(kind):
    """Sums that are updated are as good, whatever the order of size of what is left of them."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 8))
    if kind == "groups":
        points = 1e9 * rng.normal(size=(20, 8))[np.arange(300) % 20] + points
    elif kind == "outlier":
        points[7] *= 1e15
    distances = distances_between(points)
    chosen = facility_location(distances, 60, rng)
    assert len(set(chosen.tolist())) == 60
    nearest = np.full(300, np.inf)
    for i, k in enumerate(chosen):
        sums = np.minimum(nearest, distances).sum(axis=1)
        sums[chosen[:i]] = np.inf
        assert sums[k] <= sums.min() * (1 + 1.1e-6)
        nearest = np.minimum(nearest, distances[k])


@pytest.mark.parametrize(
    ("points", "m", "equal"),
    [
        ([0, 1], 1, [[0], [1]]),
        ([0, 0.1, 0.2, 0.3], 1, [[1], [2]]),  # .6, .4, .4, .6, but for rounding
        ([[0, 0], [0.1, 0], [0, 0.7], [0.1, 0.7]], 1, [[0], [1], [2], [3]]),
        ([4, 4, 4, 9, 9], 2, [[i, j] for i in (0, 1, 2) for j in (3, 4)]),
        ([4, 4, 4], 2, [[0, 1], [0, 2], [1, 2]]),
        ([0, 0, 0], 2, [[0, 1], [0, 2], [1, 2]]),
    ],
)
def test_ties_are_broken_at_random(points, m, equal):
    found = [sorted(chosen_of(points, m, seed)) for seed in range(1200)]
    rates = [found.count(one) / 1200 for one in equal]
    np.testing.assert_allclose(rates, 1 / len(equal), atol=0.06)


def test_all_are_asked_at_first_and_then_the_cohort_for_later_rounds():
    cohort, asked = select([0, 1, 5], 1)
    assert (cohort.clients.tolist(), asked) == ([1], [[0, 1, 2]])
    cohort, asked = select([7, 9, 8], 1, cohort.memory)
    assert (cohort.clients.tolist(), asked) == ([1], [[1]])
    assert cohort.memory["sketches"].tolist() == [[0], [9], [5]]
    cohort, asked = select([7, 7, 20], 1, cohort.memory)
    assert (cohort.clients.tolist(), asked) == ([2], [[2]])
    assert cohort.memory["sketches"].tolist() == [[0], [9], [20]]


def test_who_comes_in_reach_is_asked_before_the_choice_and_once():
    cohort, _ = select([0, 1, 5, 100, 100], 1, available=[True, True, True, False, False])
    cohort, asked = select([70, 90, 80, 3, 6], 1, cohort.memory)
    assert (cohort.clients.tolist(), asked) == ([3], [[3, 4]])
    assert cohort.memory["sketches"][:, 0].tolist() == [0, 1, 5, 3, 6]


def test_who_is_out_of_reach_keeps_its_gradient_and_is_left_alone():
    cohort, _ = select([0, 1, 8, 9, 12], 1)
    away = [True, True, False, True, False]
    cohort, asked = select([0, 2, NAN, NAN, NAN], 1, cohort.memory, available=away)
    assert (cohort.clients.tolist(), asked) == ([1], [[1]])
    assert cohort.memory["sketches"][:, 0].tolist() == [0, 2, 8, 9, 12]


@pytest.mark.parametrize("bad", [NAN, np.inf])
def test_who_does_not_answer_is_asked_again_and_chosen_last(bad):
    cohort, _ = select([0, bad, 1, bad, 5], 1)
    assert cohort.clients.tolist() == [2]
    assert np.isnan(cohort.memory["sketches"][[1, 3]]).all()
    cohort, asked = select([0, bad, 1, 3, 5], 4, cohort.memory)
    assert (cohort.clients.tolist(), asked) == ([0, 2, 3, 4], [[1, 3], [0, 2, 4]])
    found = [select([3, bad, bad, bad], 2, seed=seed)[0].clients.tolist() for seed in range(600)]
    rates = [found.count([0, k]) / 600 for k in (1, 2, 3)]
    np.testing.assert_allclose(rates, 1 / 3, atol=0.08)


def test_nobody_answers():
    cohort, asked = select([NAN] * 4, 2)
    assert (len(cohort.clients), asked) == (2, [[0, 1, 2, 3]])
    assert np.isnan(cohort.memory["sketches"]).all()
    cohort, asked = select([NAN] * 4, 2, cohort.memory)
    assert (len(cohort.clients), asked) == (2, [[0, 1, 2, 3]])


def test_weights_are_by_size_and_few_are_all_taken():
    sizes, available = [10, 20, 30, 40], [False, True, True, False]
    cohort, _ = select([0, 1, 2, 3], 3, sizes=sizes, available=available)
    assert cohort.clients.tolist() == [1, 2]
    np.testing.assert_allclose(cohort.weights, [0.4, 0.6])
    cohort, _ = select([0, 1, 5], 3, available=[False, False, True])
    assert (cohort.clients.tolist(), cohort.weights.tolist()) == ([2], [1])
    cohort, asked = select([0, 1, 5], 3, available=[False] * 3)
    assert (cohort.clients.tolist(), asked) == ([], [])


@pytest.mark.parametrize("m", [4, 1.0])
def test_where_all_train_no_distance_is_computed(m, monkeypatch):
    """They would take ten seconds and 2.4 GB with 10,000 clients."""
    monkeypatch.setattr(_divfl, "distances_between", None)
    cohort, asked = select([0, 1, NAN, 5], m)
    assert (cohort.clients.tolist(), asked) == ([0, 1, 2, 3], [[0, 1, 2, 3]])


@pytest.mark.parametrize(("n_clients", "m"), [(1, 1), (3, 1), (4, 2), (40, 10), (1000, 100)])
def test_the_default_is_good_for_few_and_many(n_clients, m):
    view = mock_round(np.ones(n_clients))
    assert len(DivFLSelector().select(view).clients) == m


def make(selector, **params):
    params = {"n_rounds": 5, "local_steps": 3, "random_state": 0} | params
    return FederatedClassifier(selector=selector, **params)


def fit(blobs, selector, **params):
    X, y, clients = blobs
    return make(selector, **params).fit(X, y, clients=clients)


def test_the_ledger_has_a_model_for_all_and_then_64_numbers_of_the_cohort(blobs):
    history = fit(blobs, DivFLSelector(2)).history_
    assert history["n_aggregated"].tolist() == [2] * 5
    assert history["models_down"].tolist() == [6, 2, 2, 2, 2]
    assert history["models_up"].tolist() == [2] * 5
    asked = np.array([6, 2, 2, 2, 2])
    # In the first round the scales of columns too.
    np.testing.assert_array_equal((history["scalars_up"] - 64 * asked)[1:], 0)
    np.testing.assert_array_equal((history["scalars_down"] - asked)[1:], 0)


def test_copies_of_a_client_are_not_chosen_together(blobs):
    """Two groups of three clients with the same rows each: one of each group."""
    X, y, _ = blobs
    X, y = np.tile(np.concatenate([X[:20], X[20:40]]), (3, 1)), np.tile(y[:40], 3)
    clients = np.repeat(list("abcdef"), 20)  # a, c, e are copies, and b, d, f
    model = make(DivFLSelector(2), n_rounds=1).fit(X, y, clients=clients)
    (cohort,) = model.history_["cohort"]
    assert [client in "ace" for client in cohort].count(True) == 1


def test_clients_of_one_class(blobs):
    """Gradients tell classes apart: with three of them, one client of each is chosen."""
    X, y, _ = blobs
    order = np.argsort(y, kind="stable")
    clients = np.array([f"{label}{i % 2}" for i, label in enumerate(y[order])])
    model = make(DivFLSelector(3), n_rounds=1).fit(X[order], y[order], clients=clients)
    (cohort,) = model.history_["cohort"]
    assert sorted(client[0] for client in cohort) == ["0", "1", "2"]


@pytest.mark.parametrize("name", ["update_privacy", "loss_privacy"])
def test_privacy_is_refused_with_the_way_out(blobs, name):
    noise = GaussianMechanism(clip=1.0, noise_multiplier=1.0)
    message = (
        rf"{name} does not cover the gradients of which DivFLSelector\(clients_per_round=2\) asks "
        "for sketches: use another selector, or no privacy"
    )
    with pytest.raises(ValueError, match=message):
        fit(blobs, DivFLSelector(2), **{name: noise})


def test_a_client_without_a_gradient_is_asked_in_each_round_and_left_out(blobs):
    class Broken(torch.nn.Linear):
        def forward(self, X):
            return super().forward(torch.where(X > 1e9, torch.inf, X))

    X, y, clients = blobs
    X = np.where((clients == "c")[:, None], np.float32(1e10), X)
    model = FederatedClassifier(
        Broken(5, 3), selector=DivFLSelector(2), n_rounds=3, random_state=0
    ).fit(X, y, clients=clients)
    causes = model.history_["causes"]
    assert causes.map(len).tolist() == [1, 1, 1]
    assert causes[2][0].startswith("ValueError: its gradient is not finite")
    assert not any("c" in cohort for cohort in model.history_["cohort"])
    assert model.history_["models_down"].tolist() == [6, 3, 3]

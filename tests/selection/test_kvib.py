"""K-Vib: probabilities worked out by hand, aggregates without bias, and what adds to omega."""

import numpy as np
import pandas as pd
import pytest

from skfed import FederatedClassifier, KVibSelector
from skfed.availability import Dropout, IndependentAvailability
from skfed.devices import LognormalDevices
from skfed.privacy import GaussianMechanism
from skfed.selection._mock_round import mock_round

NAN = np.nan
TIMES = ["select_seconds", "train_seconds", "round_seconds"]


def make(updates, t=0, memory=None, seed=0, **view):
    updates = np.asarray(updates, float)
    view = {"n_rounds": 250, "past": {"updates": updates}} | view
    rng = np.random.default_rng(seed)
    return mock_round(np.ones(len(updates)), index=t, memory=memory, rng=rng, **view)


def nothing(n_clients):
    return np.full((n_clients, 2), NAN)


def chances(selector, costs, **view):
    """Return the probabilities of clients with some omega, all heard of."""
    costs = np.asarray(costs, float)
    return selector.marginals(make(nothing(len(costs)), memory={"costs": costs}, **view))["chosen"]


def learned(selector, updates, n_rounds=30, **view):
    """Return the memory after rounds in which all that were drawn came back with noisy updates."""
    rng, memory, seen = np.random.default_rng(1), {}, np.full(updates.shape, NAN)
    for t in range(n_rounds):
        cohort = selector.select(make(seen, t, memory, seed=(2, t), **view))
        memory, seen = cohort.memory, seen.copy()
        came = updates[cohort.clients]
        seen[cohort.clients] = came * rng.uniform(0.9, 1.1, size=(len(came), 1))
    return memory, seen


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        # theta = .2, gamma = 1; roots of omega + 1 are (2.2361, 1.4142, 1, 1) and (10, 3, 2, 1).
        ([4, 1, 0, 0], [0.7332, 0.5005, 0.3832, 0.3832]),
        ([99, 8, 3, 0], [0.9, 0.5, 0.8 / 3 + 0.1, 0.8 / 6 + 0.1]),
        ([7, 7, 7, 7], [0.5] * 4),
        # Rounding aside, clients 0 and 1 have 1 and nothing is left for the others.
        ([1e30, 1e30, 0, 0], [0.9, 0.9, 0.1, 0.1]),
    ],
)
def test_probabilities_by_hand(costs, expected):
    np.testing.assert_allclose(chances(KVibSelector(2, 0.1), costs), expected, atol=5e-5)


def test_theta_and_gamma_by_hand():
    """N = 4, m = 1, T = 32: theta = (4 / 32)^(1/3) = 1/2, gamma = .5 x 4 / .5 = 4.

    Roots of omega + 4: (3, 2, 2, 2), and pi = q / 2 + 1/8. With T = 4 theta is 1, with T = 2 too.
    """
    selector = KVibSelector(1, regularization=0.5)
    expected = np.array([3, 2, 2, 2]) / 18 + 1 / 8
    np.testing.assert_allclose(chances(selector, [5, 0, 0, 0], n_rounds=32), expected)
    for n_rounds in (2, 4):
        found = chances(selector, [5, 0, 0, 0], n_rounds=n_rounds)
        np.testing.assert_allclose(found, 0.25)


def test_they_sum_to_m_and_are_never_below_the_uniform_share():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, n_rounds = int(rng.integers(1, 40)), int(rng.integers(1, 500))
        m, available = int(rng.integers(1, n + 3)), rng.random(n) < 0.8
        costs = rng.lognormal(sigma=rng.choice([0.1, 1, 10]), size=n) * (rng.random(n) < 0.7)
        selector = KVibSelector(m, 0.1)
        found = chances(selector, costs, n_rounds=n_rounds, available=available)
        n_in_reach = np.count_nonzero(available)
        assert found.sum() == pytest.approx(min(m, n_in_reach), rel=1e-12)
        assert not found[~available].any() and (found <= 1).all()
        least = min((n / (n_rounds * m)) ** (1 / 3), 1) * min(m / max(n_in_reach, 1), 1)
        assert (found[available] >= least * (1 - 1e-9)).all()


def test_the_mean_of_10000_aggregates_is_the_full_one():
    """w + sum of q_k (w_k - w), with updates of 3 numbers; client 2 is away."""
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(8, 3)) * rng.lognormal(sigma=1.5, size=(8, 1))
    sizes, available = np.array([5, 40, 10, 25, 15, 30, 20, 35]), np.arange(8) != 2
    selector = KVibSelector(3, regularization=1e-3)
    memory, seen = learned(selector, updates, sizes=sizes)
    full = sizes[available] @ updates[available] / sizes[available].sum()
    view = make(seen, 30, memory, sizes=sizes, available=available)
    assert np.ptp(selector.marginals(view)["chosen"][available]) > 0.3
    cohorts = [selector.select(view) for _ in range(10_000)]  # its generator goes on
    sums = np.array([cohort.weights @ updates[cohort.clients] for cohort in cohorts])
    error = sums.std(axis=0) / 100
    assert (np.abs(sums.mean(axis=0) - full) < 4 * error).all()
    n_drawn = np.array([len(cohort.clients) for cohort in cohorts])
    assert abs(n_drawn.mean() - 3) < 4 * n_drawn.std() / 100
    assert all(cohort.unbiased for cohort in cohorts)


def test_the_mean_over_rounds_that_learn_is_the_full_one():
    """1,000 federations of 6 rounds each, of which only the last is looked at."""
    updates = np.array([[8.0, 1], [1, -1], [0.1, 0], [0, 0.5]])
    selector, sums = KVibSelector(2, regularization=1e-3), []
    for seed in range(1000):
        memory, seen = {}, nothing(4)
        for t in range(6):
            cohort = selector.select(make(seen, t, memory, seed=(seed, t)))
            memory, seen = cohort.memory, seen.copy()
            seen[cohort.clients] = updates[cohort.clients] * (1 + 0.01 * t)
        sums.append(cohort.weights @ updates[cohort.clients])
    error = np.std(sums, axis=0) / np.sqrt(len(sums))
    assert (np.abs(np.mean(sums, axis=0) - updates.mean(axis=0)) < 4 * error).all()


@pytest.mark.parametrize(("regularization", "share"), [(1e-3, 0.5), (None, 0.8)])
def test_it_learns_to_have_less_variance_than_uniform_draws(regularization, share):
    """Sum of u^2 (1 - pi) / pi, where the least is that of pi for the norms themselves."""
    selector = KVibSelector(5, regularization)
    updates = np.random.default_rng(0).lognormal(sigma=1.5, size=(20, 1)) * np.ones(2)
    squares = np.square(updates / 20).sum(axis=1)
    memory, seen = learned(selector, updates, 200)
    found = selector.marginals(make(seen, 200, memory))["chosen"]
    uniform = np.sum(squares * 3)
    assert np.sum(squares * (1 - found) / found) < share * uniform


def test_omega_and_the_largest_square_by_hand():
    """Sizes .1, .4, .5; m = 1, so that pi = 1/3 in round 0. Updates (3, 4) and (0, 2) come back.

    omega = (.25 / (1/3), .64 / (1/3), 0); of round 1 only client 0 comes back, with (0, 1). Then
    theta = (3 / 250)^(1/3) = .22894, and gamma = .64 x 3 / .22894 = 8.3865.
    """
    sizes, selector = [10, 40, 50], KVibSelector(1)
    first = selector.select(make(nothing(3), 0, sizes=sizes))
    assert first.memory["costs"].tolist() == [0, 0, 0]
    seen = np.array([[3, 4], [0, 2], [NAN, NAN]])
    second = selector.select(view := make(seen, 1, first.memory, sizes=sizes))
    np.testing.assert_allclose(second.memory["costs"], [0.75, 1.92, 0])
    before = selector.marginals(view)["chosen"][0]
    seen[0] = 0, 1
    third = selector.select(make(seen, 2, second.memory, sizes=sizes))
    np.testing.assert_allclose(third.memory["costs"], [0.75 + 0.01 / before, 1.92, 0])
    found = [one.memory["largest"] for one in (first, second, third)]
    np.testing.assert_allclose(found, [0, 0.64, 0.64])
    roots = np.sqrt([8.3865 + 0.75, 8.3865 + 1.92, 8.3865])
    assert before == pytest.approx(0.77106 * roots[0] / roots.sum() + 0.22894 / 3, abs=1e-5)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_without_a_regularization_the_unit_of_updates_is_no_matter(unit):
    updates = np.random.default_rng(0).lognormal(size=(6, 2))
    found = []
    for scale in (1.0, unit):
        memory, seen = learned(KVibSelector(2), scale * updates)
        found.append(KVibSelector(2).marginals(make(seen, 30, memory))["chosen"])
    np.testing.assert_allclose(found[1], found[0])
    assert np.ptp(found[0]) > 0.05


def test_without_an_update_draws_are_uniform_whatever_the_regularization():
    for updates in (nothing(4), np.zeros((4, 2))):
        memory, _ = learned(KVibSelector(2), updates, 5)
        assert memory["largest"] == 0
        for regularization in (None, 1e-6, 1e6):
            view = make(updates, 5, memory)
            found = KVibSelector(2, regularization).marginals(view)["chosen"]
            np.testing.assert_allclose(found, 0.5)


@pytest.mark.parametrize("bad", [NAN, np.inf, 1e200])
def test_norms_that_are_not_finite_add_nothing(bad):
    with np.errstate(all="raise", under="ignore"):
        first = KVibSelector(1).select(make([[NAN, 0], [bad, 0], [bad, 0]]))
        view = make([[bad, 0], [1, 0], [0, 0]], 1, first.memory)
        second = KVibSelector(1).select(view)
    np.testing.assert_allclose(second.memory["costs"], [0, 1 / 3, 0])
    again = KVibSelector(1).select(make([[2, 0], [1, 0], [0, 0]], 2, second.memory))
    assert again.memory["costs"][0] > 0


def test_costs_beyond_a_float_are_not_added():
    with np.errstate(all="raise", under="ignore"):
        memory, rng = {}, np.random.default_rng(0)
        for t in range(40):
            updates = np.array([[rng.uniform(1, 2) * 1e154, 0], [rng.random(), 0], [0, 0]])
            cohort = KVibSelector(1).select(make(updates, t, memory, seed=t))
            memory = cohort.memory
    assert memory["costs"][0] > 1e308 and np.isfinite(memory["costs"]).all()
    assert 1e307 < memory["largest"] < 1e308


@pytest.mark.parametrize("regularization", [5e-324, 1e-200, 1e308, np.float64(1e308)])
def test_any_regularization_has_probabilities_that_sum_to_m(regularization):
    with np.errstate(all="raise", under="ignore"):
        found = chances(KVibSelector(2, regularization), [1e300, 1, 0, 0], n_rounds=1000)
    assert found.sum() == pytest.approx(2)


def test_nobody_answers_for_many_rounds():
    memory = {}
    for t in range(20):
        view = make(nothing(3), t, memory, reported=[NAN] * 3, seed=t)
        memory = KVibSelector(1).select(view).memory
        np.testing.assert_allclose(KVibSelector(1).marginals(view)["chosen"], 1 / 3)
    assert memory["costs"].tolist() == [0, 0, 0]


def test_nobody_in_reach_keeps_what_is_remembered():
    first = KVibSelector(2).select(make(nothing(3)))
    seen = np.ones((3, 2))
    away = KVibSelector(2).select(make(seen, 1, first.memory, available=[False] * 3))
    assert not len(away.clients) and away.memory is None
    later = KVibSelector(2).select(make(seen, 2, first.memory))
    np.testing.assert_allclose(later.memory["costs"], 2 / 9 / (2 / 3))


def test_one_in_reach_and_one_client():
    one = KVibSelector(2).select(make(nothing(3), available=[False, True, False]))
    assert (one.clients.tolist(), one.weights.tolist()) == ([1], [1.0])
    assert KVibSelector().select(make(nothing(1))).clients.tolist() == [0]
    assert KVibSelector(5).select(make(nothing(3))).weights.tolist() == [1 / 3] * 3


def test_renumbering_the_clients_renumbers_what_is_remembered():
    updates = np.random.default_rng(0).lognormal(size=(6, 2))
    selector, order = KVibSelector(2, regularization=1e-3), np.array([3, 0, 5, 1, 4, 2])
    memory, seen = learned(selector, updates)
    arrays = {name: values[order] for name, values in memory.items() if np.ndim(values)}
    renumbered = memory | arrays
    found = selector.marginals(make(seen[order], 30, renumbered))["chosen"]
    np.testing.assert_allclose(found, selector.marginals(make(seen, 30, memory))["chosen"][order])


@pytest.mark.parametrize(("n_clients", "m"), [(3, 1), (4, 2), (40, 10), (1000, 100), (4000, 400)])
def test_defaults_are_good_for_few_and_many_clients(n_clients, m):
    sizes = [
        len(KVibSelector().select(make(nothing(n_clients), seed=s)).clients) for s in range(99)
    ]
    error = np.sqrt(m * (1 - m / n_clients) / 99)
    assert abs(np.mean(sizes) - m) < 4 * error


def model(**params):
    given = {"selector": KVibSelector(2, 1e-3), "n_rounds": 8, "random_state": 0} | params
    return FederatedClassifier(**given)


def fit(blobs, **params):
    X, y, clients = blobs
    return model(**params).fit(X, y, clients=clients)


def test_rounds_without_a_client_keep_the_model(blobs):
    fitted = fit(blobs, selector=KVibSelector(1), n_rounds=6)
    history = fitted.history_
    empty = history["n_aggregated"] == 0
    assert 0 < empty.sum() < 6
    assert (history.loc[empty, "models_down"] == 0).all()
    assert (history["n_polled"] == 0).all() and (history["n_failed"] == 0).all()
    assert np.isfinite(fitted.coef_).all()


def test_only_who_came_back_adds_to_omega(blobs):
    """Dropouts do not answer: their last loss and update stay as they are."""
    X, y, clients = blobs
    ids = np.unique(clients)
    one = model(n_rounds=1, warm_start=True, availability=Dropout(0.5), selector=KVibSelector(4))
    came, costs, n_lost = [], np.zeros(len(ids)), 0
    for t in range(5):
        history = one.set_params(n_rounds=t + 1).fit(X, y, clients=clients).history_
        after = one._server.memory.values["costs"]
        assert (after > costs)[~np.isin(ids, came)].sum() == 0
        assert (after > costs)[np.isin(ids, came)].all()
        came, costs = history["cohort"].iloc[-1], after
        n_lost += history["n_failed"].iloc[-1]
    assert n_lost > 0 and costs.any()


def test_norms_are_those_of_the_updates(blobs):
    """One client, of which p = pi = 1; the projection is off by a sixth or so."""
    X, y, _ = blobs
    data = X, y, ["a"] * len(y)
    before, after = (fit(data, n_rounds=1, lr_schedule=lr) for lr in (0.0, 0.1))
    squares = [
        (p - q).square().sum().item()
        for p, q in zip(*(m.net_.module_.parameters() for m in (before, after)), strict=True)
    ]
    costs = fit(data, n_rounds=2, lr_schedule=0.1)._server.memory.values["costs"]
    assert costs[0] == pytest.approx(sum(squares), rel=0.5)


def test_a_fit_with_devices_and_who_is_away_repeats(blobs):
    params = {
        "availability": Dropout(0.2, IndependentAvailability(0.8)),
        "devices": LognormalDevices(1.0, 1e4, 1e4, jitter=1.0),
        "deadline": 20.0,
        "selector": KVibSelector(3, 1e-3),
    }
    one, other = fit(blobs, **params), fit(blobs, **params)
    pd.testing.assert_frame_equal(*(m.history_.drop(columns=TIMES) for m in (one, other)))
    assert one.history_["n_failed"].sum() > 0
    assert np.isfinite(one.coef_).all()


def test_privacy_of_updates_is_refused(blobs):
    with pytest.raises(ValueError, match="does not cover 'updates'"):
        fit(blobs, update_privacy=GaussianMechanism(1.0, 0.1))


@pytest.mark.parametrize("bad", [0, -1.0, np.inf, NAN, "auto"])
def test_a_bad_regularization_is_named(bad):
    with pytest.raises(ValueError, match="The 'regularization' parameter of KVibSelector"):
        KVibSelector(regularization=bad).select(make(nothing(3)))

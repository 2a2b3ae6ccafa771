"""Optimal client sampling: probabilities worked out by hand, and aggregates without bias."""

import numpy as np
import pytest
from scipy.optimize import minimize

from skfed import FederatedClassifier, OptimalSelector, RandomSelector
from skfed.availability import Dropout
from skfed.selection._mock_round import mock_round
from skfed.selection._optimal import approximate_probabilities
from skfed.selection._sampling import least_variance


def variance(norms, chances):
    return np.sum(np.square(norms) * (1 - chances) / chances)


def admitted(selector, norms, seed=0, **view):
    norms = np.asarray(norms, float)
    made = mock_round(np.ones(len(norms)), norms=norms, rng=np.random.default_rng(seed), **view)
    return selector.admit(made, made.reports(selector.select(made)))


@pytest.mark.parametrize(
    ("norms", "m", "expected", "least"),
    [
        ([4, 3, 2, 1], 2, [0.8, 0.6, 0.4, 0.2], 20),
        ([10, 3, 2, 1], 2, [1, 1 / 2, 1 / 3, 1 / 6], 22),
        ([10, 8, 1, 1], 3, [1, 1, 1 / 2, 1 / 2], 2),
        ([1, 2, 3, 4], 2, [0.2, 0.4, 0.6, 0.8], 20),
    ],
)
def test_probabilities_by_hand(norms, m, expected, least):
    chances = least_variance(np.array(norms, float), m)
    np.testing.assert_allclose(chances, expected)
    assert variance(norms, chances) == pytest.approx(least)
    assert variance(norms, np.full(4, m / 4)) > least


@pytest.mark.parametrize("form", [least_variance, approximate_probabilities])
@pytest.mark.parametrize(
    ("norms", "m", "expected"),
    [
        ([1, 0, 0, 0], 2, [1, 0, 0, 0]),
        ([0, 0, 0, 0], 2, [0, 0, 0, 0]),
        ([0, 5, 0, 3], 2, [0, 1, 0, 1]),
        ([3, 2, 1], 3, [1, 1, 1]),
        ([3, 2, 1], 10, [1, 1, 1]),
        ([1.7e308] * 4, 2, [0.5] * 4),
        ([1e300, 0, 1e-10, 1e-10], 1, None),
        ([5e-324, 0], 1, None),
        ([7], 1, [1]),
        ([], 2, []),
    ],
)
def test_zeros_the_smallest_and_the_largest_norms(form, norms, m, expected):
    with np.errstate(all="raise", under="ignore"):
        chances = form(np.array(norms, float), m)
    assert np.isfinite(chances).all()
    if expected is not None:
        np.testing.assert_allclose(chances, expected, rtol=1e-9)


def test_no_other_probabilities_have_less_variance():
    """Against a numerical solver, which is told the problem alone."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        norms, m = rng.lognormal(sigma=1.5, size=6), int(rng.integers(1, 6))
        found = minimize(
            lambda p, u=norms: variance(u / u.max(), p),
            np.full(6, m / 6),
            bounds=[(1e-6, 1)] * 6,
            constraints={"type": "eq", "fun": lambda p, m=m: p.sum() - m},
            options={"ftol": 1e-12, "maxiter": 500},
        )
        least = variance(norms / norms.max(), least_variance(norms, m))
        assert least <= found.fun + 1e-9
        assert least == pytest.approx(found.fun, rel=1e-3)


def test_they_sum_to_m_or_to_the_number_of_updates_that_are_not_zero():
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(1, 30))
        norms = rng.lognormal(sigma=rng.choice([0.1, 1, 5]), size=n) * (rng.random(n) < 0.8)
        m = int(rng.integers(1, n + 3))
        chances = least_variance(norms, m)
        assert chances.sum() == pytest.approx(min(m, np.count_nonzero(norms)), rel=1e-12)
        assert (chances >= 0).all() and (chances <= 1).all()
        assert (np.diff(chances[np.argsort(norms)]) >= 0).all()


@pytest.mark.parametrize(
    ("norms", "m", "expected"),
    [
        ([4, 3, 2, 1], 2, [0.8, 0.6, 0.4, 0.2]),
        # 1, 3/8, 1/4, 1/8; one pass by (2 - 1) / (3/4).
        ([10, 3, 2, 1], 2, [1, 1 / 2, 1 / 3, 1 / 6]),
        # 1, 1, 3/20, 3/20; one pass by (3 - 2) / (3/10).
        ([10, 8, 1, 1], 3, [1, 1, 1 / 2, 1 / 2]),
        # 1e6 is capped at first, then one more in each of the 4 passes, the last of which has
        # a budget of 2 for 111; the exact form has 10/11 and 1/11 for the last two.
        ([1e6, 1e5, 1e4, 1e3, 1e2, 10, 1], 6, [1, 1, 1, 1, 1, 20 / 111, 2 / 111]),
    ],
)
def test_passes_of_the_approximate_form(norms, m, expected):
    np.testing.assert_allclose(approximate_probabilities(np.array(norms, float), m), expected)


def test_the_exact_form_shares_what_is_left_among_norms_of_any_size():
    np.testing.assert_allclose(least_variance(np.array([1e300, 1e-300, 1e-300]), 2), [1, 0.5, 0.5])
    norms = np.array([1e6, 1e5, 1e4, 1e3, 1e2, 10, 1])
    np.testing.assert_allclose(least_variance(norms, 6), [1, 1, 1, 1, 1, 10 / 11, 1 / 11])


def test_it_is_the_exact_form_where_four_passes_are_enough():
    rng = np.random.default_rng(0)
    for _ in range(50):
        norms = rng.lognormal(size=40)
        np.testing.assert_allclose(approximate_probabilities(norms, 8), least_variance(norms, 8))


@pytest.mark.parametrize("approximate", [False, True])
def test_the_mean_of_10000_aggregates_is_the_full_one(approximate):
    """w + sum of q_k (w_k - w), with updates of 3 numbers; client 2 is away, and 5 has failed."""
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(8, 3)) * rng.lognormal(sigma=1.5, size=(8, 1))
    sizes = np.array([5, 40, 10, 25, 15, 30, 20, 35])
    norms = np.linalg.norm(updates, axis=1)
    view = {"sizes": sizes, "available": np.arange(8) != 2, "reported": np.ones(8)}
    view["reported"][5] = np.nan
    came = np.array([0, 1, 3, 4, 6, 7])
    full = sizes[came] @ updates[came] / sizes[came].sum()
    selector = OptimalSelector(3, approximate=approximate)
    made = mock_round(np.ones(8), norms=norms, rng=rng, **view)
    reports = made.reports(selector.select(made))
    cohorts = [selector.admit(made, reports) for _ in range(10_000)]
    sums = np.array([cohort.weights @ updates[cohort.clients] for cohort in cohorts])
    error = sums.std(axis=0) / np.sqrt(len(sums))
    assert (np.abs(sums.mean(axis=0) - full) < 4 * error).all()
    uploads = np.array([len(cohort.clients) for cohort in cohorts])
    assert abs(uploads.mean() - 3) < 4 * uploads.std() / 100
    assert all(cohort.unbiased for cohort in cohorts)


def test_everybody_in_reach_trains_and_reports_weighted_norms():
    view = mock_round(np.ones(4), sizes=[10, 20, 30, 40], available=[True, True, True, False])
    cohort = OptimalSelector(1).select(view)
    assert cohort.clients.tolist() == [0, 1, 2]
    np.testing.assert_allclose(cohort.weights, [1 / 6, 1 / 3, 1 / 2])
    np.testing.assert_allclose(view.reports(cohort).norms, [1 / 6, 1 / 3, 1 / 2])
    assert view.polls == view.sketched == view.trials == []


def test_weights_are_shares_by_probabilities():
    """u = (2, 2, 12) / 10: client 2 for certain, the others with 1/2; shares .2, .4, .4."""
    for seed in range(20):
        cohort = admitted(OptimalSelector(2), [10, 5, 30], seed, sizes=[20, 40, 40])
        expected = {0: 0.4, 1: 0.8, 2: 0.4}
        assert 2 in cohort.clients
        for k, weight in zip(cohort.clients.tolist(), cohort.weights, strict=True):
            assert weight == pytest.approx(expected[k])


def test_norms_that_are_not_finite_are_never_admitted():
    for seed in range(50):
        cohort = admitted(OptimalSelector(2), [np.nan, np.inf, 1, 1], seed)
        assert cohort.clients.tolist() == [2, 3]
        assert cohort.weights.tolist() == [0.5, 0.5]


def test_nobody_answers():
    for norms in ([np.nan] * 3, [0, 0, 0]):
        cohort = admitted(OptimalSelector(2), norms)
        assert not len(cohort.clients) and cohort.unbiased


def test_the_cohort_may_be_empty():
    """Two equal clients with 1/2 each: nobody with 1/4, on average 1 of 0, 1 or 2."""
    sizes = [len(admitted(OptimalSelector(1), [1, 1], seed).clients) for seed in range(2000)]
    rates = np.bincount(sizes, minlength=3) / 2000
    np.testing.assert_allclose(rates, [0.25, 0.5, 0.25], atol=0.04)


def test_three_and_a_single_client():
    one = admitted(OptimalSelector(2), [3, 3, 3], available=[False, True, False])
    assert one.clients.tolist() == [1] and one.weights.tolist() == [1]
    assert admitted(OptimalSelector(3), [1, 2, 3]).clients.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("n_clients", "m"), [(4, 2), (40, 10), (4000, 400)])
def test_defaults_are_good_for_few_and_many_clients(n_clients, m):
    counts = [len(admitted(OptimalSelector(), np.ones(n_clients), s).clients) for s in range(100)]
    error = np.sqrt(m * (1 - m / n_clients) / 100)
    assert abs(np.mean(counts) - m) < 4 * error


X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
Y = (X[:, 0] + 0.3 * np.random.default_rng(1).normal(size=60) > 0).astype(int)
CLIENTS = np.repeat(np.arange(8), [3, 12, 5, 9, 7, 10, 8, 6])


def fit(selector, **parameters):
    model = FederatedClassifier(selector=selector, n_rounds=4, random_state=0, **parameters)
    return model.fit(X, Y, clients=CLIENTS)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_with_m_of_all_it_is_a_fit_of_all(engine):
    optimal = fit(OptimalSelector(8), engine=engine)
    full = fit(RandomSelector(8, "uniform", replace=False), engine=engine)
    np.testing.assert_allclose(optimal.coef_, full.coef_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(optimal.history_["train_loss"], full.history_["train_loss"])


def test_a_fit_with_dropouts_repeats_and_all_train_but_some_upload():
    models = [fit(OptimalSelector(3), availability=Dropout(0.3)) for _ in range(2)]
    history = models[0].history_
    assert np.isfinite(models[0].coef_).all()
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    assert (history["models_up"] == history["n_aggregated"]).all()
    assert history["n_aggregated"].sum() < history["n_trained"].sum()

"""The Gaussian of loss changes: its likelihood, its fit and its picks, against dense ones."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from skfed.selection._gaussian_process import (
    DIMENSION,
    NOISE,
    fitted_embeddings,
    greedy_picks,
    negative_log_likelihood,
)

NAN = np.nan


def sigma(embeddings):
    return embeddings @ embeddings.T + NOISE**2 * np.eye(len(embeddings))


def dense_likelihood(covariance, changes, weights):
    """The weighted negative log likelihood of the columns, without the constant of each entry."""
    total = 0.0
    for change, weight in zip(changes.T, weights, strict=True):
        known = np.flatnonzero(np.isfinite(change))
        density = multivariate_normal(cov=covariance[np.ix_(known, known)])
        total -= weight * (density.logpdf(change[known]) + len(known) / 2 * np.log(2 * np.pi))
    return total


def dense_picks(covariance, shares, discounts, available, n):
    """The rule as it is defined, with a covariance of all that is conditioned on each pick."""
    left, picks = list(range(len(covariance))), []
    for _ in range(n):
        covariances = shares[left] @ covariance[np.ix_(left, left)]
        scores = discounts[left] * covariances / np.sqrt(np.diag(covariance)[left])
        k = left[int(np.argmax(np.where(available[left], scores, -np.inf)))]
        picks.append(k)
        left.remove(k)
        covariance = covariance - np.outer(covariance[k], covariance[k]) / covariance[k, k]
    return picks


def samples(seed, n_clients, n_samples, missing=0.0, scale=1.0):
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(n_clients, 3)) @ rng.normal(size=(3, n_samples))
    changes = scale * (0.1 * factors + 0.03 * rng.normal(size=(n_clients, n_samples)))
    changes[rng.random(changes.shape) < missing] = NAN
    return changes, 0.9 ** np.arange(n_samples)


@pytest.mark.parametrize("n_clients", [1, 7, 40])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_the_likelihood_is_that_of_the_dense_gaussian(n_clients, missing):
    changes, weights = samples(0, n_clients, 6, missing)
    embeddings = 0.2 * np.random.default_rng(1).normal(size=(n_clients, DIMENSION))
    known = np.isfinite(changes)
    given = np.where(known, changes, 0).T, known.T.astype(float), weights
    value, gradient = negative_log_likelihood(embeddings.ravel(), *given)
    expected = dense_likelihood(sigma(embeddings), changes[:, known.any(0)], weights[known.any(0)])
    assert value == pytest.approx(expected, rel=1e-7)
    steps = 1e-4 * np.eye(embeddings.size)[:: n_clients + 3]
    differences = [
        negative_log_likelihood(embeddings.ravel() + step, *given)[0]
        - negative_log_likelihood(embeddings.ravel() - step, *given)[0]
        for step in steps
    ]
    scale = np.abs(gradient).max()
    found = gradient[:: n_clients + 3] / scale
    np.testing.assert_allclose(found, np.array(differences) / 2e-4 / scale, atol=1e-3)


def test_with_few_clients_sigma_is_the_mean_of_outer_products():
    """(1, 4, 9) / 6 of the weights; eigenvalues below .0001 are raised to it."""
    changes = np.array([[1.0, 0, 2], [0.5, 0, -1], [0, 3, 0], [0, 0, 0]])
    weights = np.array([1.0, 2, 3])
    expected = np.einsum("ie,je,e->ij", changes, changes, weights / 6)
    expected[3, 3] = NOISE**2
    np.testing.assert_allclose(sigma(fitted_embeddings(changes, weights)), expected, atol=1e-12)


@pytest.mark.parametrize(("n_clients", "n_samples"), [(5, 3), (30, 10), (30, 40), (100, 20)])
def test_no_other_sigma_is_likelier(n_clients, n_samples):
    changes, weights = samples(0, n_clients, n_samples)
    embeddings = fitted_embeddings(changes, weights)
    best = dense_likelihood(sigma(embeddings), changes, weights)
    rng = np.random.default_rng(1)
    for size in (1e-3, 1e-2, 1e-1):
        for _ in range(10):
            other = embeddings + size * rng.normal(size=embeddings.shape)
            assert dense_likelihood(sigma(other), changes, weights) > best
    given = changes.T, np.ones(changes.T.shape), weights
    assert np.abs(negative_log_likelihood(embeddings.ravel(), *given)[1]).max() < 1e-4


def test_who_did_not_answer_is_left_out():
    """Diag(.25, .48, .5): client 1 has the mean square of three samples, not of four."""
    changes = np.array([[-1, 0, 0, 0], [0, -1.2, 0, NAN], [0, 0, -1, -1]], float)
    found = sigma(fitted_embeddings(changes, np.ones(4)))
    np.testing.assert_allclose(found, np.diag([0.25, 0.48, 0.5]), atol=1e-3)


def test_a_descent_makes_samples_likelier_where_some_did_not_answer():
    for seed in range(5):
        changes, weights = samples(seed, 40, 20, missing=0.3)
        start = fitted_embeddings(np.nan_to_num(changes), weights)
        values = [
            dense_likelihood(sigma(X), changes, weights)
            for X in (start, fitted_embeddings(changes, weights))
        ]
        assert values[1] < values[0] - 10


def test_who_never_answered_is_independent():
    changes, weights = samples(0, 6, 4)
    changes[2] = NAN
    embeddings = fitted_embeddings(changes, weights)
    assert not embeddings[2].any()
    others = np.delete(np.arange(6), 2)
    expected = fitted_embeddings(changes[others], weights)
    np.testing.assert_allclose(embeddings[others], expected)


@pytest.mark.parametrize("scale", [1e-30, 1e3, 1e6, 1e30, 1e49])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_samples_of_any_size_are_fitted(scale, missing):
    changes, weights = samples(0, 30, 8, missing, scale)
    embeddings = fitted_embeddings(changes, weights)
    assert np.isfinite(embeddings).all()
    args = np.ones(30) / 30, np.ones(30), np.ones(30, bool), 30
    picks = greedy_picks(embeddings, *args, np.random.default_rng(0))
    assert sorted(picks) == list(range(30))


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 10.0])
def test_picks_are_those_of_a_dense_posterior(scale):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        embeddings = scale * rng.normal(size=(40, DIMENSION))
        shares, discounts = rng.dirichlet(np.ones(40)), 0.95 ** rng.integers(0, 6, 40)
        available = rng.random(40) < 0.8
        given = shares, discounts, available, 25
        picks = greedy_picks(embeddings, *given, rng)
        assert picks.tolist() == dense_picks(sigma(embeddings), *given)


def test_the_worked_decision():
    """(.65, .59, .43): 0, then (.3060, .43): 2; with alpha_0 = .9: 1, then (.3689, .3729): 2."""
    covariance = np.array([[1, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 4]])
    embeddings = np.zeros((3, DIMENSION))
    embeddings[:, :3] = np.linalg.cholesky(covariance - NOISE**2 * np.eye(3))
    shares, rng = np.array([0.5, 0.3, 0.2]), np.random.default_rng(0)
    for alpha, expected in [(1.0, [0, 2]), (0.9, [1, 2])]:
        given = shares, np.array([alpha, 1, 1]), np.ones(3, bool), 2
        assert greedy_picks(embeddings, *given, rng).tolist() == expected
        assert dense_picks(covariance, *given) == expected


def test_alike_clients_are_picked_at_random_beyond_the_rank():
    embeddings = fitted_embeddings(np.array([[-1.0, -2.0]]).repeat(6, axis=0), np.ones(2))
    rng, counts = np.random.default_rng(0), np.zeros(6)
    for _ in range(2000):
        given = np.ones(6) / 6, np.ones(6), np.ones(6, bool), 4
        picks = greedy_picks(embeddings, *given, rng)
        assert len(set(picks.tolist())) == 4
        counts[picks] += 1
    np.testing.assert_allclose(counts / 2000, 4 / 6, atol=0.05)

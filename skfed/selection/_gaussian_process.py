"""A Gaussian process of loss changes, with a covariance of low rank and noise.

Sigma = X X' + NOISE^2 I, where X has one row of ``DIMENSION`` numbers a client. It is never formed.
"""

import numpy as np
from scipy.linalg import svd
from scipy.optimize import minimize

DIMENSION = 15
NOISE = 0.01

_N_ITERATIONS = 50
_TIE = 1e-9  # of the largest score: what rounding may make of equal ones


def fitted_embeddings(changes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the X of the largest weighted likelihood of samples with mean 0.

    If everybody answered in all samples it is known: the leading eigenvectors of the weighted mean
    of their outer products, scaled to the eigenvalues less the noise (Tipping and Bishop:
    Probabilistic principal component analysis, 1999, section 3.2). Else that of the samples with 0
    for who did not answer is where a descent begins, in which a sample has the marginal
    distribution of who answered.

    Parameters
    ----------
    changes : ndarray of shape (n_clients, n_samples)
        NaN of clients that did not answer.
    weights : ndarray of shape (n_samples,)
        Not negative, and not all 0.

    Returns
    -------
    ndarray of shape (n_clients, DIMENSION)
        Rows of zeros for clients that never answered.
    """
    embeddings = np.zeros((len(changes), DIMENSION))
    answered = np.isfinite(changes)
    heard = answered.any(axis=1)
    changes, answered, weights = changes[heard], answered[heard], weights / weights.sum()
    known = np.where(answered, changes, 0)
    fitted = _principal(known, weights)
    if not answered.all():
        found = minimize(
            negative_log_likelihood,
            fitted.ravel(),
            args=(known.T, answered.T.astype(float), weights),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": _N_ITERATIONS},
        )
        fitted = found.x.reshape(fitted.shape)
    embeddings[heard] = fitted
    return embeddings


def _principal(changes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the best X of samples in which everybody answered."""
    vectors, values, _ = svd(changes * np.sqrt(weights), full_matrices=False)
    values = np.maximum(values[:DIMENSION], NOISE)
    scales = np.sqrt(values - NOISE) * np.sqrt(values + NOISE)  # squares might overflow
    embeddings = np.zeros((len(changes), DIMENSION))
    embeddings[:, : len(scales)] = vectors[:, : len(scales)] * scales
    return embeddings


def negative_log_likelihood(
    flat: np.ndarray, changes: np.ndarray, answered: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the weighted negative log likelihood of samples, but for a constant; its gradient.

    By Woodbury's identity, in time in proportion to the number of clients.

    Parameters
    ----------
    flat : ndarray of shape (n_clients * DIMENSION,)
        The entries of X.
    changes, answered : ndarray of shape (n_samples, n_clients)
        0 where a client did not answer, and 1 where it did.
    weights : ndarray of shape (n_samples,)
        The weights of the samples.

    Returns
    -------
    float, ndarray of shape (n_clients * DIMENSION,)
        The value and its derivatives.
    """
    X = flat.reshape(-1, DIMENSION)
    squares = (X[:, :, None] * X[:, None, :]).reshape(len(X), -1)
    # Eigenvalues, as a Cholesky factor of few samples of large changes may not exist.
    eigenvalues, vectors = np.linalg.eigh((answered @ squares).reshape(-1, DIMENSION, DIMENSION))
    eigenvalues = np.maximum(eigenvalues, 0) + NOISE**2
    inverses = (vectors / eigenvalues[:, None]) @ vectors.transpose(0, 2, 1)
    explained = (inverses @ (changes @ X)[:, :, None])[:, :, 0] @ X.T
    scaled = (changes - answered * explained) / NOISE**2  # the inverse of Sigma times the changes
    log_determinants = np.log(eigenvalues / NOISE**2).sum(axis=1)
    log_determinants += 2 * np.log(NOISE) * answered.sum(axis=1)
    value = weights @ (log_determinants + (changes * scaled).sum(axis=1)) / 2
    inverse_sums = answered.T @ (weights[:, None] * inverses.reshape(len(inverses), -1))
    gradient = (X[:, None] @ inverse_sums.reshape(-1, DIMENSION, DIMENSION))[:, 0]
    gradient -= scaled.T @ (weights[:, None] * (scaled @ X))
    return value, gradient.ravel()


def greedy_picks(
    embeddings: np.ndarray,
    shares: np.ndarray,
    discounts: np.ndarray,
    available: np.ndarray,
    n: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the clients that the rule picks one after the other.

    Each is the available client of the largest alpha_k sum_i p_i Sigma_ik / sqrt(Sigma_kk), ties at
    random; Sigma is then conditioned on its loss change. The sum is over all clients not picked.

    Given loss changes, Sigma stays X X' + NOISE^2 I of the others, with their embeddings shrunk
    along that of the client picked. So a pick takes time in proportion to the number of clients.

    Parameters
    ----------
    embeddings : ndarray of shape (n_clients, DIMENSION)
        X.
    shares, discounts : ndarray of shape (n_clients,)
        p and alpha.
    available : ndarray of shape (n_clients,), dtype=bool
        Who may be picked.
    n : int
        The number of picks, at most that of available clients.
    rng : numpy.random.Generator
        It orders clients of equal scores.

    Returns
    -------
    ndarray of shape (n,)
        In the order of the picks.
    """
    order = rng.permutation(len(embeddings))
    rest, shares, discounts = embeddings[order], shares[order], discounts[order]
    is_open = available[order]
    picked = np.empty(n, dtype=np.intp)
    for i in range(n):
        covariances = rest @ (shares @ rest) + NOISE**2 * shares
        variances = np.einsum("kd,kd->k", rest, rest) + NOISE**2
        scores = np.where(is_open, discounts * covariances / np.sqrt(variances), -np.inf)
        tie = _TIE * np.abs(scores[is_open]).max()
        k = picked[i] = np.argmax(scores >= scores.max() - tie)
        is_open[k], shares[k] = False, 0.0
        length = np.linalg.norm(rest[k])
        if length > 0:
            direction = rest[k] / length
            rest -= np.outer((1 - NOISE / np.hypot(NOISE, length)) * (rest @ direction), direction)
    return order[picked]

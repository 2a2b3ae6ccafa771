"""The skew of a selection.

Cho, Wang, Joshi: Client Selection in Federated Learning, 2020 (arXiv:2010.01243), Definition 3.2.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from skfed.selection import BaseSelector
from skfed.selection._mock_round import mock_round
from skfed.utils._checks import Count, numbers, validated

_SELECTION = {"selector": [BaseSelector], "n_draws": [Count()], "random_state": ["random_state"]}


@validated(**_SELECTION | {"n_draws": [Count(2)]})  # one draw has no standard error
def selection_skew(
    selector: BaseSelector,
    losses: ArrayLike,
    gaps: ArrayLike,
    *,
    sizes: ArrayLike | None = None,
    n_draws: int = 1000,
    random_state: Any = None,
) -> pd.DataFrame:
    """Estimate rho(S(pi, w), w'), the skew of a selection (power-of-choice, Definition 3.2).

    The selector is called ``n_draws`` times. Updates are weighted by the cohort's weights, 1/m for
    power-of-choice and as in equation 76 otherwise.

    Parameters
    ----------
    selector : BaseSelector
        pi.
    losses : array-like of shape (n_clients,)
        F_k(w), the polled losses and the reported ones.
    gaps : array-like of shape (n_clients,)
        F_k(w') - F_k*.
    sizes : array-like of int of shape (n_clients,), default=None
        D_k; None is one sample each.
    n_draws : int, default=1000
        Cohorts drawn.
    random_state : int, RandomState instance or None, default=None
        Seed of the draws.

    Returns
    -------
    DataFrame of shape (1, 2)
        ``rho``, the estimate, 1 for unbiased selection, and its ``standard_error``.

    Raises
    ------
    ValueError
        If all gaps are 0: the skew is not defined.
    """
    losses = numbers(losses, "losses")
    if losses.ndim != 1:
        raise ValueError(f"losses has shape {losses.shape}: pass one number a client.")
    gaps = numbers(gaps, "gaps", losses.shape)
    shares = _shares(sizes, losses.size)
    _check_gaps(gaps)
    weights = _draw_weights(selector, losses, sizes, n_draws, random_state)
    samples = weights @ gaps / (shares @ gaps)
    error = samples.std(ddof=1) / np.sqrt(n_draws)
    return pd.DataFrame({"rho": [samples.mean()], "standard_error": [error]})


@validated(**_SELECTION)
def skew_range(
    selector: BaseSelector,
    losses: ArrayLike,
    minima: ArrayLike,
    optimum_losses: ArrayLike,
    *,
    sizes: ArrayLike | None = None,
    n_draws: int = 1000,
    random_state: Any = None,
) -> pd.DataFrame:
    """Estimate rho-bar and rho-tilde over a grid of points (power-of-choice, equation 6).

    Parameters
    ----------
    selector : BaseSelector
        pi.
    losses : array-like of shape (n_points, n_clients)
        F_k at each point w of the grid.
    minima : array-like of shape (n_clients,)
        F_k*.
    optimum_losses : array-like of shape (n_clients,)
        F_k(w*).
    sizes, n_draws, random_state
        As in :func:`selection_skew`.

    Returns
    -------
    DataFrame of shape (n_points, 2)
        For each w that determines the selection, ``lowest``: the least rho(S(pi, w), w') over the
        grid of w', and ``at_optimum``: rho(S(pi, w), w*). Rho-bar is the least of both columns,
        rho-tilde the largest of ``at_optimum``; ``attrs`` has them as "rho_bar", "rho_tilde".
    """
    losses = np.atleast_2d(numbers(losses, "losses"))
    if losses.ndim > 2 or not losses.size:
        raise ValueError(f"losses has shape {losses.shape}: pass (n_points, n_clients).")
    shares = _shares(sizes, losses.shape[1])
    minima = numbers(minima, "minima", losses.shape[1:])
    gaps = losses - minima
    optimum_gaps = numbers(optimum_losses, "optimum_losses", losses.shape[1:]) - minima
    _check_gaps(optimum_gaps)
    rng = check_random_state(random_state)
    rows = []
    for at_w in losses:
        mean = _draw_weights(selector, at_w, sizes, n_draws, rng).mean(axis=0)
        elsewhere = (gaps @ mean) / (gaps @ shares)
        rows.append((elsewhere.min(), mean @ optimum_gaps / (shares @ optimum_gaps)))
    frame = pd.DataFrame(rows, columns=["lowest", "at_optimum"])
    frame.attrs = {"rho_bar": frame.to_numpy().min(), "rho_tilde": frame["at_optimum"].max()}
    return frame


def _draw_weights(selector, losses, sizes, n_draws, random_state) -> np.ndarray:
    """Return each draw's weight of each client, of shape (n_draws, n_clients)."""
    rng = check_random_state(random_state)
    weights = np.zeros((n_draws, len(losses)))
    for draw, seed in zip(weights, rng.randint(2**31, size=n_draws), strict=True):
        view = mock_round(
            losses,
            sizes=None if sizes is None else np.asarray(sizes, int),
            reported=losses,
            rng=np.random.default_rng(seed),
        )
        cohort = selector.select(view)
        np.add.at(draw, cohort.clients, cohort.weights)
    return weights


def _check_gaps(gaps: np.ndarray) -> None:
    if not gaps.any():
        raise ValueError("all gaps are 0: without heterogeneity the selection skew is not defined.")


def _shares(sizes: ArrayLike | None, n_clients: int) -> np.ndarray:
    counts = np.ones(n_clients) if sizes is None else numbers(sizes, "sizes", (n_clients,))
    if not ((counts >= 1) & (counts == counts.round())).all():
        raise ValueError(f"sizes must be whole numbers >= 1, got {counts}.")
    return counts / counts.sum()

"""The right-hand sides of both papers' theorems.

FedALIGN: Ravi, Shomorony, TMLR 2024, Theorem 1, and Theorem A.9 of its preprint. Power-of-choice:
Cho, Wang, Joshi, 2020 (arXiv:2010.01243), Theorems 3.1 and A.1.
"""

from numbers import Real

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from skfed.utils._checks import Count, computed_from, numbers, validated
from skfed.utils._sklearn import Interval

_POSITIVE = [Interval(Real, 0, None, closed="neither")]
_NON_NEGATIVE = [Interval(Real, 0, None, closed="left")]
_COUNT = [Count()]
_CONSTANTS = {
    **{"L": _POSITIVE, "mu": _POSITIVE},
    **{"sigma": _NON_NEGATIVE, "G": _NON_NEGATIVE, "Gamma": _NON_NEGATIVE},
}
_SKEWS = {"rho_bar": _POSITIVE, "rho_tilde": _NON_NEGATIVE}
_CHOICE = {**_CONSTANTS, "tau": _COUNT, "m": _COUNT, **_SKEWS}


@validated(**_CONSTANTS, E=_COUNT, distance=_NON_NEGATIVE, n_draws=[*_COUNT, None])
@computed_from(*_CONSTANTS, "E", "distance", "theta", "rho", "n_draws")
def fedalign_bound(
    T: ArrayLike,
    *,
    L: float,
    mu: float,
    sigma: float,
    G: float,
    E: int,
    distance: float,
    Gamma: float,
    theta: ArrayLike = 1.0,
    rho: ArrayLike = 0.0,
    n_draws: int | None = None,
) -> pd.DataFrame:
    """Return the right-hand side of FedALIGN's Theorem 1, or A.9 in partial participation.

    Parameters
    ----------
    T : array-like of int
        Local iterations.
    L, mu : float
        Smoothness and strong convexity.
    sigma, G : float
        Bounds on the standard deviation and the norm of stochastic gradients.
    E : int
        Local iterations a round.
    distance : float
        ||w_0 - w*||.
    Gamma : float
        Heterogeneity, as :func:`heterogeneity` returns it.
    theta, rho : array-like, default=1.0, 0.0
        As :func:`alignment` returns them.
    n_draws : int, default=None
        K of equation 56, the priority clients drawn a round; None is full participation.

    Returns
    -------
    DataFrame
        ``T``, ``vanishing``, ``bias`` and their sum ``bound`` on E[F(w_T)] - F*.
    """
    T = _iterations(T)
    gamma = max(8 * L / mu, E)
    variance = sigma**2 + 8 * (E - 1) ** 2 * G**2
    if n_draws is not None:
        gamma = 8 * L / mu  # Theorem A.9 has no maximum
        variance += 8 * E**2 * G**2 / n_draws
    C1 = 2 * L / mu**2 * variance + 4 * L**2 / mu * distance**2
    C2 = 12 * L**2 / mu**2
    theta, rho = _scalar_or_shape_of(T, theta, "theta"), _scalar_or_shape_of(T, rho, "rho")
    return _bound(T, (C1 + C2 * theta * Gamma) / (T + gamma), rho)


@validated(**_CHOICE, distance=_NON_NEGATIVE)
@computed_from(*_CHOICE, "distance")
def power_of_choice_bound(
    T: ArrayLike,
    *,
    L: float,
    mu: float,
    sigma: float,
    G: float,
    tau: int,
    m: int,
    distance: float,
    Gamma: float,
    rho_bar: float = 1.0,
    rho_tilde: float = 1.0,
) -> pd.DataFrame:
    """Return the right-hand side of power-of-choice's Theorem 3.1 (decaying learning rate).

    Parameters
    ----------
    T : array-like of int
        Local iterations.
    L, mu, sigma, G, distance, Gamma
        As in :func:`fedalign_bound`.
    tau, m : int
        Local iterations and clients a round.
    rho_bar, rho_tilde : float, default=1.0
        Selection skews, as :func:`skew_range` estimates them; 1 for unbiased selection.

    Returns
    -------
    DataFrame
        ``T``, ``vanishing``, ``bias`` and their sum ``bound`` on E[F(w_T)] - F*.
    """
    T = _iterations(T)
    gamma = 4 * L / mu
    vanishing = (
        4 * L * (32 * tau**2 * G**2 + sigma**2 / m) / (3 * mu**2 * rho_bar)
        + 8 * L**2 * Gamma / mu**2
        + L * gamma * distance**2 / 2
    ) / (T + gamma)
    return _bound(T, vanishing, 8 * L * Gamma / (3 * mu) * (rho_tilde / rho_bar - 1))


@validated(**_CHOICE, lr=[Real], initial_error=_NON_NEGATIVE)
@computed_from(*_CHOICE, "lr", "initial_error")
def power_of_choice_bound_fixed(
    T: ArrayLike,
    *,
    lr: float,
    L: float,
    mu: float,
    sigma: float,
    G: float,
    tau: int,
    m: int,
    initial_error: float,
    Gamma: float,
    rho_bar: float = 1.0,
    rho_tilde: float = 1.0,
) -> pd.DataFrame:
    """Return the right-hand side of power-of-choice's Theorem A.1 (fixed learning rate).

    Parameters
    ----------
    T : array-like of int
        Local iterations.
    lr : float
        eta, at most min(1 / (2 mu B), 1 / (4 L)) with B = 1 + 3 rho_bar / 8.
    L, mu, sigma, G, tau, m, Gamma, rho_bar, rho_tilde
        As in :func:`power_of_choice_bound`.
    initial_error : float
        F(w_0) - F*.

    Returns
    -------
    DataFrame
        ``T``, ``vanishing``, ``bias`` and their sum ``bound`` on F(w_T) - F*.

    Raises
    ------
    ValueError
        If the learning rate is above what the theorem allows.
    """
    T = _iterations(T)
    B = 1 + 3 * rho_bar / 8
    largest = min(1 / (2 * mu * B), 1 / (4 * L))
    if not 0 < lr <= largest:
        raise ValueError(
            f"lr={lr} must be in (0, {largest}]: the theorem holds up to this learning rate, which "
            "depends on L, mu and rho_bar."
        )
    noise = lr * (32 * tau**2 * G**2 + sigma**2 / m + 6 * rho_bar * L * Gamma)
    skew = 2 * Gamma * (rho_tilde - rho_bar)
    floor = 4 * (noise + skew) / (8 + 3 * rho_bar)
    vanishing = L / mu * (1 - lr * mu * B) ** T * (initial_error - floor)
    return _bound(T, vanishing, L / mu * floor)


def _iterations(T: ArrayLike) -> np.ndarray:
    values = np.atleast_1d(numbers(T, "T"))
    if values.ndim > 1 or (values < 0).any():
        raise ValueError(f"T must be numbers >= 0 in one dimension, got {values}.")
    return values


def _scalar_or_shape_of(T: np.ndarray, values: ArrayLike, name: str) -> np.ndarray:
    array = numbers(values, name)
    return array if not array.ndim else numbers(array, name, T.shape)


def _bound(T: np.ndarray, vanishing: ArrayLike, bias: ArrayLike) -> pd.DataFrame:
    total = np.asarray(vanishing) + np.asarray(bias)
    columns = {"T": T, "vanishing": vanishing, "bias": bias, "bound": total}
    return pd.DataFrame({name: np.broadcast_to(c, T.shape) for name, c in columns.items()})

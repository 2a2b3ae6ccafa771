"""The clients included in a fit, and the terms of FedALIGN's Theorem 1 that depend on them.

Ravi, Shomorony: Prioritized Federated Learning, TMLR 2024, section 3.2.
"""

from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from skfed.utils._checks import computed_from, numbers, validated
from skfed.utils._ids import canonical, client_index
from skfed.utils._sklearn import Interval

_POSITIVE = Interval(Real, 0, None, closed="neither")


def inclusion_trace(model: Any) -> pd.DataFrame:
    """Return the clients aggregated in each round: the indicator in FedALIGN's Theorem 1.

    Parameters
    ----------
    model : FederatedClassifier
        A fitted model.

    Returns
    -------
    DataFrame of bool, of shape (n_rounds, n_clients)
        One column a client, in the order of ``clients_``.
    """
    check_is_fitted(model)
    cohorts = _positions(model, "cohort")
    included = np.zeros((len(cohorts), len(model.clients_)), dtype=bool)
    for row, cohort in zip(included, cohorts, strict=True):
        row[cohort] = True
    return pd.DataFrame(included, columns=client_index(model.clients_))


def selection_frequency(model: Any) -> pd.DataFrame:
    """Return how often each client was polled and aggregated, beside its share of the data.

    Parameters
    ----------
    model : FederatedClassifier
        A fitted model.

    Returns
    -------
    DataFrame of shape (n_clients, 5)
        ``priority``, ``data_share`` (D_k / sum of D), ``n_polled``, ``n_selected`` (a repeated
        draw counts twice) and ``selected_share`` (of all updates).
    """
    check_is_fitted(model)
    polled, selected = (
        np.bincount(np.concatenate(_positions(model, column)), minlength=len(model.clients_))
        for column in ("polled", "cohort")
    )
    return pd.DataFrame(
        {
            "priority": model.priority_,
            "data_share": model.sizes_ / model.sizes_.sum(),
            "n_polled": polled,
            "n_selected": selected,
            "selected_share": selected / max(selected.sum(), 1),
        },
        index=client_index(model.clients_),
    )


def _positions(model: Any, column: str) -> list[np.ndarray]:
    """Return the positions in ``clients_`` of the clients in a column, one array a round."""
    position = {canonical(client): k for k, client in enumerate(model.clients_)}
    # Clients of earlier calls of partial_fit may not be in clients_.
    return [
        np.array([position[key] for key in map(canonical, ids) if key in position], dtype=np.intp)
        for ids in model.history_[column]
    ]


@validated(L=[_POSITIVE], mu=[_POSITIVE], gamma=[_POSITIVE, None])
@computed_from("L", "mu", "gaps", "gamma")
def alignment(
    model: Any, *, L: float, mu: float, gaps: ArrayLike | None = None, gamma: float | None = None
) -> pd.DataFrame:
    """Return theta_T and rho_T of FedALIGN's Theorem 1 after each round (equations 7 and 8).

    Parameters
    ----------
    model : FederatedClassifier
        A fitted model; its inclusion trace is used in place of the expectation.
    L, mu : float
        Smoothness and strong convexity of the local objectives.
    gaps : array-like of shape (n_clients,), default=None
        Gamma_k = F_k(w*) - F_k* in the order of ``clients_``, as :func:`optima` returns them; with
        None, ``rho`` is NaN.
    gamma : float, default=None
        None is Theorem 1's max(8 L / mu, E); in partial participation pass 8 L / mu.

    Returns
    -------
    DataFrame of shape (n_rounds, 3)
        ``T``, local iterations so far; ``theta``, in [0, 1]; ``rho``, in units of the loss.
    """
    check_is_fitted(model)
    E = model.local_epochs if model.local_steps is None else model.local_steps
    gamma = max(8 * L / mu, E) if gamma is None else gamma
    included = inclusion_trace(model).to_numpy() & ~model.priority_
    joined = included @ model.fractions_
    # Round r has the iterations rE to (r + 1)E - 1; the sums begin at i = 1.
    n_iterations = np.full(len(joined), E)
    n_iterations[0] -= 1
    T = E * np.arange(1, len(joined) + 1)
    theta = np.cumsum(n_iterations / (1 + joined)) / (T + gamma - 2)
    rho = np.full(len(joined), np.nan)
    if gaps is not None:
        gaps = numbers(gaps, "gaps", model.fractions_.shape)
        bias = (included * gaps) @ model.fractions_ / (1 + joined)
        rho = 2 * L / mu * np.cumsum(n_iterations * bias) / (T + gamma - 2)
    return pd.DataFrame({"T": T, "theta": theta, "rho": rho})

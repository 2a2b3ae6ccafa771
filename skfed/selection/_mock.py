"""Rounds in which every client's loss is known beforehand, to try a selector without data."""

import numpy as np

from skfed.selection._base import Round


class ImaginedRound(Round):
    """A round whose polls are answered from a table, and noted.

    ``polls`` lists them as (clients, metric, max_samples, at_most).
    """

    polls: list[tuple]


def mock_round(
    losses: np.ndarray,
    *,
    sizes: np.ndarray | None = None,
    priority_weights: np.ndarray | None = None,
    available: np.ndarray | None = None,
    reported: np.ndarray | None = None,
    index: int = 0,
    n_rounds: int = 10,
    rng: np.random.Generator | None = None,
) -> ImaginedRound:
    """Return a view of a round whose clients answer each poll with ``losses``.

    Parameters
    ----------
    losses : array-like of shape (n_clients,)
        What each client says when it is polled; NaN for one that stays silent.
    sizes : array-like of shape (n_clients,), default=None
        D_k; None gives each client one sample.
    priority_weights : array-like of shape (n_clients,), default=None
        s_k; None gives every client priority.
    available : array-like of bool of shape (n_clients,), default=None
        Who can be reached; None is everybody.
    reported : array-like of shape (n_clients,), default=None
        Last training losses; None is +inf for each, nobody having trained yet.
    index, n_rounds : int, default=0, 10
        t, and how many rounds are planned.
    rng : numpy.random.Generator, default=None
        The round's randomness; None is a fixed seed.

    Returns
    -------
    Round
        The view; its ``polls`` grow with each question.
    """
    losses = np.asarray(losses, float)
    n_clients = len(losses)
    sizes = np.ones(n_clients, int) if sizes is None else np.asarray(sizes)
    weights = (
        np.ones(n_clients) if priority_weights is None else np.asarray(priority_weights, float)
    )
    polls: list[tuple] = []

    def ask(clients, metric, max_samples, at_most):
        polls.append((clients.tolist(), metric, max_samples, at_most))
        values = losses[clients]
        return values if at_most is None else np.where(values <= at_most, values, np.nan)

    view = ImaginedRound(
        index=index,
        n_rounds=n_rounds,
        rng=np.random.default_rng(0) if rng is None else rng,
        sizes=sizes,
        fractions=sizes / (weights * sizes).sum(),
        priority=weights > 0,
        priority_weights=weights,
        available=np.ones(n_clients, bool) if available is None else np.asarray(available, bool),
        reported=np.full(n_clients, np.inf) if reported is None else np.asarray(reported, float),
        ends=np.cumsum(sizes),
        ask=ask,
    )
    object.__setattr__(view, "polls", polls)
    return view

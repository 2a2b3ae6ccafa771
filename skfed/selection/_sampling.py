"""Draws of clients, at the cost of what is drawn where everybody is available."""

import numpy as np

_TRIES = 8


def draw_by_size(
    rng: np.random.Generator, ends: np.ndarray, available: np.ndarray, n: int, replace: bool
) -> np.ndarray:
    """Draw clients with probabilities in proportion to their size.

    Parameters
    ----------
    rng : numpy.random.Generator
        The only source of randomness.
    ends : ndarray of shape (n_clients,)
        The sizes of each client and of all before it, added up.
    available : ndarray of shape (n_clients,), dtype=bool
        Who can be drawn; at least ``n`` of them without replacement.
    n : int
        Number of draws.
    replace : bool
        With replacement; without, each draw is among those not drawn yet.

    Returns
    -------
    ndarray of shape (n,), dtype=int
        In the order drawn.
    """
    if not available.all():
        return _draw_among(rng, ends, np.flatnonzero(available), n, replace)
    if replace:
        return _owners(rng, ends, n)
    drawn = np.empty(0, dtype=np.intp)
    for _ in range(_TRIES):
        # Leaving out who is drawn again is the same as drawing among the others.
        drawn = np.concatenate([drawn, _owners(rng, ends, n)])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        if len(drawn) >= n:
            return drawn[:n]
    rest = np.setdiff1d(np.arange(len(ends)), drawn)  # a few clients hold nearly all rows
    return np.concatenate([drawn, _draw_among(rng, ends, rest, n - len(drawn), replace)])


def _owners(rng: np.random.Generator, ends: np.ndarray, n: int) -> np.ndarray:
    """Return whose ``n`` rows are, drawn from all rows with replacement."""
    return np.searchsorted(ends, rng.integers(ends[-1], size=n), side="right")


def _draw_among(
    rng: np.random.Generator, ends: np.ndarray, clients: np.ndarray, n: int, replace: bool
) -> np.ndarray:
    sizes = np.diff(ends, prepend=0)[clients]
    return rng.choice(clients, size=n, replace=replace, p=sizes / sizes.sum())

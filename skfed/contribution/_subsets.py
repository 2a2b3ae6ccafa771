"""All subsets of a few players."""

import numpy as np


def all_subsets(n_players: int) -> np.ndarray:
    """Return a mask of shape (2^n, n): player i is in subset j if bit i of j is set."""
    return (np.arange(2**n_players)[:, None] >> np.arange(n_players)) % 2 == 1


def marginal_gains(gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return v(S with i) - v(S) for each player i and each subset S without it.

    Parameters
    ----------
    gains : ndarray of shape (2^n,)
        v of ``all_subsets(n)``.

    Returns
    -------
    marginals, sizes : ndarray of shape (n, 2^(n - 1))
        The differences, a row a player, and the sizes of S.
    """
    n_players = len(gains).bit_length() - 1
    subsets = all_subsets(n_players)
    without = np.stack([np.flatnonzero(~subsets[:, i]) for i in range(n_players)])
    with_player = without | (1 << np.arange(n_players))[:, None]
    return gains[with_player] - gains[without], subsets.sum(axis=1)[without]

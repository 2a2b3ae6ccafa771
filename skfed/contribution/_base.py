"""The contract of contribution methods."""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from skfed.utils._checks import Count, check_params
from skfed.utils._sklearn import StrOptions

#: v: takes subsets of the players, a mask of shape (n_subsets, n_players), and returns their gains.
Gains = Callable[[np.ndarray], np.ndarray]


class Values(NamedTuple):
    """What the players of a game are worth, one entry a player.

    Parameters
    ----------
    values : ndarray of shape (n_players,)
        The value of each.
    errors : ndarray of shape (n_players,)
        Its standard error over the method's draws; 0 of a method that draws nothing.
    """

    values: np.ndarray
    errors: np.ndarray


class BaseContribution(BaseEstimator, metaclass=ABCMeta):
    """Base class of contribution methods; a subclass implements ``_values`` and keeps no state.

    Parameters
    ----------
    metric : {"loss", "accuracy"}, default="loss"
        What the gain is of: a lower loss, or a higher accuracy.
    evaluate_on : {"priority", "validation"}, default="priority"
        Where models are evaluated: by the priority clients in reach, which is charged, or by the
        server on ``X_val``.
    every : int, default=1
        Rounds from one that is valued to the next: of rounds 0, 1, 2..., those t are valued for
        which t + 1 is a multiple of it.

    Notes
    -----
    The players of a round are the clients whose updates were aggregated. v(S) is the gain of the
    model that the aggregator makes of the updates of S alone: how much lower its loss is, or higher
    its accuracy, than that of the model before the round. v of nobody is 0. A value below 0 means
    harm.

    Known against values of any method: a sum over rounds depends on who was drawn in which, so that
    two clients with the same rows may end with different sums (Fan et al., arXiv 2109.09046, of the
    federated Shapley value of Wang et al., arXiv 2009.06192); and a client that knows how it is
    valued may inflate its own value (Zheng et al., arXiv 2502.00494).
    """

    _parameter_constraints: dict = {
        "metric": [StrOptions({"loss", "accuracy"})],
        "evaluate_on": [StrOptions({"priority", "validation"})],
        "every": [Count()],
    }

    def __init__(self, *, metric="loss", evaluate_on="priority", every=1):
        self.metric = metric
        self.evaluate_on = evaluate_on
        self.every = every

    def values(self, gains: Gains, n_players: int, rng: np.random.Generator) -> Values:
        """Return what each player of a game is worth.

        Parameters
        ----------
        gains : callable
            v. It takes a mask of shape (n_subsets, n_players) and returns an array of shape
            (n_subsets,). It is not called for the empty subset, whose gain is 0, nor twice for the
            same.
        n_players : int
            The number of players, 1 or more.
        rng : numpy Generator
            For the draws of the method.

        Returns
        -------
        Values
            The values and their standard errors.

        Raises
        ------
        ValueError
            If a parameter is out of range, or there are too many players for the method.
        TypeError
            If ``_values`` returns something else than :class:`Values` with an entry a player.

        Notes
        -----
        A gain that is not finite makes values that are computed from it infinite or NaN, without a
        warning.
        """
        check_params(self)
        with np.errstate(invalid="ignore"):  # inf - inf
            found = self._values(_remembered(gains), n_players, rng)
        if not isinstance(found, Values) or {np.shape(of) for of in found} != {(n_players,)}:
            raise TypeError(
                f"{type(self).__name__}._values returned {found!r:.80}: return "
                "skfed.contribution.Values(values, errors), with an entry for each of "
                f"{n_players} clients."
            )
        return found

    def is_due(self, t: int) -> bool:
        """Tell whether round t is valued."""
        return (t + 1) % self.every == 0

    @abstractmethod
    def _values(self, gains: Gains, n_players: int, rng: np.random.Generator) -> Values:
        """Return the values; ``gains`` takes any subsets, and asks for new ones alone."""


def _remembered(gains: Gains) -> Gains:
    """Return v with a memory, so that each subset is evaluated once."""
    known: dict[bytes, float] = {}

    def remembered(subsets: np.ndarray) -> np.ndarray:
        subsets = np.asarray(subsets, dtype=bool)  # a mask of integers would be read as positions
        keys = [subset.tobytes() for subset in subsets]
        known.update({key: 0.0 for key, s in zip(keys, subsets, strict=True) if not s.any()})
        new = {key: i for i, key in enumerate(keys) if key not in known}
        if new:
            known.update(zip(new, gains(subsets[list(new.values())]).tolist(), strict=True))
        return np.array([known[key] for key in keys])

    return remembered

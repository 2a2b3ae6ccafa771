"""The Shapley value, from all subsets.

Shapley: A value for n-person games, 1953.
"""

import numpy as np
from scipy.special import comb

from skfed.contribution._base import BaseContribution, Gains, Values
from skfed.contribution._subsets import all_subsets, marginal_gains

MAX_PLAYERS = 10


class ExactShapley(BaseContribution):
    """Shapley values of a round, from all subsets of at most 10 clients.

    A client's value is what it adds on average to those who are there before it, if the m clients
    of the round come in a random order: the mean over sizes s = 0, ..., m - 1 of the mean of
    v(S with i) - v(S) over the subsets S of s other clients.

    Parameters
    ----------
    metric : {"loss", "accuracy"}, default="loss"
        What the gain is of: a lower loss, or a higher accuracy.
    evaluate_on : {"priority", "validation"}, default="priority"
        Where models are evaluated: by the priority clients in reach, which is charged, or by the
        server on ``X_val``.
    every : int, default=1
        Rounds from one that is valued to the next.

    See Also
    --------
    GTGShapley : The same values, estimated from permutations.
    DataBanzhaf : Other weights, for cohorts of any size.

    Notes
    -----
    It guarantees that the values sum to the round's gain v(N), that a client that adds nothing to
    any subset is worth 0, that two clients that add the same to every subset are worth the same,
    and that values of a sum of gains are the sums of values; no other values have all four
    properties. Nothing is drawn: the errors are 0.

    A round of m clients costs 2^m - 1 models, evaluated side by side: 15 of 4, 255 of 8, 1,023 of
    10. More than 10 clients are an error.

    Known against it: this cost; and that the few subsets of one client or two count as much as the
    many of medium size, whose models are steadier. The draws of minibatches make ranks of Shapley
    values differ from run to run (Wang and Jia, arXiv 2205.15466, abstract).

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.contribution import ExactShapley
    >>> def gains(subsets):  # of A, B and C
    ...     a_or_b = subsets[:, :2].any(axis=1)
    ...     return 0.4 * a_or_b + 0.2 * (a_or_b & subsets[:, 2])
    >>> worth = ExactShapley().values(gains, 3, np.random.default_rng(0))
    >>> worth.values.round(4).tolist()
    [0.2333, 0.2333, 0.1333]
    """

    def _values(self, gains: Gains, n_players: int, rng: np.random.Generator) -> Values:
        if n_players > MAX_PLAYERS:
            raise ValueError(
                f"ExactShapley evaluates every subset of at most {MAX_PLAYERS} players, but there "
                f"are {n_players}, with {2**n_players:,} subsets: use DataBanzhaf(), whose cost "
                f"does not grow with their number, or a selector of smaller cohorts."
            )
        marginals, sizes = marginal_gains(gains(all_subsets(n_players)))
        weights = 1 / (n_players * comb(n_players - 1, sizes))
        return Values((weights * marginals).sum(axis=1), np.zeros(n_players))

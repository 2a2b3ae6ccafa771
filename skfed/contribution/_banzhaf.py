"""The Banzhaf value, estimated from random subsets, each of which counts for all clients.

Wang, Jia: Data Banzhaf: A Robust Data Valuation Framework for Machine Learning, AISTATS 2023
(arXiv:2205.15466).
"""

import numpy as np

from skfed.contribution._base import BaseContribution, Gains, Values
from skfed.contribution._subsets import all_subsets, marginal_gains
from skfed.utils._checks import Count


class DataBanzhaf(BaseContribution):
    """Banzhaf values of a round, estimated from the same random subsets for all clients.

    A client's value is what it adds on average to a random subset of the others, all subsets alike.
    It is estimated by maximum sample reuse: each client is in a subset with probability 1/2, and
    its value is the mean gain of the subsets with it minus that of those without it.

    Parameters
    ----------
    n_subsets : int, default=64
        Subsets that are drawn, at least 3. Where all 2^m subsets of m clients are no more than
        that, each is taken once, and the values are exact: up to 6 clients by default.
    metric : {"loss", "accuracy"}, default="loss"
        What the gain is of: a lower loss, or a higher accuracy.
    evaluate_on : {"priority", "validation"}, default="priority"
        Where models are evaluated: by the priority clients in reach, which is charged, or by the
        server on ``X_val``.
    every : int, default=1
        Rounds from one that is valued to the next.

    See Also
    --------
    ExactShapley, GTGShapley : Values that sum to the round's gain.

    Notes
    -----
    It guarantees, of exact values, that a client that adds nothing to any subset is worth 0, and
    that two clients that add the same to every subset are worth the same. Estimates are unbiased,
    and have both properties up to their standard errors, which are by the variances of the two
    samples, each over the number of its subsets. A sample of one subset has no variance, and takes
    that of the other sample. The second subset is the complement of the first, so that no sample is
    empty, and the two are not independent: errors are too small for it, by at most about a fourth
    of 3 subsets, a tenth of 8 and a hundredth of 64. Exact values have errors 0. Of all semivalues
    the Banzhaf value keeps its ranks under the largest noise in the gains, such as minibatches
    bring (Wang and Jia, abstract).

    A round costs at most ``n_subsets`` models, whatever the number of clients m, evaluated side by
    side; a subset that is drawn twice is evaluated once. The error of a value is about twice the
    standard deviation of v over random subsets, divided by the root of ``n_subsets``.

    Known against it: the values do not sum to the round's gain, so that they rank clients rather
    than divide a sum among them; and what differs by less than the errors is not told apart by one
    round, and they are large: of 8 clients in the gallery's example, 64 subsets leave values that
    are off by 0.4 of their size. Estimates by regression on as many subsets are nearer (Liu et al.,
    arXiv 2410.08336, abstract). The default of 64 subsets is not Wang and Jia's, who value training
    rows.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.contribution import DataBanzhaf
    >>> def gains(subsets):  # of A, B and C
    ...     a_or_b = subsets[:, :2].any(axis=1)
    ...     return 0.4 * a_or_b + 0.2 * (a_or_b & subsets[:, 2])
    >>> worth = DataBanzhaf().values(gains, 3, np.random.default_rng(0))
    >>> worth.values.round(4).tolist()
    [0.25, 0.25, 0.15]
    """

    _parameter_constraints = BaseContribution._parameter_constraints | {"n_subsets": [Count(3)]}

    def __init__(self, n_subsets=64, *, metric="loss", evaluate_on="priority", every=1):
        super().__init__(metric=metric, evaluate_on=evaluate_on, every=every)
        self.n_subsets = n_subsets

    def _values(self, gains: Gains, n_players: int, rng: np.random.Generator) -> Values:
        if 2**n_players <= self.n_subsets:
            marginals, _ = marginal_gains(gains(all_subsets(n_players)))
            return Values(marginals.mean(axis=1), np.zeros(n_players))
        subsets = _draw(n_players, self.n_subsets, rng)
        return reuse_estimate(subsets, gains(subsets))


def _draw(n_players: int, n_subsets: int, rng: np.random.Generator) -> np.ndarray:
    """Return random subsets, the second of which is the complement of the first.

    So each player is in one subset at least, and missing from one. The complement of a uniform
    subset is uniform too: whichever of the two has player i, its other players are in it with
    probability 1/2, as in any subset with i, and the means stay unbiased.
    """
    drawn = rng.random((n_subsets - 1, n_players)) < 0.5
    return np.concatenate([drawn[:1], ~drawn[:1], drawn[1:]])


def reuse_estimate(subsets: np.ndarray, gains: np.ndarray) -> Values:
    """Return Banzhaf values and their standard errors by maximum sample reuse.

    Parameters
    ----------
    subsets : bool ndarray of shape (n_subsets, n_players)
        Subsets; each player is in one of them at least, and missing from one.
    gains : ndarray of shape (n_subsets,)
        v of each; a subset that was drawn twice stands there twice.

    Returns
    -------
    Values
        An error is NaN where a player is in one subset and missing from one, and there are no more.
    """
    sides = [(gains[inside], gains[~inside]) for inside in subsets.T]
    values = [inside.mean() - outside.mean() for inside, outside in sides]
    variances = [_variance(*pair) + _variance(*pair[::-1]) for pair in sides]
    return Values(np.array(values), np.sqrt(variances))


def _variance(sample: np.ndarray, other: np.ndarray) -> float:
    """Return the variance of a sample's mean, by the spread of the other if it has one member."""
    spread = next((one.var(ddof=1) for one in (sample, other) if len(one) > 1), np.nan)
    return spread / len(sample)

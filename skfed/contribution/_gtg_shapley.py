"""The Shapley value, estimated from permutations that are cut short.

Liu, Chen, Yu, Liu, Cui: GTG-Shapley: Efficient and Accurate Participant Contribution Evaluation in
Federated Learning, ACM TIST 2022 (arXiv:2109.02053).
"""

from numbers import Real

import numpy as np

from skfed.contribution._base import BaseContribution, Gains, Values
from skfed.utils._checks import Count
from skfed.utils._sklearn import Interval

_THRESHOLD = [Interval(Real, 0, None, closed="left")]
_N_LAST = 10


class GTGShapley(BaseContribution):
    """Shapley values of a round, estimated from guided and truncated permutations.

    Clients come in a random order, and each is worth what it adds to those before it. Permutations
    are drawn in cycles of m, each led by another of the m clients, the others in random order. A
    value is the mean over all permutations. Three rules save models:

    - Between rounds: where the round's gain v(N) is within a threshold of 0, all are worth 0.
    - Within a round: as soon as v of those who have come is within a threshold of v(N), the rest of
      the permutation adds 0.
    - Cycles end once the values have converged. For each of the last ten permutations the values
      that were the means up to it are compared with the values now; the largest of the ten mean
      relative differences over the clients is to be at most ``tol``.

    Parameters
    ----------
    between_round_threshold : float, default=0.001
        Least distance of v(N) from 0 in a round that counts, in the unit of the metric; 0 for none.
    within_round_threshold : float, default=0.001
        Least distance of v(S) from v(N) at which a permutation is read on, in the unit of the
        metric; 0 for none.
    tol : float, default=0.05
        Largest relative difference at which values have converged.
    min_permutations : int, default=30
        Permutations before convergence is looked at, rounded up to whole cycles, at least two of
        them: errors are over cycles.
    max_permutations : int, default=200
        Permutations after which cycles end in any case, rounded down to whole cycles, but not below
        the least number of them.
    metric : {"loss", "accuracy"}, default="loss"
        What the gain is of: a lower loss, or a higher accuracy.
    evaluate_on : {"priority", "validation"}, default="priority"
        Where models are evaluated: by the priority clients in reach, which is charged, or by the
        server on ``X_val``.
    every : int, default=1
        Rounds from one that is valued to the next.

    See Also
    --------
    ExactShapley : All subsets, for at most 10 clients.
    DataBanzhaf : A number of models that does not grow with the cohort.

    Notes
    -----
    It guarantees that values sum to v(N), up to ``within_round_threshold``, in a round that counts;
    that a client that adds nothing to any subset is worth 0; and that two clients that add the same
    to every subset are worth the same, up to the draws. Without thresholds estimates are unbiased,
    but for ending once they look settled. The standard error is that of the mean over cycles, which
    are independent draws: of few cycles it is itself rough, and it does not cover what thresholds
    cut off.

    A cycle of m clients costs at most m (m - 2) models of subsets not seen before, the first one
    m + 1 more, in m calls at most: prefixes of the same length are evaluated side by side. No
    subset is evaluated twice. Where no permutation is cut short, 30 permutations take 130 models of
    8 clients (all subsets: 255) and 200 of 10 (1,023); the two cycles that are the least take 710
    models of 20 clients and 1,670 of 30. 200 permutations take 710 of 10 clients.

    Known against it: the thresholds are in the unit of the metric, so that late rounds, whose gains
    are small, count for nothing; a sum over T rounds may lack T times ``between_round_threshold``.
    Convergence is about the change in ten permutations, not about the error: look at the errors. It
    is relative, so that one client worth nearly nothing keeps it from being met, and cycles go on
    to ``max_permutations``.

    Abstract and code were read for this, not the paper's text. The authors' ``SV_algs/GTG.py`` in
    liuzelei13/GTG-Shapley (740d32a) has 0.001 within and 0.01 between rounds, 0.05, ten
    permutations, and goes on while there are at most 30; FedML's copy has the same. The later
    ``gtg_shapley_value.py`` in cyyever/torch_algorithm (662375d), whose owner lists the paper among
    its works, has 0.001 between rounds too: the default here, since it leaves out less. It ends
    after 0.8 times 2^m permutations, the first one never; 200 is our own limit. Both let a round at
    its threshold exactly count for nothing, so that 0 would not turn it off. The first one
    remembers the gain at which it cut a permutation short as that of the subset that it did not
    evaluate, which other permutations then read; here gains that were evaluated are remembered. The
    later one scales values so that those of the sign of v(N) sum to it; here they are left as they
    are.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.contribution import GTGShapley
    >>> def gains(subsets):  # of A, B and C
    ...     a_or_b = subsets[:, :2].any(axis=1)
    ...     return 0.4 * a_or_b + 0.2 * (a_or_b & subsets[:, 2])
    >>> worth = GTGShapley().values(gains, 3, np.random.default_rng(0))
    >>> worth.values.round(2).tolist(), worth.errors.round(2).tolist()
    ([0.28, 0.18, 0.13], [0.03, 0.03, 0.0])
    """

    _parameter_constraints = BaseContribution._parameter_constraints | {
        "between_round_threshold": _THRESHOLD,
        "within_round_threshold": _THRESHOLD,
        "tol": _THRESHOLD,
        "min_permutations": [Count()],
        "max_permutations": [Count()],
    }

    def __init__(
        self,
        between_round_threshold=0.001,
        within_round_threshold=0.001,
        tol=0.05,
        min_permutations=30,
        max_permutations=200,
        *,
        metric="loss",
        evaluate_on="priority",
        every=1,
    ):
        super().__init__(metric=metric, evaluate_on=evaluate_on, every=every)
        self.between_round_threshold = between_round_threshold
        self.within_round_threshold = within_round_threshold
        self.tol = tol
        self.min_permutations = min_permutations
        self.max_permutations = max_permutations

    def _validate_params(self):
        super()._validate_params()
        if self.min_permutations > self.max_permutations:
            raise ValueError(
                f"min_permutations={self.min_permutations} is above "
                f"max_permutations={self.max_permutations}: lower it, or raise the other."
            )

    def _values(self, gains: Gains, n_players: int, rng: np.random.Generator) -> Values:
        (total,) = gains(np.ones((1, n_players), dtype=bool))
        if abs(total) < self.between_round_threshold:
            return Values(np.zeros(n_players), np.zeros(n_players))
        least = max(2, -(-self.min_permutations // n_players))
        most = max(least, self.max_permutations // n_players)
        cycles: list[np.ndarray] = []
        while len(cycles) < most:
            orders = _draw_cycle(n_players, rng)
            cycles.append(_added(gains, orders, total, self.within_round_threshold))
            if len(cycles) >= least and _has_converged(np.concatenate(cycles), self.tol):
                break
        means = np.mean(cycles, axis=1)
        errors = means.std(axis=0, ddof=1) / np.sqrt(len(means))
        return Values(means.mean(axis=0), errors)


def _draw_cycle(n_players: int, rng: np.random.Generator) -> np.ndarray:
    """Return a permutation a row: row i begins with player i, the others are at random."""
    others = [np.delete(np.arange(n_players), i) for i in range(n_players)]
    return np.array([[i, *rng.permutation(rest)] for i, rest in enumerate(others)])


def _added(gains: Gains, orders: np.ndarray, total: float, threshold: float) -> np.ndarray:
    """Return what each player adds in each permutation, of shape (n_permutations, n_players)."""
    added = np.zeros(orders.shape)
    subsets = np.zeros(orders.shape, dtype=bool)
    before = np.zeros(len(orders))
    for players in orders.T:
        # A permutation whose gain is near the total is not read on, and so stays near it.
        rows = np.flatnonzero(~(np.abs(total - before) < threshold))
        if not len(rows):
            break
        subsets[rows, players[rows]] = True
        after = gains(subsets[rows])
        added[rows, players[rows]] = after - before[rows]
        before[rows] = after
    return added


def _has_converged(added: np.ndarray, tol: float) -> bool:
    """Tell whether the means over permutations have changed little in the last ten.

    They have, too, where they are not finite: no more permutations would change that.
    """
    means = added.cumsum(axis=0) / np.arange(1, len(added) + 1)[:, None]
    final = means[-1]
    changes = np.abs(means[-_N_LAST:] - final) / (np.abs(final) + 1e-12)  # as in the authors' code
    return not changes.mean(axis=1).max() > tol

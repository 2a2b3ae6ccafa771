"""Random selection, the baseline pi_rand.

Cho, Wang, Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
Selection Strategies, 2020 (arXiv:2010.01243), section 2 and appendix E.
"""

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, count_clients, default_count
from skfed.selection._sampling import inclusion_probabilities
from skfed.utils._sklearn import StrOptions


class RandomSelector(BaseSelector):
    """Draw clients at random, without a poll.

    The defaults are pi_rand of the power-of-choice paper: m draws with replacement, client k with
    probability p_k, aggregated by a plain mean. Draws are by D_k over all available clients;
    priority is not used.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m, the number of draws; a float in (0, 1] is a fraction of all clients, rounded down, at
        least 1. Capped by the number of available clients. None is a tenth of the clients, but at
        least ten: 10 draws of 40 clients, 400 of 4,000. Up to ten clients are not drawn: each
        that is available trains once, and ``weighting="auto"`` is "size".
    probability : {"size", "uniform"}, default="size"
        Draw in proportion to the number of samples, or with equal probabilities.
    replace : bool, default=True
        Draw with replacement; a client drawn twice trains twice, independently.
    weighting : {"auto", "mean", "size", "unbiased"}, default="auto"
        "mean" is 1/m each, "size" is D_k / sum of D over the cohort, "unbiased" is
        q_k = p_k K / m for uniform draws, aggregated as w + sum of q_k (w_k - w) (appendix E).
        "auto" is "mean" when drawn by size and "size" when drawn uniformly.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    See Also
    --------
    skfed.PowerOfChoice : Prefers clients of high loss.

    Examples
    --------
    >>> from skfed import RandomSelector
    >>> RandomSelector(clients_per_round=10)
    RandomSelector(clients_per_round=10)
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "probability": [StrOptions({"size", "uniform"})],
        "replace": ["boolean"],
        "weighting": [StrOptions({"auto", "mean", "size", "unbiased"})],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False

    def __init__(
        self,
        clients_per_round=None,
        probability="size",
        replace=True,
        weighting="auto",
        ignore_priority=False,
    ):
        self.clients_per_round = clients_per_round
        self.probability = probability
        self.replace = replace
        self.weighting = weighting
        self.ignore_priority = ignore_priority

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return m p_k or m / K, or inclusion by size without replacement; no client is polled."""
        n_clients = len(round.sizes)
        m = min(self._count(n_clients), n_clients)
        if self._takes_all(n_clients):
            return {"polled": np.zeros(n_clients), "chosen": np.ones(n_clients)}
        chances = np.full(n_clients, 1 / n_clients)
        if self.probability == "size":
            chances = round.sizes / round.sizes.sum()
            if not self.replace:
                chances = inclusion_probabilities(chances, m) / m
        return {"polled": np.zeros(n_clients), "chosen": m * chances}

    def _select(self, round: Round) -> Cohort:
        by_size = self.probability == "size"
        if by_size and self.weighting == "unbiased":
            raise ValueError(
                'weighting="unbiased" is for probability="uniform"; draws by size are unbiased '
                'with weighting="mean".'
            )
        available = np.flatnonzero(round.available)
        m = min(self._count(len(round.sizes)), len(available))
        takes_all = self._takes_all(len(round.sizes))
        clients = available if takes_all else round.draw(m, by_size, self.replace)
        weighting = self.weighting
        if weighting == "auto":
            weighting = "mean" if by_size and not takes_all else "size"
        if weighting == "mean":
            return Cohort.mean(clients)
        if weighting == "size":
            return Cohort.by_size(clients, round.sizes)
        shares = round.sizes[clients] / round.sizes[available].sum()
        return Cohort(clients, shares * len(available) / m, unbiased=True)

    def _count(self, n_clients: int) -> int:
        if self.clients_per_round is None:
            return default_count(n_clients)
        return count_clients(self.clients_per_round, n_clients)

    def _takes_all(self, n_clients: int) -> bool:
        """Return whether every available client trains once, without draws."""
        return self.clients_per_round is None and default_count(n_clients) == n_clients

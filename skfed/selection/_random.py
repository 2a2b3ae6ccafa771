"""Random selection, the baseline pi_rand.

Cho, Wang, Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
Selection Strategies, 2020 (arXiv:2010.01243), section 2 and appendix E.
"""

import numpy as np

from skfed.selection._base import (
    CLIENT_COUNT,
    BaseSelector,
    Cohort,
    Round,
    count_clients,
    inclusion_probabilities,
)
from skfed.utils._sklearn import StrOptions


class RandomSelector(BaseSelector):
    """Draw clients at random, without asking anybody anything.

    The defaults are pi_rand of the power-of-choice paper: m draws with replacement, client k with
    probability p_k, aggregated by a plain mean. Draws go by D_k over all available clients,
    whoever has priority.

    Parameters
    ----------
    clients_per_round : int or float, default=0.1
        m, the number of draws; a float in (0, 1] is a fraction of all clients, rounded down, at
        least 1. Capped by the number of available clients.
    probability : {"size", "uniform"}, default="size"
        Draw by the number of samples, or every client alike.
    replace : bool, default=True
        Draw with replacement; a client drawn twice trains twice, independently.
    weighting : {"auto", "mean", "size", "unbiased"}, default="auto"
        "mean" is 1/m each, "size" is D_k / sum of D over the cohort, "unbiased" is
        q_k = p_k K / m for uniform draws, aggregated as w + sum of q_k (w_k - w) (appendix E).
        "auto" is "mean" when drawn by size and "size" when drawn uniformly.
    ignore_priority : bool, default=False
        True declares that priority is meant to play no part in who trains: no warning is given.

    Examples
    --------
    >>> from skfed import RandomSelector
    >>> RandomSelector(clients_per_round=10)
    RandomSelector(clients_per_round=10)
    """

    _parameter_constraints = {
        "clients_per_round": CLIENT_COUNT,
        "probability": [StrOptions({"size", "uniform"})],
        "replace": ["boolean"],
        "weighting": [StrOptions({"auto", "mean", "size", "unbiased"})],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False

    def __init__(
        self,
        clients_per_round=0.1,
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
        """Return m p_k or m / K, or inclusion by size without replacement; nobody is polled."""
        n_clients = len(round.sizes)
        m = min(count_clients(self.clients_per_round, n_clients), n_clients)
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
        n_available = int(np.count_nonzero(round.available))
        m = min(count_clients(self.clients_per_round, len(round.sizes)), n_available)
        clients = round.draw(m, by_size, self.replace)
        weighting = self.weighting
        if weighting == "auto":
            weighting = "mean" if by_size else "size"
        if weighting == "mean":
            return Cohort.mean(clients)
        if weighting == "size":
            return Cohort.by_size(clients, round.sizes)
        shares = round.sizes[clients] / round.sizes[round.available].sum()
        return Cohort(clients, shares * n_available / m, unbiased=True)

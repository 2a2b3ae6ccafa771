"""Power-of-choice selection.

Cho, Wang, Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
Selection Strategies, 2020 (arXiv:2010.01243), section 4.
"""

import numpy as np

from skfed.selection._base import CLIENT_COUNT, BaseSelector, Cohort, Round, count_clients


class PowerOfChoice(BaseSelector):
    """Poll d candidates and train the m of highest loss (pi_pow-d, section 4 of the paper).

    The d candidates are drawn without replacement by p_k and polled for the loss of the current
    global model on all their data; the m with the highest loss train, ties broken at random, and
    their updates are averaged with equal weights. Priority plays no part: candidates are drawn by
    D_k over all available clients.

    Parameters
    ----------
    d : int or float, default=0.2
        Number of candidates, m <= d <= K; a float in (0, 1] is a fraction of all clients, rounded
        down, at least 1. Larger d converges faster, to a higher error floor.
    clients_per_round : int or float, default=0.1
        m, the number of clients that train; an int, or a fraction like ``d``.

    Raises
    ------
    ValueError
        If d < m or d > K. Both are capped by the number of clients available in a round.

    Examples
    --------
    >>> from skfed import PowerOfChoice
    >>> PowerOfChoice(d=6, clients_per_round=3)
    PowerOfChoice(clients_per_round=3, d=6)
    """

    _parameter_constraints = {"d": CLIENT_COUNT, "clients_per_round": CLIENT_COUNT}

    def __init__(self, d=0.2, clients_per_round=0.1):
        self.d = d
        self.clients_per_round = clients_per_round

    def _select(self, round: Round) -> Cohort:
        d, m = self._counts(len(round.sizes))
        available = np.flatnonzero(round.available)
        d = min(d, len(available))
        sizes = round.sizes[available]
        candidates = round.rng.choice(available, size=d, replace=False, p=sizes / sizes.sum())
        # Shuffled once more before the stable sort: ties are broken at random, whatever the order
        # in which the draw lists the candidates.
        candidates = round.rng.permutation(candidates)
        losses = round.poll(candidates)
        losses = np.where(np.isnan(losses), -np.inf, losses)  # no answer is no reason to prefer
        highest = np.argsort(-losses, kind="stable")[:m]
        return Cohort.mean(candidates[highest])

    def _counts(self, n_clients: int) -> tuple[int, int]:
        """Return d and m as numbers of clients."""
        d = count_clients(self.d, n_clients)
        m = count_clients(self.clients_per_round, n_clients)
        if d > n_clients:
            raise ValueError(
                f"d={self.d} asks for more candidates than the {n_clients} clients there are: "
                f"pass d <= {n_clients}, or a fraction."
            )
        if d < m:
            raise ValueError(
                f"d={self.d} gives {d} candidates, fewer than the {m} clients to train "
                f"(clients_per_round={self.clients_per_round}): raise d or lower "
                "clients_per_round."
            )
        return d, m

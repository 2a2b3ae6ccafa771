"""FedALIGN: free clients join when the model fits them as it fits the priority clients.

Ravi, Shomorony: Prioritized Federated Learning: Leveraging Non-Priority Clients for Targeted Model
Improvement, TMLR 2024, section 3.1 and Algorithm 1.
"""

from numbers import Integral, Real

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.utils._sklearn import Interval, RealNotInt, StrOptions

_METRIC = {"loss": "loss", "accuracy": "error"}


class FedAlignSelector(BaseSelector):
    """Take the priority clients, and each free client whose loss is within eps of theirs.

    After the warm-up, the priority clients are polled for F(w_t), the mean of their losses
    weighted by size. Each available free client then gets the model and the bound F(w_t) + eps;
    above the bound it stays silent, and of those that answer with F_k(w_t) the server takes who
    passes |F_k(w_t) - F(w_t)| < eps (the indicator of Theorem 1, which is strict; Algorithm 1
    prints <=). Updates are weighted by D_k / sum of D over the cohort. The outcome is that of
    Algorithm 1; the cost is lower, since a client dropped by the lower test sends a scalar
    instead of a model.

    Parameters
    ----------
    eps : float, default=0.2
        eps_t, how far the loss of a free client may be from F, in units of the loss (of the
        error, a share in [0, 1], with ``match="accuracy"``). 0 is FedAvg on the priority clients;
        inf, without warm-up, is FedAvg on all.
    warmup : int or float, default=0.1
        Rounds at the start in which only priority clients train and nobody is polled; a float in
        [0, 1] is a share of the rounds, rounded down.
    match : {"loss", "accuracy"}, default="loss"
        Compare losses, as the algorithm and the theory have it, or accuracies over all local
        data, as the paper's practice section does. The authors' code compares the accuracy on one
        minibatch instead.

    Examples
    --------
    >>> from skfed import FedAlignSelector
    >>> FedAlignSelector(eps=0.4, warmup=20)
    FedAlignSelector(eps=0.4, warmup=20)
    """

    _parameter_constraints = {
        "eps": [Interval(Real, 0, None, closed="both")],
        "warmup": [
            Interval(Integral, 0, None, closed="left"),
            Interval(RealNotInt, 0, 1, closed="both"),
        ],
        "match": [StrOptions({"loss", "accuracy"})],
    }

    def __init__(self, eps=0.2, warmup=0.1, match="loss"):
        self.eps = eps
        self.warmup = warmup
        self.match = match

    def _select(self, round: Round) -> Cohort:
        priority = np.flatnonzero(round.available & round.priority)
        free = np.flatnonzero(round.available & ~round.priority)
        if len(priority) and len(free) and round.index >= self._warmup_rounds(round.n_rounds):
            free = free[self._matches(round, priority, free)]
            return Cohort.by_size(np.concatenate([priority, free]), round.sizes)
        # Without a priority client in reach this cohort is empty and the model stays as it is.
        return Cohort.by_size(priority, round.sizes)

    def _matches(self, round: Round, priority: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Run the two exchanges of the poll; return who of the free clients is aligned."""
        metric = _METRIC[self.match]
        local = round.poll(priority, metric=metric)
        answered = ~np.isnan(local)
        if not answered.any():
            return np.zeros(len(free), bool)
        objective = np.average(local[answered], weights=round.sizes[priority[answered]])
        answers = round.poll(free, metric=metric, at_most=objective + self.eps)
        return np.abs(answers - objective) < self.eps

    def _warmup_rounds(self, n_rounds: int) -> int:
        if isinstance(self.warmup, Integral):
            return int(self.warmup)
        return int(self.warmup * n_rounds + 1e-9)

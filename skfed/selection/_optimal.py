"""Optimal client sampling, by the norms of updates that clients report before they upload.

Chen, Horvath, Richtarik: Optimal Client Sampling for Federated Learning, TMLR 2022
(arXiv:2010.13723).
"""

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Reports, Round
from skfed.selection._counts import CLIENT_COUNT, count_or_default
from skfed.selection._sampling import draw_independently, least_variance

_N_PASSES = 4


class OptimalSelector(BaseSelector):
    """Have every client train, and those of large updates upload, so that the mean is unbiased.

    All clients in reach train, and report u_k, the norm of their update times p_k, their share of
    the samples of those in reach. Client k then uploads with probability pi_k, independently of
    the others, so that m upload on average; maybe more, maybe nobody, which keeps the model. The
    model becomes w + sum of p_k / pi_k (w_k - w), whose mean is the update of all. Priority plays
    no part.

    The probabilities are those that minimise the variance, the sum of u_k^2 (1 - pi_k) / pi_k, for
    at most m uploads on average: 1 for the c clients of the largest norms, and
    (m - c) u_k / (sum of u over the others) for the others, with the smallest c for which none
    is above 1.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m, the expected number of uploads; a float in (0, 1] is a fraction of all clients, rounded
        down, at least 1. Where so few or fewer updates are not zero, all of them are uploaded. None
        is a tenth of the clients, but at least ten, and at most half of them: 2 of 4 clients, 10
        of 40, 400 of 4,000. The authors' code has no default; its runs have 3 of 32 clients.
    approximate : bool, default=False
        If True, the probabilities are those of the approximate form (AOCS): min(1, m u_k / sum of
        u), then at most 4 passes that scale those below 1 by one factor, so that the sum is m, and
        cap them at 1. Their sum is at most m, and falls short of it where norms differ by orders
        of magnitude, even with m clients or fewer. Clients could compute them of sums alone.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    See Also
    --------
    skfed.RandomSelector : Unbiased with ``weighting="unbiased"``, and without a second phase.

    Notes
    -----
    Sources. Of the paper the abstract was read; the exact probabilities are the solution of its
    problem as it is stated above. The approximate form is that of the authors' code
    (SamuelHorvath/FL-optimal-client-sampling at baa73e8, ``simple_fedavg_tff.py``), which has no
    exact one; 4 passes are its default. Three things differ from it: where all probabilities are 0
    or 1 it divides by 0, here the passes end; it weighs by numbers of samples, which is the same up
    to a factor; and it asks a uniform draw of clients, here all that ``availability`` lets be
    reached are asked.

    Cost. Each round everybody in reach gets the model, trains, and sends its norm, 8 bytes, beside
    the training loss; m of them upload on average. That saves uploads, not work. The server
    computes the passes of the approximate form from the norms, so their messages are not charged.
    A selection sorts the norms, K log K.

    Clients that fail, are late or report a norm that is not finite are never admitted: shares are
    then of the samples of those who reported, so that the mean is the update of a round in which
    all of them upload. One that reports and then does not upload is missing from the sum. A zero
    update is not uploaded, and ties need no order, since equal norms have equal probabilities.

    Under ``update_privacy`` a fit is refused, since norms are not covered by it.

    Examples
    --------
    >>> from skfed import OptimalSelector
    >>> OptimalSelector(clients_per_round=3)
    OptimalSelector(clients_per_round=3)
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "approximate": ["boolean"],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False

    def __init__(self, clients_per_round=None, approximate=False, ignore_priority=False):
        self.clients_per_round = clients_per_round
        self.approximate = approximate
        self.ignore_priority = ignore_priority

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return 1: everybody trains; no client is polled."""
        n_clients = len(round.sizes)
        return {"polled": np.zeros(n_clients), "chosen": np.ones(n_clients)}

    def admit(self, round: Round, reports: Reports) -> Cohort:
        """Draw who uploads.

        Parameters
        ----------
        round : Round
            The view of the round.
        reports : Reports
            The norms of the weighted updates of those who trained.

        Returns
        -------
        Cohort
            An unbiased cohort with weights p_k / pi_k; maybe empty.
        """
        reported = np.flatnonzero(np.isfinite(reports.norms))
        norms = reports.norms[reported]
        everybody = Cohort.by_size(reports.clients[reported], round.sizes)
        m = count_or_default(self.clients_per_round, len(round.sizes))
        probabilities = approximate_probabilities if self.approximate else least_variance
        chances = probabilities(norms, m)
        return draw_independently(round.rng, everybody, chances)

    def _select(self, round: Round) -> Cohort:
        return Cohort.by_size(np.flatnonzero(round.available), round.sizes)


def approximate_probabilities(norms: np.ndarray, m: int) -> np.ndarray:
    """Return the probabilities of the approximate form (AOCS), which sum to m at most.

    Parameters
    ----------
    norms : ndarray of shape (n_members,)
        Finite and not negative.
    m : int
        The expected number of uploads.

    Returns
    -------
    ndarray of shape (n_members,)
        Probabilities in the order of ``norms``.
    """
    shares = norms / max(len(norms), 1)
    if not shares.any():
        return np.zeros(len(norms))
    chances = np.minimum(m * (shares / shares.sum()), 1)
    for _ in range(_N_PASSES):
        below = chances < 1
        total, budget = chances[below].sum(), m - np.count_nonzero(~below)
        if total == 0 or total >= budget:
            break
        chances[below] = np.minimum(budget * (chances[below] / total), 1)
    return chances

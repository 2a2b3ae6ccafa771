"""K-Vib: independent draws by the norms of earlier updates, without bias.

Zeng, Xu, Pan, Luo, Wang, Tang: Enhanced Federated Optimization: Adaptive Unbiased Client Sampling
with Reduced Variance, TMLR 2025 (arXiv:2310.02698).
"""

from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, count_or_default
from skfed.selection._sampling import draw_independently, least_variance
from skfed.utils._sklearn import Interval


class KVibSelector(BaseSelector):
    r"""Draw clients independently, those of large updates so far the likelier, without bias.

    Client k in reach trains with the probability pi_k, independently of the others, so that m
    train on average; maybe more, maybe nobody, which keeps the model. The model becomes
    w + sum of p_k / pi_k (w_k - w) over the cohort, whose mean is the update of all in reach; p_k
    is a client's share of the samples of those in reach. The probabilities are

    .. math::

       \pi_k &= (1 - \theta) q_k + \theta \frac{m}{n}, \\
       q &= \arg\min \sum_k \frac{\omega_k + \gamma}{q_k}
       \quad \text{over} \quad \sum_k q_k = m, \; 0 < q_k \le 1

    among the n clients in reach: q_k is 1 for those of the largest omega, and in proportion to the
    root of omega_k + gamma for the others. When the update of a client of the cohort has come back,
    omega_k, at first 0, grows by (p_k ||w_k - w||)^2 / pi_k, with p_k and pi_k of that round. Of N
    clients and T rounds, theta = (N / (T m))^(1/3), at most 1, and gamma = G^2 N / (theta m). With
    m clients in reach or fewer, all of them train. Nobody is polled. Priority plays no part.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m, the expected number of clients; a float in (0, 1] is a fraction of all clients, rounded
        down, at least 1. None is a tenth of the clients, but at least ten, and at most half of
        them: 2 of 4 clients, 10 of 40, 400 of 4,000. The authors' run on synthetic data draws a
        tenth, 10 of 100.
    regularization : float or None, default=None
        G^2, positive, in the units of (p_k ||w_k - w||)^2. G stands for an upper bound of p_k ||w_k
        - w||, and None, which is ours, for its running estimate: G^2 is the largest (p_k ||w_k -
        w||)^2 that has come back so far, and draws do not depend on the unit of the updates. The
        larger G^2 is, the longer draws stay nearly uniform; one huge update, as of a model that
        diverged, has that effect too, and so have norms that fall in the course of a fit. The
        authors' README gives 0.1 in its commands, and no reason: with equal sizes it bounds norms
        up to 12.6 for N = 40, and up to 1,265 for N = 4,000. Whatever it is, there is no bias.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    See Also
    --------
    skfed.OptimalSelector : By the norms of this round's updates, for which everybody trains.
    skfed.RandomSelector : Uniform, and unbiased, with ``weighting="unbiased"``.

    Notes
    -----
    Sources. Of the paper only the abstract and the first lines could be read; its equations are not
    cited. The rule is that of its authors' code (dunzeng/K-Vib at e2ed8da, ``sampler.py``) and of
    the problem that it solves, of which the solution above was derived. The code differs from it:
    it leaves out the square root, so that q is in proportion to omega_k + gamma; the first client
    that is to have 1 may have more, by which its update is then divided, which is biased; and theta
    may exceed 1, where T m < N; that it is at most 1 is ours, by which draws are then uniform.

    - A client that was never drawn, or whose updates were zero, has omega_k = 0. Clients of equal
      omega have equal probabilities, whatever their sizes, and ties need no order.
    - In rounds without a client, and while it cannot be reached, omega_k stays. The sums over
      clients, n, p_k and m / n are of those in reach; N is that of all.
    - A client that fails, is late or does not answer adds nothing to omega, nor does an update
      that is not finite. As with the other unbiased weights nobody is put in its place: its update
      is missing from the sum. If client k comes back with probability a_k, the mean of the model's
      change is the sum of a_k p_k (w_k - w): shorter, and biased against those that fail often,
      who are drawn less often too, as if their updates were a_k^(1/2) times as large.
    - Who came back is told by its update: one that is the same as before to the last bit is taken
      for none. A client that comes back from the same model by full batches is overlooked so.

    Norms are those of projections of the updates to 64 numbers, which the server keeps. The squares
    are those of the updates in expectation, with a standard error of up to a sixth; the projection
    is the same in all rounds of a fit.

    Cost. It asks nothing of clients but their updates, no byte more. It is not for fits with
    ``update_privacy``, which does not cover single updates. The memory has 4 N + 1 numbers. A
    selection takes time in proportion to N log N: 2 ms for 10,000 clients.

    Examples
    --------
    >>> from skfed import KVibSelector
    >>> KVibSelector(clients_per_round=10)
    KVibSelector(clients_per_round=10)
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "regularization": [Interval(Real, 0, None, closed="neither"), None],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False
    needs = ("updates",)

    def __init__(self, clients_per_round=None, regularization=None, ignore_priority=False):
        self.clients_per_round = clients_per_round
        self.regularization = regularization
        self.ignore_priority = ignore_priority

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return the probabilities of the round; no client is polled."""
        polled, chosen = np.zeros((2, len(round.sizes)))
        clients = np.flatnonzero(round.available)
        chosen[clients] = self._chances(round, clients, _with_last(round))
        return {"polled": polled, "chosen": chosen}

    def _select(self, round: Round) -> Cohort:
        clients = np.flatnonzero(round.available)
        memory = _with_last(round)
        chances = self._chances(round, clients, memory)
        everybody = Cohort.by_size(clients, round.sizes)
        memory["shares"][clients], memory["chances"][clients] = everybody.weights, chances
        return replace(draw_independently(round.rng, everybody, chances), memory=memory)

    def _chances(self, round: Round, clients: np.ndarray, memory: dict[str, Any]) -> np.ndarray:
        """Return the probability of each client in reach, given what is remembered."""
        n_clients = len(round.sizes)
        m = count_or_default(self.clients_per_round, n_clients)
        theta = min((n_clients / (round.n_rounds * m)) ** (1 / 3), 1.0)
        bound = memory["largest"] if self.regularization is None else float(self.regularization)
        # While the largest is 0 so are all costs, and draws are uniform whatever gamma.
        gamma = min((bound or 1.0) * n_clients / (theta * m), np.finfo(float).max)
        leader = self._leader(memory["costs"][clients], gamma, m)
        return leader + theta * (m / max(len(clients), m) - leader)

    def _leader(self, costs: np.ndarray, gamma: float, m: int) -> np.ndarray:
        """Return q, which would have been best so far."""
        roots = np.hypot(np.sqrt(costs), np.sqrt(gamma))  # their sum may be too large for a float
        return least_variance(roots, m)


def _with_last(round: Round) -> dict[str, Any]:
    """Return the memory with what the last cohort has added to omega.

    It has omega ("costs"), the largest square added before it was divided by a probability, the
    squared norms of last updates, and p_k and pi_k of this round: nothing is chosen yet.
    """
    n_clients = len(round.sizes)
    nobody = {"shares": np.zeros(n_clients), "chances": np.ones(n_clients)}
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite adds nothing
        squares = np.square(round.past.updates).sum(axis=1)
        before = nobody | {"costs": np.zeros(n_clients), "squares": squares, "largest": 0.0}
        before |= round.memory
        # Only who came back has another update than when the cohort was drawn.
        came = squares != before["squares"]
        weighted = np.where(came, np.square(before["shares"]) * squares, 0.0)
        costs = before["costs"] + weighted / before["chances"]
    counts = np.isfinite(costs)
    return nobody | {
        "costs": np.where(counts, costs, before["costs"]),
        "largest": max(before["largest"], float(weighted[counts].max(initial=0.0))),
        "squares": squares,
    }

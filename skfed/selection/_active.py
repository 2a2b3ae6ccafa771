"""Active federated learning, the baseline ``afl`` of the power-of-choice paper.

Goetz, Malik, Bui, Moon, Liu, Kumar: Active Federated Learning, 2019 (arXiv:1909.12641).
"""

from numbers import Real

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size
from skfed.utils._sklearn import Interval


class ActiveFLSelector(BaseSelector):
    """Draw clients by a softmax of the loss that each reported last, and some uniformly.

    The value of a client is the mean minibatch loss that it sent with its last update, -inf before
    the first. The ``alpha1`` share of lowest values is set to -inf too; (1 - alpha3) m clients are
    drawn without replacement with probabilities proportional to exp(alpha2 * value), and the rest
    uniformly from the others. No client is polled; updates are averaged with equal weights.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m; a float in (0, 1] is a fraction of all clients, rounded down, at least 1. Capped by the
        number of available clients. None is a tenth of the clients, but at least ten, and at most
        half of them: 2 of 4 clients, 10 of 40, 400 of 4,000.
    alpha1 : float, default=0.75
        Share of clients, rounded down, that the draw by value leaves out.
    alpha2 : float, default=0.01
        Inverse temperature, per unit of the loss.
    alpha3 : float, default=0.1
        Share of m that is drawn uniformly; (1 - alpha3) m is rounded down.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "alpha1": [Interval(Real, 0, 1, closed="both")],
        "alpha2": [Interval(Real, 0, None, closed="left")],
        "alpha3": [Interval(Real, 0, 1, closed="both")],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False

    def __init__(
        self, clients_per_round=None, alpha1=0.75, alpha2=0.01, alpha3=0.1, ignore_priority=False
    ):
        self.clients_per_round = clients_per_round
        self.alpha1 = alpha1
        self.alpha2 = alpha2
        self.alpha3 = alpha3
        self.ignore_priority = ignore_priority

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return m / K for clients that reported equal losses; no client is polled."""
        n_clients = len(round.sizes)
        m = cohort_size(self.clients_per_round, round)
        return {"polled": np.zeros(n_clients), "chosen": np.full(n_clients, m / n_clients)}

    def _select(self, round: Round) -> Cohort:
        available = np.flatnonzero(round.available)
        m = cohort_size(self.clients_per_round, round)
        chances = self._chances(round.rng, round.reported[available])
        n_by_value = min(int((1 - self.alpha3) * m + 1e-9), int(np.count_nonzero(chances)))
        chosen = round.rng.choice(len(available), n_by_value, replace=False, p=chances)
        others = np.setdiff1d(np.arange(len(available)), chosen)
        chosen = np.concatenate([chosen, round.rng.choice(others, m - n_by_value, replace=False)])
        return Cohort.mean(available[chosen])

    def _chances(self, rng: np.random.Generator, reported: np.ndarray) -> np.ndarray:
        """Return the probabilities of the draw by value; all 1/n if no client has a value."""
        values = np.where(np.isfinite(reported), reported, -np.inf)
        shuffled = rng.permutation(len(values))  # ties at the cut are broken at random
        lowest = shuffled[np.argsort(values[shuffled], kind="stable")]
        values[lowest[: int(self.alpha1 * len(values) + 1e-9)]] = -np.inf
        if np.isneginf(values).all():
            return np.full(len(values), 1 / len(values))
        valued = np.isfinite(values)
        odds = np.zeros(len(values))
        odds[valued] = np.exp(self.alpha2 * (values[valued] - values.max()))
        return odds / odds.sum()

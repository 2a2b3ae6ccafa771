"""Draws in proportion to the loss, by the value of active federated learning.

Goetz, Malik, Bui, Moon, Liu, Kumar: Active Federated Learning, 2019 (arXiv:1909.12641).
"""

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size
from skfed.selection._sampling import (
    draw_by_weight,
    inclusion_probabilities,
    lowest_probabilities,
)


class LossProportionalSelector(BaseSelector):
    """Draw clients in proportion to the loss that each reported last, times the root of its size.

    The value of client k is v_k = sqrt(D_k) times the mean minibatch loss that it sent with its
    last update, the value of active federated learning as it is quoted by others. The cohort is m
    draws without replacement: each draw takes one of the clients that are left, in proportion to
    their values. Clients that were never chosen come before all others, at random. Updates are
    averaged with equal weights, since sizes count in the draw.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m; a float in (0, 1] is a fraction of all clients, rounded down, at least 1. Capped by the
        number of available clients. None is a tenth of the clients, but at least ten, and at most
        half of them, as in the other selectors: 2 of 4 clients, 10 of 40, 400 of 4,000.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    See Also
    --------
    skfed.ActiveFLSelector : A softmax of the loss in place of a proportion.
    skfed.PowerOfChoice : The highest losses of a few candidates.

    Notes
    -----
    Goetz et al. draw by a softmax of the value; the proportion is plainer, has no temperature, and
    does not change with the unit of the loss. Published copies of their rule differ in the value:
    FedCor's ``federated_main.py`` has the loss times the root of the size, as here, Plato's
    ``afl_client.py`` has the loss divided by it, and the copies of euphoria0-0 the loss alone
    unless an option says otherwise.

    A loss is kept until the client trains again, so that it is as old as its last training. A
    client has the smallest value of all that are available with a loss if its training failed
    (NaN), or if it was chosen but has never answered; if no client has a loss, all values are
    equal. Losses below 0 count as 0, and clients of value 0 are drawn, at random, when no others
    are left. If fewer than m clients are available, all of them train.

    Clients are asked for nothing but the loss that they send with their updates. A selection takes
    time in proportion to K log K: 2 ms for 10,000 clients.

    Examples
    --------
    >>> from skfed import LossProportionalSelector
    >>> LossProportionalSelector(clients_per_round=10)
    LossProportionalSelector(clients_per_round=10)
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False

    def __init__(self, clients_per_round=None, ignore_priority=False):
        self.clients_per_round = clients_per_round
        self.ignore_priority = ignore_priority

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return inclusion by sqrt(D_k) without replacement; of new clients, an equal chance."""
        n_clients = len(round.sizes)
        m = cohort_size(self.clients_per_round, round)
        new = _is_new(round)
        chosen = lowest_probabilities(~new, m) * new
        if (n_left := m - int(new.sum())) > 0:
            roots = np.sqrt(round.sizes[~new])
            chosen[~new] = inclusion_probabilities(roots / roots.sum(), n_left)
        return {"polled": np.zeros(n_clients), "chosen": chosen}

    def _select(self, round: Round) -> Cohort:
        available = np.flatnonzero(round.available)
        m = cohort_size(self.clients_per_round, round)
        values = _values(round.reported[available], round.sizes[available])
        values[_is_new(round)[available]] = np.inf
        return Cohort.mean(available[draw_by_weight(round.rng, values, m)])


def _is_new(round: Round) -> np.ndarray:
    """Return a mask of the clients that were never chosen."""
    return np.isposinf(round.reported) & (round.past.n_chosen == 0)


def _values(reported: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the values of clients, in units of the largest loss; the smallest of those without."""
    known = np.isfinite(reported)
    losses = np.where(known, np.maximum(reported, 0.0), 0.0)
    values = losses / (losses.max() or 1.0) * np.sqrt(sizes)
    return np.where(known, values, values[known].min() if known.any() else 1.0)

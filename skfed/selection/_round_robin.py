"""Round robin, a baseline that needs nothing but counts."""

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size
from skfed.selection._sampling import lowest, lowest_probabilities


class RoundRobinSelector(BaseSelector):
    """Take the clients that were chosen least often, ties at random.

    The m available clients of the lowest ``round.past.n_chosen`` train once each, and their updates
    are averaged by size, D_k / sum of D over the cohort. While everybody is available, each client
    trains once in every K / m rounds (if m divides K), in an order that is drawn anew each time.

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
    skfed.RandomSelector : The other baseline that uses no losses.

    Notes
    -----
    The rule has no paper. It is near pfl-research's ``MinimizeReuseUserSampler``
    (``pfl/data/sampling.py`` at c9d1f32), which goes through a fixed cycle of clients, without
    counts or chance: with everybody available both visit each client equally often, but there
    neighbours in the cycle train together each time, and a client that is away loses its turn.
    Here a client that was away has a low count, and is taken when it is back.

    A client has had its turn whenever it was in a cohort, also if it then failed, was late or did
    not answer. New clients have the lowest count and come first; losses, failed ones (NaN) too,
    play no part. If fewer than m clients are available, all of them train.

    Clients are asked for nothing. A selection takes time in proportion to K log K: 1 ms for 10,000
    clients.

    Examples
    --------
    >>> from skfed import RoundRobinSelector
    >>> RoundRobinSelector(clients_per_round=10)
    RoundRobinSelector(clients_per_round=10)
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
        """Return 1 for the lowest counts, and an equal chance for those tied at the m-th."""
        m = cohort_size(self.clients_per_round, round)
        chosen = lowest_probabilities(round.past.n_chosen, m)
        return {"polled": np.zeros(len(round.sizes)), "chosen": chosen}

    def _select(self, round: Round) -> Cohort:
        available = np.flatnonzero(round.available)
        m = cohort_size(self.clients_per_round, round)
        chosen = lowest(round.rng, round.past.n_chosen[available], m)
        return Cohort.by_size(available[chosen], round.sizes)

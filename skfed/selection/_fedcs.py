"""FedCS, which takes the clients that lengthen the round least.

Nishio, Yonetani: Client Selection for Federated Learning with Heterogeneous Resources in Mobile
Edge, ICC 2019 (arXiv:1804.08333).
"""

from numbers import Real

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size
from skfed.selection._sampling import lowest, lowest_probabilities
from skfed.utils._sklearn import Interval


class FedCSSelector(BaseSelector):
    """Take the quickest clients, as many as are done in ``round_seconds``.

    Clients are added one after the other, always the one that lengthens the round least, while the
    round stays below ``round_seconds``. Here clients train and upload at once, so that a round
    lasts as long as its slowest client, and this is their ascending order by seconds, ties at
    random. Updates are averaged by size, D_k / sum of D over the cohort.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m, the most clients that train; a float in (0, 1] is a fraction of all clients, rounded
        down, at least 1. Capped by the number of available clients. None is all of them if there
        are ``round_seconds``. Without, it is a tenth of the clients, but at least ten, and at most
        half of them, as in the other selectors: 2 of 4 clients, 10 of 40, 400 of 4,000.
    round_seconds : float or None, default=None
        Clients train that take less than so many seconds. If none does, the quickest trains alone:
        a round without clients would learn nothing. None is no limit: the m quickest train; how
        long a round may last depends on the devices, so that no number is a default for all.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    See Also
    --------
    skfed.devices : How fast clients are; ``public=True`` lets the server know it beforehand.

    Notes
    -----
    The seconds of a client are those that its device is expected to take, if devices are public
    (``round.expected_seconds``), else those of its last training, or for which it was waited if it
    was late (``round.seconds``). Clients of unknown seconds come first, at random, if they were
    never chosen; without public devices and without ``clients_per_round``, everybody is asked in
    the first round. Unknown clients that were chosen before, and have not answered, come last, so
    that those that never answer do not keep others out; they count as in time. Without devices no
    seconds are known at all: the rule is then a random choice after each client was chosen once,
    or, with ``round_seconds`` alone, takes everybody. Losses, failed ones (NaN) too, play no part.

    The text of the paper could not be read for this. In the rule as it is quoted by the code of
    SelecEval (``seleceval/selection/fedcs.py`` at 17a90c8), uploads follow one another while others
    train, the length of a round is a sum over clients, and a client that does not fit is skipped
    while later ones are tried. Here all is at once, and of each client one number of seconds is
    known: after one that does not fit, no other can. The paper is quoted with a random share of the
    clients that is asked for its resources; here, as in SelecEval, all are. SelecEval's copy leaves
    the time of distribution out of the comparison of clients.

    Known against the rule: slow clients never train, and what only they have is not learnt.

    Clients are asked for nothing. A selection takes time in proportion to K log K: 1 ms for 10,000
    clients. With public devices, which tell the seconds of all in each round, it is 6 ms; devices
    that are drawn take a tenth of a second more in the first round.

    Examples
    --------
    >>> from skfed import FedCSSelector
    >>> FedCSSelector(round_seconds=60.0)
    FedCSSelector(round_seconds=60.0)
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "round_seconds": [Interval(Real, 0, None, closed="neither"), None],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False

    def __init__(self, clients_per_round=None, round_seconds=None, ignore_priority=False):
        self.clients_per_round = clients_per_round
        self.round_seconds = round_seconds
        self.ignore_priority = ignore_priority

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return equal chances of timed clients after unknown ones, without ``round_seconds``."""
        n_clients = len(round.sizes)
        marginals = {"polled": np.zeros(n_clients)}
        if self.round_seconds is None:
            seconds, ranks = _seconds_and_ranks(round, np.arange(n_clients))
            ranks[~np.isnan(seconds)] = 0.0  # all are equal
            marginals["chosen"] = lowest_probabilities(ranks, self._count(round))
        return marginals

    def _select(self, round: Round) -> Cohort:
        available = np.flatnonzero(round.available)
        seconds, ranks = _seconds_and_ranks(round, available)
        chosen = lowest(round.rng, ranks, self._count(round))
        if self.round_seconds is not None:
            in_time = ~(seconds[chosen] >= self.round_seconds)
            in_time[0] = True  # the quickest
            chosen = chosen[in_time]
        return Cohort.by_size(available[chosen], round.sizes)

    def _count(self, round: Round) -> int:
        if self.clients_per_round is None and self.round_seconds is not None:
            return len(round.sizes)
        return cohort_size(self.clients_per_round, round)


def _seconds_and_ranks(round: Round, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of clients, NaN if they are not known, and by what they are ordered."""
    seconds = round.seconds[clients]
    if round.expect is not None:
        seconds = round.expected_seconds(clients)
    unknown = np.where(round.past.n_chosen[clients] == 0, -1.0, np.inf)
    return seconds, np.where(np.isnan(seconds), unknown, seconds)

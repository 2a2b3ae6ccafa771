"""TiFL, which trains clients of similar speed together.

Chai, Ali, Zawad, Truex, Anwar, Baracaldo, Zhou, Ludwig, Yan, Cheng: TiFL: A Tier-based Federated
Learning System, HPDC 2020 (arXiv:2001.09249).
"""

from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size, count_or_default
from skfed.selection._sampling import lowest
from skfed.utils._sklearn import Interval, StrOptions


class TiflSelector(BaseSelector):
    r"""Draw a tier of clients of similar speed, then clients of it.

    Clients are ordered by their seconds and cut into tiers of equal numbers. In each round one tier
    is drawn, and m of its clients uniformly without replacement, so that no fast client waits for
    a slow one. Updates are averaged by size, D_k / sum of D over the cohort.

    At first all tiers are equally likely. Every ``interval`` rounds all clients in reach are polled
    for their error. If the accuracy of the tier drawn last has not risen since the poll before, the
    tiers are ordered by ascending accuracy, and the i-th of n is drawn with probability

    .. math::

       p_i = \frac{n - i}{n (n + 1) / 2}, \qquad i = 0, \ldots, n - 1

    so that the least accurate is the likeliest. Each tier has a number of credits, and a draw takes
    one; a tier without is neither drawn nor ordered.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m; a float in (0, 1] is a fraction of all clients, rounded down, at least 1. Capped by the
        number of clients of the tier that are available. None is a tenth of the clients, but at
        least ten, and at most half of them, as in the other selectors: 2 of 4 clients, 10 of 40,
        400 of 4,000.
    n_tiers : int, default=5
        The number of tiers, as in FLGo; fewer if one would have less than m of the clients: 2 of 4
        clients, 4 of 40.
    interval : int or None, default=10
        Polls are in the rounds t that it divides, from round 0 on; 10 as in FLGo. None is a static
        policy: tiers stay equally likely, there are no credits, and nobody is polled.
    metric : {"error", "loss"}, default="error"
        What clients are polled for. "error" is 1 - accuracy. Regressors have none: with "loss" the
        tier of the highest loss is the likeliest.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    See Also
    --------
    skfed.FedCSSelector : The quickest clients alone.
    skfed.devices : How fast clients are; ``public=True`` lets the server know it beforehand.

    Notes
    -----
    The seconds of a client are those that its device is expected to take, if devices are public
    (``round.expected_seconds``), else those of its last training, or for which it was waited if it
    was late (``round.seconds``). Tiers are cut anew in each round, from all clients with known
    seconds, available or not, equal seconds in random order.

    - Clients of unknown seconds that were never chosen belong to no tier. They come first, at
      random, which times them; if there are less than m, the others are drawn from a tier. Without
      public devices these are the first K / m rounds. Rounds of such clients alone take no credit
      and have no poll.
    - Unknown clients that were chosen before, and have not answered, count as the slowest.
    - Without devices no seconds are known at all: all clients are one tier, and nobody is polled.
    - A tier with fewer than m clients in reach trains those, and is not filled up with slower ones.
      A tier with nobody in reach is not drawn.
    - Each tier begins with as many credits as there are rounds for each, rounded up, so that they
      last for a fit. So in a whole fit all are drawn about equally often, and the probabilities
      decide when. If all credits are used, as in a fit that goes on, credits and probabilities
      begin anew. While only tiers without credits are in reach, these are drawn, by
      their probabilities or, if these are 0, equally.
    - The accuracy of a tier is the mean over its clients by size. Those that do not answer are left
      out. If nobody answers, the tier keeps its place, and is last if its accuracy was never known;
      of the tier drawn last it is then not known that it has not risen.

    Of the paper the abstract was read, and no code of its authors was found. The rule is taken from
    others' accounts of it, and has yet to be compared with it: above all that probabilities change
    only if the accuracy has not risen, which neither copy has, and the denominator n (n + 1) / 2,
    which both have. The cases above are defined here. Two published copies differ (bacox/fltk,
    ``fltk/strategy/client_selection/tifl.py``; FLGo, ``flgo/algorithm/TiFL.py``): both change the
    probabilities whether the accuracy has risen or not. FLGo draws clients with replacement. When
    all credits are used, fltk raises an error, and FLGo does not end. In fltk the accuracy of a
    tier is that of the global test data after its last round.

    Known against the rule: who trains with whom depends on speed alone, so that where speed and
    data go together a cohort has data of one kind.

    A poll costs one model down and one number (8 bytes) up for each client in reach, and an
    evaluation of all its rows: K / interval models a round on average. Those chosen have the model
    then, and get no second one, so that the last seconds of such a round are shorter. The memory
    has 3 numbers a tier, and the expected seconds of K clients if devices are public. A selection
    takes time in proportion to K log K: 2 ms for 10,000 clients, without the poll. With public
    devices, which tell the seconds of all in each round, it is 6 ms; devices that are drawn take a
    tenth of a second more in the first round.

    Examples
    --------
    >>> from skfed import TiflSelector
    >>> TiflSelector(clients_per_round=10)
    TiflSelector(clients_per_round=10)
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "n_tiers": [Interval(Integral, 1, None, closed="left")],
        "interval": [Interval(Integral, 1, None, closed="left"), None],
        "metric": [StrOptions({"error", "loss"})],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False

    def __init__(
        self,
        clients_per_round=None,
        n_tiers=5,
        interval=10,
        metric="error",
        ignore_priority=False,
    ):
        self.clients_per_round = clients_per_round
        self.n_tiers = n_tiers
        self.interval = interval
        self.metric = metric
        self.ignore_priority = ignore_priority

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return equal chances, after new clients, and 1 poll of each client of a tier when due.

        If seconds of some clients alone are known, choices depend on the tiers and are left out.
        """
        n_clients = len(round.sizes)
        m = cohort_size(self.clients_per_round, round)
        seconds = _known_seconds(round)
        new = _is_new(round, seconds)
        n_new = int(np.count_nonzero(new))
        n_left = max(m - n_new, 0)
        is_due = n_left > 0 and self._count(seconds) > 1 and self._is_due(round)
        marginals = {"polled": np.where(new, 0.0, float(is_due))}
        if len(np.unique(np.isnan(seconds[~new]))) < 2:
            of_new, of_old = (m - n_left) / max(n_new, 1), n_left / max(n_clients - n_new, 1)
            marginals["chosen"] = np.where(new, of_new, of_old)
        return marginals

    def _select(self, round: Round) -> Cohort:
        m = cohort_size(self.clients_per_round, round)
        seconds = _known_seconds(round)
        memory = dict(round.memory)
        if round.expect is not None:
            memory["seconds"] = seconds
        new = _is_new(round, seconds)
        chosen = _sample(round.rng, round.available & new, m)
        if len(chosen) < m and (round.available & ~new).any():
            n_tiers = self._count(seconds)
            tiers = _tiers(round.rng, seconds, new, n_tiers)
            tier = self._draw_tier(round, tiers, n_tiers, memory)
            others = _sample(round.rng, round.available & (tiers == tier), m - len(chosen))
            chosen = np.concatenate([chosen, others])
        return replace(Cohort.by_size(chosen, round.sizes), memory=memory)

    def _count(self, seconds: np.ndarray) -> int:
        """Return the number of tiers: without any seconds there is one."""
        n_clients = len(seconds)
        if np.isnan(seconds).all():
            return 1
        m = count_or_default(self.clients_per_round, n_clients)
        return max(min(self.n_tiers, n_clients // m), 1)

    def _is_due(self, round: Round) -> bool:
        return self.interval is not None and round.index % self.interval == 0

    def _draw_tier(
        self, round: Round, tiers: np.ndarray, n_tiers: int, memory: dict[str, Any]
    ) -> int:
        """Draw a tier, and write what it takes to the memory."""
        in_reach = np.bincount(tiers[round.available & (tiers >= 0)], minlength=n_tiers) > 0
        if self.interval is None or n_tiers == 1:
            return int(round.rng.choice(np.flatnonzero(in_reach)))
        memory |= _begun(round, n_tiers)
        if self._is_due(round):
            found = self._values(round, tiers, n_tiers)
            last, before = memory["last_tier"], memory["values"]
            memory["values"] = np.where(np.isnan(found), before, found)
            if last >= 0 and found[last] >= before[last]:  # False if either is not known
                memory["probabilities"] = _by_rank(round.rng, memory["values"], memory["credits"])
        credits = memory["credits"]
        drawn_from = in_reach & (credits > 0)
        if not drawn_from.any():
            drawn_from = in_reach
        chances = np.where(drawn_from, memory["probabilities"], 0.0)
        chances = chances if chances.any() else drawn_from.astype(float)
        tier = int(round.rng.choice(n_tiers, p=chances / chances.sum()))
        memory["credits"] = np.maximum(credits - (np.arange(n_tiers) == tier), 0)
        memory["last_tier"] = tier
        return tier

    def _values(self, round: Round, tiers: np.ndarray, n_tiers: int) -> np.ndarray:
        """Poll; return the mean error or loss of each tier, NaN if nobody answers."""
        asked = np.flatnonzero(round.available & (tiers >= 0))
        answers = round.poll(asked, metric=self.metric)
        answered = np.isfinite(answers)
        asked, answers = asked[answered], answers[answered]
        tier_of, sizes = tiers[asked], round.sizes[asked]
        totals = np.bincount(tier_of, sizes, n_tiers)
        means = np.bincount(tier_of, sizes / totals[tier_of] * answers, n_tiers)
        return np.where(totals > 0, means, np.nan)


def _known_seconds(round: Round) -> np.ndarray:
    """Return the seconds of clients; NaN if they are not known."""
    if round.expect is None:
        return round.seconds
    unknown = np.full(len(round.sizes), np.nan)
    seconds = round.memory.get("seconds", unknown).copy()
    available = np.flatnonzero(round.available)  # of the others they are not told
    seconds[available] = round.expected_seconds(available)
    return seconds


def _is_new(round: Round, seconds: np.ndarray) -> np.ndarray:
    """Return a mask of the clients that belong to no tier."""
    return np.isnan(seconds) & (round.past.n_chosen == 0)


def _tiers(
    rng: np.random.Generator, seconds: np.ndarray, new: np.ndarray, n_tiers: int
) -> np.ndarray:
    """Return the tier of each client, from the quickest on; -1 of new ones."""
    tiers = np.full(len(seconds), -1)
    cut = np.flatnonzero(~new)
    ranks = np.where(np.isnan(seconds[cut]), np.inf, seconds[cut])
    tiers[cut[lowest(rng, ranks, len(cut))]] = np.arange(len(cut)) * n_tiers // len(cut)
    return tiers


def _begun(round: Round, n_tiers: int) -> dict[str, Any]:
    """Return what the memory does not have, or all credits again when none is left."""
    anew = {
        "credits": np.full(n_tiers, -(-round.n_rounds // n_tiers)),
        "probabilities": np.full(n_tiers, 1 / n_tiers),
    }
    if "credits" not in round.memory:
        return anew | {"values": np.full(n_tiers, np.nan), "last_tier": -1}
    return {} if round.memory["credits"].any() else anew


def _by_rank(rng: np.random.Generator, values: np.ndarray, credits: np.ndarray) -> np.ndarray:
    """Return the probabilities of tiers by descending value among those with credits."""
    ranked = np.flatnonzero(credits > 0)
    n = len(ranked)
    probabilities = np.zeros(len(values))
    order = ranked[lowest(rng, -values[ranked], n)]  # NaN last
    probabilities[order] = (n - np.arange(n)) / (n * (n + 1) / 2)
    return probabilities


def _sample(rng: np.random.Generator, mask: np.ndarray, n: int) -> np.ndarray:
    """Draw at most n clients of a mask, uniformly without replacement."""
    clients = np.flatnonzero(mask)
    return rng.choice(clients, size=min(n, len(clients)), replace=False)

"""Oort, which weighs what clients' losses promise against the time that they take.

Lai, Zhu, Madhyastha, Chowdhury: Oort: Efficient Federated Learning via Guided Participant
Selection, OSDI 2021 (arXiv:2010.06081), Algorithm 1.
"""

from dataclasses import replace
from math import floor
from numbers import Integral, Real
from typing import Any

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size, count_or_default
from skfed.selection._past import last_cohort
from skfed.selection._sampling import draw_by_weight
from skfed.utils._sklearn import Interval

_SHARE = [Interval(Real, 0, 1, closed="both")]


class OortSelector(BaseSelector):
    r"""Draw clients by the utility of their losses and their speed, and explore new ones.

    A client is explored once it was chosen. Of m places, a share epsilon is for clients that are
    not, and falls from round to round. The others are for explored clients, by the score

    .. math::

       \left(\bar U_k + \sqrt{\frac{0.1 \log t}{l_k}}\right)
       \left(\frac{T}{t_k}\right)^{\alpha \mathbf{1}[t_k > T]}

    where the utility U_k, D_k times the root mean square of the losses of its rows, is clipped at a
    quantile, and scaled to [0, 1] over the explored clients, t is the round and l_k the one in
    which client k was last chosen, both counted from 1, t_k are the seconds of its last training,
    and T is the preferred duration of a round. With n places for them, those at or above ``cutoff``
    times the n-th highest score are a pool, from which n are drawn without replacement, in
    proportion to their scores. Updates are averaged with equal weights. Nobody is polled.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m; a float in (0, 1] is a fraction of all clients, rounded down, at least 1. Capped by the
        number of available clients. None is a tenth of the clients, but at least ten, and at most
        half of them, as in the other selectors: 2 of 4 clients, 10 of 40, 400 of 4,000.
    exploration : float, default=0.9
        epsilon in the first round. This and the next two are the paper's, as it is quoted.
    decay : float, default=0.98
        What epsilon is multiplied by after each round.
    min_exploration : float, default=0.2
        What epsilon does not fall below.
    alpha : float, default=2.0
        How much it counts that a client is slower than T; 0 is not at all. The paper's, as quoted.
    cutoff : float, default=0.95
        The share of the n-th highest score that the pool begins at; 1 is a draw among the n
        highest, 0 among all. The paper's, as quoted.
    clip_quantile : float, default=0.95
        The quantile of the utilities at which they are clipped, against outliers; 1 clips nothing.
        An example that the paper gives, as quoted.
    window : int, default=20
        W, the rounds of a window. If the utility of the cohorts of a window, their sum, is less
        than that of the window before, T is lengthened. The paper's, as quoted.
    step : float or None, default=None
        The first T, and what it is lengthened by, in seconds. None: T covers the quickest of the
        explored clients, at first W m of them and with each step W m more, as the paper is quoted,
        but never more than a fifth of all clients a step: with the default m, W m is everybody, and
        nobody would be slow. When T covers all that were timed, nobody is.
    max_selections : int or None, default=None
        A client that was chosen so often leaves the pool, against outliers. If fewer than n are
        left, all may be chosen so often once more, and so on. None is 10, as the paper is quoted,
        or three times the mean, n_rounds m / K, if that is more: with a limit near the mean all are
        chosen about equally often, whatever their scores.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    See Also
    --------
    skfed.PowerOfChoice : The highest losses at the current model.
    skfed.FedCSSelector : The quickest.

    Notes
    -----
    The losses are those of the rows of a client's last training, sent along with its update. A
    client that was chosen and has no loss, because its training failed (NaN) or diverged, or it
    never answered, has the lowest utility: 0 when scaled. One that was late or did not answer, but
    had reported before, keeps its last. If all utilities are equal, all scale to 0, and the other
    term decides. Only clients that are available and may be chosen count in quantile and scale.

    Clients that are not explored are drawn in proportion to their speed, 1 / seconds, where devices
    are public (``round.expected_seconds``), else at random: nobody has timed them. Without devices
    nobody is slow. The n places are (1 - epsilon) m, rounded up or down at random so that this is
    their mean; what one group cannot fill goes to the other. In a fit in which other rules came
    before, epsilon and T begin with the first round of this one.

    The text of the paper could not be read for this. The rule is its Algorithm 1 as quoted by
    others, and so are the defaults: Plato's ``examples/client_selection/oort`` (at 60d6779),
    FedProphet's ``src/selection/Oort.py`` (at 3ebfee6), FedBalancer's ``models/oort.py`` (at
    e50c344). Plato and FedBalancer compare the last 2 W rounds anew in each round; here windows do
    not overlap, and T is looked at once a window, as in the authors' code. Where no copy says how
    places are rounded, who fills those that are left, or what happens when nobody may be chosen any
    more, it is decided here.

    The authors' code (SymbioticLab/Oort, ``oort/oort.py`` at 05a3aa1) differs in this: its pool
    begins at a share of the score after the n-th; T is a percentile of all durations, lengthened if
    the utilities of two windows differ by at most a tenth, and shortened if by five times; new
    clients are drawn by size and speed; once there are none, epsilon is 0; nobody leaves the pool
    unless an option says so; and its defaults are others (``cutoff`` 0.7, ``clip_quantile`` 0.98,
    ``decay`` 0.95). Its copy in FedScale has a pool of ten times n or more; once all are explored,
    those of the last exploring round are in each cohort; and the losses are those of one minibatch.
    In Plato the second term is that of the round in which a client reported, ever after.

    Known against the rule: labels that are wrong have high losses too.

    Clients are asked for nothing but the spread of their losses, two numbers or 16 bytes with each
    update, to which no noise is added: a fit with ``loss_privacy`` is refused. The memory has five
    numbers. A selection takes time in proportion to K log K: 2 ms for 10,000 clients. With
    public devices, which tell the seconds of all unexplored clients in each round, it is 6 ms;
    devices that are drawn take a tenth of a second more in the first round.

    Examples
    --------
    >>> from skfed import OortSelector
    >>> OortSelector(clients_per_round=10)
    OortSelector(clients_per_round=10)
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "exploration": _SHARE,
        "decay": _SHARE,
        "min_exploration": _SHARE,
        "alpha": [Interval(Real, 0, None, closed="left")],
        "cutoff": _SHARE,
        "clip_quantile": _SHARE,
        "window": [Interval(Integral, 1, None, closed="left")],
        "step": [Interval(Real, 0, None, closed="neither"), None],
        "max_selections": [Interval(Integral, 1, None, closed="left"), None],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False
    needs = ("spread",)

    def __init__(
        self,
        clients_per_round=None,
        exploration=0.9,
        decay=0.98,
        min_exploration=0.2,
        alpha=2.0,
        cutoff=0.95,
        clip_quantile=0.95,
        window=20,
        step=None,
        max_selections=None,
        ignore_priority=False,
    ):
        self.clients_per_round = clients_per_round
        self.exploration = exploration
        self.decay = decay
        self.min_exploration = min_exploration
        self.alpha = alpha
        self.cutoff = cutoff
        self.clip_quantile = clip_quantile
        self.window = window
        self.step = step
        self.max_selections = max_selections
        self.ignore_priority = ignore_priority

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return that no client is polled; who is chosen depends on earlier rounds."""
        return {"polled": np.zeros(len(round.sizes))}

    def _select(self, round: Round) -> Cohort:
        memory = self._paced(round)
        available = np.flatnonzero(round.available)
        m = cohort_size(self.clients_per_round, round)
        is_explored = round.past.n_chosen[available] > 0
        explored, new = available[is_explored], available[~is_explored]
        epsilon = memory["exploration"]
        n = int(np.clip(_rounded(round.rng, (1 - epsilon) * m), m - len(new), len(explored)))
        known = self._exploited(round, explored, n, memory["steps"])
        chosen = np.concatenate([known, _quick(round, new, m - n)])
        least = min(self.min_exploration, self.exploration)
        memory["exploration"] = max(self.decay * epsilon, least)
        return replace(Cohort.mean(chosen), memory=memory)

    def _count(self, round: Round) -> int:
        return count_or_default(self.clients_per_round, len(round.sizes))

    def _paced(self, round: Round) -> dict[str, Any]:
        """Return the memory with the utility of the last cohort: the pacer.

        ``steps`` are those in T, ``rounds`` and ``utility`` of the window so far, ``before`` is the
        utility of the window before.
        """
        memory = dict(round.memory)
        if not memory:
            first = {"exploration": float(self.exploration), "steps": 1, "rounds": 0}
            return {**first, "utility": 0.0, "before": 0.0}
        utilities = _utilities(round, last_cohort(round.past))
        # As floats of Python, the largest of which sum to infinity without a warning.
        memory["utility"] += sum(utilities[np.isfinite(utilities)].tolist())
        memory["rounds"] += 1
        if memory["rounds"] >= self.window:
            memory["steps"] += int(memory["before"] > memory["utility"])
            memory |= {"rounds": 0, "utility": 0.0, "before": memory["utility"]}
        return memory

    def _exploited(self, round: Round, clients: np.ndarray, n: int, steps: int) -> np.ndarray:
        """Draw n of the explored clients from the pool, in proportion to their scores."""
        if n == 0:
            return clients[:0]
        clients = clients[self._may_be_chosen(round, clients, n)]
        scores = self._utility_and_bonus(round, clients) * self._system(round, clients, steps)
        pool = self._pool(scores, n)
        return clients[pool[draw_by_weight(round.rng, scores[pool], n)]]

    def _may_be_chosen(self, round: Round, clients: np.ndarray, n: int) -> np.ndarray:
        """Return a mask of the clients that are below the limit of selections, at least n."""
        limit = self.max_selections
        if limit is None:
            limit = max(10, floor(3 * round.n_rounds * self._count(round) / len(round.sizes)))
        n_chosen = round.past.n_chosen[clients]
        n_limits = np.partition(n_chosen, n - 1)[n - 1] // limit + 1
        return n_chosen < n_limits * limit

    def _utility_and_bonus(self, round: Round, clients: np.ndarray) -> np.ndarray:
        utilities = _scaled(_utilities(round, clients), self.clip_quantile)
        return utilities + _bonus(round.index + 1, round.past.last_chosen[clients] + 1)

    def _system(self, round: Round, clients: np.ndarray, steps: int) -> np.ndarray:
        """Return the factors of clients by their seconds: below 1 of those slower than T."""
        seconds, preferred = round.seconds[clients], self._preferred(round, steps)
        slow = seconds > preferred
        return np.where(slow, preferred / np.where(slow, seconds, 1.0), 1.0) ** self.alpha

    def _preferred(self, round: Round, steps: int) -> float:
        """Return T after a number of steps; the first is where it begins."""
        if self.step is not None:
            return steps * self.step
        seconds = round.seconds[round.past.n_chosen > 0]
        seconds = seconds[np.isfinite(seconds)]
        n_next = min(self.window * self._count(round), max(len(round.sizes) // 5, 1))
        n_within = steps * n_next
        if n_within >= len(seconds):
            return np.inf
        return float(np.partition(seconds, n_within - 1)[n_within - 1])

    def _pool(self, scores: np.ndarray, n: int) -> np.ndarray:
        """Return the positions of scores at or above the cut-off."""
        return np.flatnonzero(scores >= self.cutoff * np.partition(scores, -n)[-n])


def _rounded(rng: np.random.Generator, value: float) -> int:
    """Return a value rounded up or down at random, so that it is the mean."""
    return floor(value) + int(rng.random() < value - floor(value))


def _utilities(round: Round, clients: np.ndarray) -> np.ndarray:
    """Return D_k times the root mean square of the losses; NaN of clients without."""
    with np.errstate(over="ignore"):
        utilities = round.sizes[clients] * round.past.loss_rms[clients]
    known = np.isfinite(utilities) & ~np.isnan(round.reported[clients])
    return np.where(known, utilities, np.nan)


def _scaled(utilities: np.ndarray, quantile: float) -> np.ndarray:
    """Return utilities clipped at their quantile and scaled to [0, 1]; 0 of unknown ones."""
    known = np.isfinite(utilities)
    scaled = np.zeros(len(utilities))
    if known.any():
        clipped = np.minimum(utilities[known], np.quantile(utilities[known], quantile))
        above = clipped - clipped.min()
        scaled[known] = above / (above.max() or 1.0)
    return scaled


def _bonus(t: int, last: np.ndarray) -> np.ndarray:
    """Return what clients gain by not having been chosen since a round; rounds count from 1."""
    return np.sqrt(0.1 * np.log(t) / np.maximum(last, 1))


def _quick(round: Round, clients: np.ndarray, n: int) -> np.ndarray:
    """Draw n of the clients that are not explored, in proportion to their speeds if known."""
    seconds = np.full(len(clients), np.nan)
    if n and round.expect is not None:
        seconds = round.expected_seconds(clients)
    known = np.isfinite(seconds)
    seconds[~known] = np.median(seconds[known]) if known.any() else 1.0
    speeds = 1 / np.maximum(seconds, np.finfo(float).tiny)
    return clients[draw_by_weight(round.rng, speeds, n)]

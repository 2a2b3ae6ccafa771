"""UCB-CS, a bandit of losses.

Cho, Gupta, Joshi, Yagan: Bandit-based Communication-Efficient Client Selection Strategies for
Federated Learning, 2020 (arXiv:2012.08009).
"""

from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size
from skfed.selection._past import last_cohort
from skfed.selection._sampling import lowest
from skfed.utils._sklearn import Interval


class UcbSelector(BaseSelector):
    r"""Take the clients of the highest upper confidence bound of the loss, times p_k.

    The index of client k is

    .. math::

       A_k = p_k \left(\frac{L_k}{N_k} + \sqrt{\frac{2 \sigma^2 \log T}{N_k}}\right)

    where L_k is the sum of the losses that it reported, N_k the number of times that it was chosen,
    and T the number of rounds, each discounted by gamma for each later round; sigma is the largest
    standard deviation of the minibatch losses of a client of the last cohort; p_k = D_k / sum of D
    over all clients. The m clients of the highest index train, ties at random, those never chosen
    before all others. Updates are averaged with equal weights.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m; a float in (0, 1] is a fraction of all clients, rounded down, at least 1. Capped by the
        number of available clients. None is a tenth of the clients, but at least ten, and at most
        half of them, as in the other selectors: 2 of 4 clients, 10 of 40, 400 of 4,000.
    gamma : float, default=0.7
        The discount of a round, in (0, 1]; 1 forgets nothing. With 0.7, which is that of the worked
        decisions and is not known to be the paper's, two rounds halve the weight of a loss.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    See Also
    --------
    skfed.PowerOfChoice : By the same first author; polls, or takes the last reported losses.

    Notes
    -----
    The text of the paper could not be read for this, its abstract alone: the index is
    taken from others' accounts of it, and has yet to be compared with it. The losses are means over
    minibatches of local training, sent along with updates, and so are their deviations. If T = 1
    the second term is 0, and so it is after a round in which nobody reported, and with one
    minibatch a client.

    A client that was chosen and reported no loss, because its training failed (NaN) or it never
    answered, counts in N_k, and adds nothing to L_k and sigma: its index falls, and rises with the
    second term as N_k fades. One that was late or did not answer, but had reported before, counts
    with its last loss and deviation. Clients that the rule has not chosen, or so long ago that
    their N_k has faded to 0, are taken at random if there are more than m. If fewer than m clients
    are available, all of them train. Rounds in which nobody is available discount nothing.

    No code of the authors was found to compare with. Without p_k the rule is another.

    Clients are asked for nothing but the spread of their losses, two numbers or 16 bytes with each
    update, to which no noise is added: a fit with ``loss_privacy`` is refused. The memory has
    2 K + 1 numbers. A selection takes time in proportion to K log K: 1 ms for 10,000 clients.

    Examples
    --------
    >>> from skfed import UcbSelector
    >>> UcbSelector(clients_per_round=10)
    UcbSelector(clients_per_round=10)
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "gamma": [Interval(Real, 0, 1, closed="right")],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False
    needs = ("spread",)

    def __init__(self, clients_per_round=None, gamma=0.7, ignore_priority=False):
        self.clients_per_round = clients_per_round
        self.gamma = gamma
        self.ignore_priority = ignore_priority

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return that no client is polled; who is chosen depends on earlier rounds."""
        return {"polled": np.zeros(len(round.sizes))}

    def _select(self, round: Round) -> Cohort:
        available = np.flatnonzero(round.available)
        m = cohort_size(self.clients_per_round, round)
        last = last_cohort(round.past)
        memory = self._with_last(round, last)
        sums, counts = memory["losses"][available], memory["counts"][available]
        # log T, of which rounding may make less than 0; in the first round there is no T.
        log = np.log(max(memory["rounds"], 1.0))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            bounds = sums / counts + _sigma(round, last) * np.sqrt(2 * log / counts)
        indices = np.where(counts > 0, round.sizes[available] / round.sizes.sum() * bounds, np.inf)
        chosen = available[lowest(round.rng, -indices, m)]
        return replace(Cohort.mean(chosen), memory=memory)

    def _with_last(self, round: Round, last: np.ndarray) -> dict[str, Any]:
        """Return L, N and T with what the last cohort has reported."""
        n_clients = len(round.sizes)
        nothing = {"losses": np.zeros(n_clients), "counts": np.zeros(n_clients), "rounds": 0.0}
        before = {**nothing, **round.memory}
        if not len(last):
            return before
        reported = np.zeros(n_clients)
        reported[last] = np.where(np.isfinite(round.reported[last]), round.reported[last], 0.0)
        chosen = np.zeros(n_clients)
        chosen[last] = 1.0
        new = {"losses": reported, "counts": chosen, "rounds": 1.0}
        return {name: self.gamma * before[name] + value for name, value in new.items()}


def _sigma(round: Round, last: np.ndarray) -> float:
    """Return the largest deviation that the last cohort reported; 0 if there is none.

    Of a client whose training failed the past still has an older one.
    """
    deviations = round.past.loss_std[last[np.isfinite(round.reported[last])]]
    return float(np.max(deviations[np.isfinite(deviations)], initial=0.0))

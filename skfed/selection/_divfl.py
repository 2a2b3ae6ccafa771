"""DivFL: the clients whose gradients are near those of all.

Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes: Diverse Client Selection for Federated Learning via
Submodular Maximization, ICLR 2022 (https://openreview.net/forum?id=nwKXyFvaUm).
"""

from dataclasses import replace

import numpy as np
from scipy.spatial.distance import cdist

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size

# Sums that differ by less, relative to themselves, may differ by rounding alone: that of gradients
# in float32, which is not the same in both engines.
_TIE = 1e-6


class DivFLSelector(BaseSelector):
    r"""Take clients whose gradients are near those of all, by greedy facility location.

    The cohort S is to have a low

    .. math::

       G(S) = \sum_i \min_{k \in S} \lVert \nabla F_i - \nabla F_k \rVert

    over the clients i in reach. It begins empty; m times the client joins with which G is lowest,
    ties at random. Updates are averaged by the sizes of the clients.

    The gradient of a client is that on all its rows at the model it received last. In the first
    round every client in reach is asked for it, afterwards the cohort alone.

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
    skfed.ClusteredSelector : Draws from clusters of similar updates; asks for nothing.

    Notes
    -----
    A round chooses by the gradients that the server has, those of earlier rounds, and then asks the
    cohort for its gradients at the current model, by which later rounds choose. Only a client in
    reach that has never answered is asked before the choice, since it has no distance to others.
    Nobody is asked twice in a round.

    - A client that does not answer keeps its last gradient; one that has none is in the cohort only
      if fewer than m others are in reach, at random. As after any exchange, a client that failed or
      was late does not train in that round.
    - Clients out of reach are neither chosen nor in the sum over i.
    - A gradient of 0 is one like any other. Once each client in reach has the gradient of one in
      the cohort, G is 0, and the others join at random.
    - If at most m clients are in reach, all of them train, and no distance is computed.

    Of the gain of the best cohort, K d - G(S) with the largest distance d, the greedy one has at
    least 1 - 1/e (Nemhauser, Wolsey and Fisher, 1978). Ties are no rare case: of two clients that
    are nearest to each other, both gain the same as long as the cohort is farther. Distances are
    Euclidean; squares, as in a published copy, choose other clients.

    Of the paper only the abstract could be read for this; the rule is that of its authors' code
    (melodi-lab/divfl, ``flearn/trainers``). The abstract speaks of a communication-efficient
    version: to refresh the gradients of the cohort alone may be that version. The code differs in
    this: it keeps whole gradients; with m = 1 it asks all clients in each round; it breaks ties by
    the order of clients; and with m = K it raises an IndexError. It has a stochastic greedy choice
    too, and does not use it.

    What clients send is a projection of the gradient to 64 numbers, drawn once a fit
    (:meth:`~skfed.selection.Round.sketch`): distances have an error of about 9%, 1/sqrt(128). In
    the first round each client in reach gets the model and a seed of 8 bytes, and returns 512
    bytes, after one gradient on all its rows: with 10,000 clients 10,000 models and 5.2 MB. In
    later rounds this is so of the cohort alone, which gets the model anyway: with m = 100, 52 kB a
    round. A gradient has no noise: fits with ``update_privacy`` or ``loss_privacy`` are refused.
    The memory has 64 K numbers.

    A selection takes time and memory in proportion to the square of the number of clients in reach:
    0.04 s for 1,000 clients, 0.7 s for 4,000, with m = 100 (``python -m pytest benchmarks -k
    selection``). The distances alone are 8 bytes a pair, 0.8 GB for 10,000 clients.

    Examples
    --------
    >>> from skfed import DivFLSelector
    >>> DivFLSelector(clients_per_round=10)
    DivFLSelector(clients_per_round=10)
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
        """Return that no client is polled; who is chosen depends on gradients."""
        return {"polled": np.zeros(len(round.sizes))}

    def _select(self, round: Round) -> Cohort:
        clients = np.flatnonzero(round.available)
        m = cohort_size(self.clients_per_round, round)
        sketches = round.memory.get("sketches")
        new = clients if sketches is None else clients[np.isnan(sketches[clients, 0])]
        sketches = _renewed(round, sketches, new)
        has_answered = ~np.isnan(sketches[clients, 0])
        known, unknown = clients[has_answered], clients[~has_answered]
        central = known
        if len(known) > m:
            central = known[facility_location(distances_between(sketches[known]), m, round.rng)]
        chosen = np.append(central, round.rng.permutation(unknown)[: m - len(central)])
        sketches = _renewed(round, sketches, np.setdiff1d(chosen, new))
        return replace(Cohort.by_size(chosen, round.sizes), memory={"sketches": sketches})


def _renewed(round: Round, sketches: np.ndarray | None, clients: np.ndarray) -> np.ndarray:
    """Return the sketches of all clients, with new ones of those that are asked and answer."""
    if sketches is not None and not len(clients):
        return sketches
    answers = round.sketch(clients)
    if sketches is None:
        sketches = np.full((len(round.sizes), answers.shape[1]), np.nan)
    answered = np.isfinite(answers).all(axis=1)
    renewed = sketches.copy()
    renewed[clients[answered]] = answers[answered]
    return renewed


def distances_between(sketches: np.ndarray) -> np.ndarray:
    """Return the Euclidean distances between sketches, all in the same unit."""
    # The unit is a power of 2, which rounds nothing; no square overflows in it.
    exponent = np.frexp(np.abs(sketches).max(initial=0.0))[1]
    scaled = np.ldexp(sketches, -exponent)
    return cdist(scaled, scaled)


def facility_location(distances: np.ndarray, m: int, rng: np.random.Generator) -> np.ndarray:
    """Choose positions one by one, each time that with the least sum of distances to the nearest.

    Parameters
    ----------
    distances : ndarray of shape (n, n)
        Symmetric.
    m : int
        How many to choose; all if there are fewer.
    rng : numpy.random.Generator
        Breaks ties.

    Returns
    -------
    ndarray of shape (min(m, n),)
        The positions in the order chosen.
    """
    n = len(distances)
    chosen: list[int] = []
    nearest = np.full(n, np.inf)  # distance from each to the nearest chosen
    # Of each, the sum of nearest if it were chosen too, with an error of rounding below the slack.
    sums = distances.sum(axis=0)
    rounding = _TIE + 4 * (n + m) * np.finfo(float).eps
    slack = rounding * sums.max(initial=0.0)
    while len(chosen) < m and nearest.any():
        lowest = np.flatnonzero(sums <= sums.min() + slack)
        exact = np.minimum(nearest, distances[lowest]).sum(axis=1)
        sums[lowest] = exact
        if len(lowest) == n - len(chosen):  # after an outlier was chosen, the slack is less
            slack = rounding * exact.max()
        k = rng.choice(lowest[exact <= exact.min() * (1 + _TIE)])
        chosen.append(k)
        _take(k, distances, nearest, sums)
    others = np.setdiff1d(np.arange(n), chosen)
    return np.append(chosen, rng.permutation(others)[: m - len(chosen)]).astype(np.intp)


def _take(k: int, distances: np.ndarray, nearest: np.ndarray, sums: np.ndarray) -> None:
    """Choose k: update the distances to the nearest, and the sums, where they change."""
    nearer = np.flatnonzero(distances[k] < nearest)
    new, old = distances[k, nearer], nearest[nearer]
    gains = distances[nearer]
    np.clip(gains, new[:, None], old[:, None], out=gains)
    gains -= new[:, None]
    sums -= gains.sum(axis=0)
    sums[k] = np.inf
    nearest[nearer] = new

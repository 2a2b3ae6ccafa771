"""Random draws of clients.

While all clients are available, the cost of a draw does not grow with their number.
"""

import numpy as np

from skfed.selection._cohort import Cohort

_TRIES = 8


def draw_by_size(
    rng: np.random.Generator, ends: np.ndarray, available: np.ndarray, n: int, replace: bool
) -> np.ndarray:
    """Draw ``n`` available clients in proportion to their sizes; return them in the order drawn.

    ``ends`` are the cumulative sizes. Without replacement, each draw is among the clients not
    drawn yet, and at least ``n`` must be available.
    """
    if not available.all():
        return _draw_among(rng, ends, np.flatnonzero(available), n, replace)
    if replace:
        return _owners(rng, ends, n)
    drawn = np.empty(0, dtype=np.intp)
    for _ in range(_TRIES):
        # Dropping repeated clients is the same as drawing among those not drawn yet.
        drawn = np.concatenate([drawn, _owners(rng, ends, n)])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        if len(drawn) >= n:
            return drawn[:n]
    rest = np.setdiff1d(np.arange(len(ends)), drawn)  # a few clients hold nearly all rows
    return np.concatenate([drawn, _draw_among(rng, ends, rest, n - len(drawn), replace)])


def inclusion_probabilities(chances: np.ndarray, n_draws: int) -> np.ndarray:
    """Return how likely each client is among ``n_draws`` draws by size without replacement.

    Exact, by enumeration of all sets of drawn clients: for a dozen clients only.
    """
    reached = {frozenset[int](): 1.0}
    for _ in range(n_draws):
        following: dict[frozenset[int], float] = {}
        for drawn, probability in reached.items():
            rest = [k for k in range(len(chances)) if k not in drawn]
            total = sum(chances[k] for k in rest)
            for k in rest:
                key = drawn | {k}
                following[key] = following.get(key, 0.0) + probability * chances[k] / total
        reached = following
    result = np.zeros(len(chances))
    for drawn, probability in reached.items():
        result[list(drawn)] += probability
    return result


def lowest(rng: np.random.Generator, ranks: np.ndarray, n: int) -> np.ndarray:
    """Return the positions of the ``n`` lowest ranks, in ascending order, ties at random."""
    shuffled = rng.permutation(len(ranks))
    return shuffled[np.argsort(ranks[shuffled], kind="stable")[:n]]


def draw_by_weight(rng: np.random.Generator, weights: np.ndarray, n: int) -> np.ndarray:
    """Draw ``n`` positions without replacement, in proportion to weights of at least 0.

    Positions of infinite weight are drawn first, and those of weight 0 when no others are left,
    both at random.
    """
    # The lowest of exponential variables of given rates are draws in proportion to the rates.
    waits = rng.exponential(size=len(weights))
    with np.errstate(divide="ignore", over="ignore"):
        waits = np.where(weights > 0, waits / weights, np.inf)
    return lowest(rng, waits, n)


def lowest_probabilities(ranks: np.ndarray, n: int) -> np.ndarray:
    """Return how likely each position is among the ``n`` lowest ranks, ties at random."""
    n = min(n, len(ranks))
    last = np.partition(ranks, n - 1)[n - 1]
    below, tied = ranks < last, ranks == last
    return below + tied * (n - below.sum()) / tied.sum()


def least_variance(norms: np.ndarray, m: int) -> np.ndarray:
    """Return the probabilities of least variance that sum to m, or to the number of norms above 0.

    Of independent draws: they minimise the sum of norms^2 / probabilities, with none above 1.

    Parameters
    ----------
    norms : ndarray of shape (n_members,)
        Finite and not negative.
    m : int
        The expected number of draws.

    Returns
    -------
    ndarray of shape (n_members,)
        Probabilities in the order of ``norms``.
    """
    shares = norms / max(len(norms), 1)  # sums of the largest floats would overflow
    if np.count_nonzero(shares) <= m:
        return (shares > 0).astype(float)
    order = np.argsort(-shares, kind="stable")
    ordered = shares[order]
    rest = np.cumsum(ordered[::-1])[::-1]  # of each norm and all smaller ones
    budgets = m - np.arange(m)
    # True for c = m - 1 at the latest: a norm is at most a sum with itself.
    n_certain = int(np.argmax(budgets * ordered[:m] <= rest[:m]))
    chances = np.ones(len(norms))
    others = budgets[n_certain] * (ordered[n_certain:] / rest[n_certain])
    chances[order[n_certain:]] = np.minimum(others, 1)
    return chances


def draw_independently(rng: np.random.Generator, everybody: Cohort, chances: np.ndarray) -> Cohort:
    """Draw each client of a cohort with its probability; weights are divided by it: no bias."""
    drawn = rng.random(len(chances)) < chances
    weights = everybody.weights[drawn] / chances[drawn]
    return Cohort(everybody.clients[drawn], weights, unbiased=True)


def _owners(rng: np.random.Generator, ends: np.ndarray, n: int) -> np.ndarray:
    """Draw ``n`` rows with replacement; return the client of each."""
    return np.searchsorted(ends, rng.integers(ends[-1], size=n), side="right")


def _draw_among(
    rng: np.random.Generator, ends: np.ndarray, clients: np.ndarray, n: int, replace: bool
) -> np.ndarray:
    sizes = np.diff(ends, prepend=0)[clients]
    return rng.choice(clients, size=n, replace=replace, p=sizes / sizes.sum())

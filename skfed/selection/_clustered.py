"""Clustered sampling: one draw from each of m urns of equal mass.

Fraboni, Vidal, Kameni, Lorenzi: Clustered Sampling: Low-Variance and Improved Representativity for
Clients Selection in Federated Learning, ICML 2021 (arXiv:2105.05883), Algorithms 1 and 2.
"""

import numpy as np
from scipy.cluster.hierarchy import fcluster

from skfed.selection._angles import angles_between, ward_tree
from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size
from skfed.utils._sklearn import StrOptions


class ClusteredSelector(BaseSelector):
    """Draw one client from each of m urns, filled by size or by the similarity of updates.

    Each client has m D_k places, and each of the m urns holds the sum of D: all are filled, and a
    client is cut where an urn is full. One place is drawn from each urn, and updates are averaged
    with equal weights. A client may be drawn from two urns; then it trains twice, independently. As
    with draws by size with replacement, client k is expected m p_k times, so that the aggregate is
    unbiased, but how often it is drawn varies less. Nobody is polled.

    Parameters
    ----------
    by : {"size", "updates"}, default="size"
        "size" is Algorithm 1: clients fill the urns one after the other in descending size.
        "updates" is Algorithm 2: clients whose last updates point in similar directions share an
        urn, so that each direction is drawn about as often as it is met.
    clients_per_round : int, float or None, default=None
        m; a float in (0, 1] is a fraction of all clients, rounded down, at least 1. Capped by the
        number of available clients. None is a tenth of the clients, but at least ten, and at most
        half of them: 2 of 4 clients, 10 of 40, 400 of 4,000. The authors' experiments draw 10 of
        100, a tenth.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    See Also
    --------
    skfed.RandomSelector : Draws by size with replacement, the same in expectation.

    Notes
    -----
    Only available clients fill urns: each is then expected in proportion to its share of their
    rows. Equal sizes and equal clusters are ordered at random, afresh in each round.

    By updates, Ward's method joins clients by the angles between their last updates, arccos of the
    cosines. The clusters are the largest subtrees that fit into an urn. The m heaviest open one urn
    each; the clients of the others fill these up, beginning with the lightest cluster and the
    emptiest urn, in random order within a cluster.

    - A client that has not trained yet, whose trainings all failed, or whose update is zero has no
      direction, and is a cluster of its own.
    - A client with the rows of an urn or more first fills as many urns as it can alone; only what
      is left of it is clustered.

    The text of the paper could not be read for this; the rules are those that its authors' code has
    (Accenture/Labs-Federated-Learning, branch clustered_sampling, ``py_func/clustering.py``), which
    differs in this: it fills urns with fractions truncated at 1e-10, and normalizes each; it gives
    a square matrix of angles to scipy, which takes its rows for positions, so that clients are
    joined by the Euclidean distances between rows of angles; it does not clip cosines, so that an
    angle may be NaN; a client without an update is at angle 0 to everybody; and in Algorithm 2 it
    has no case for a client that does not fit into an urn.

    By size it asks nothing of clients. By updates it asks nothing more of them than their updates,
    which the server projects to 64 numbers; angles are those of the projections. So this is not
    for fits with ``update_privacy``.

    By size, a selection takes time in proportion to K log K: 1 ms for 10,000 clients. By updates,
    time and memory grow with the square of K: 0.02 s for 1,000 clients, 0.6 s for 4,000 (``python
    -m pytest benchmarks -k selection``).

    Examples
    --------
    >>> from skfed import ClusteredSelector
    >>> ClusteredSelector(by="updates", clients_per_round=10)
    ClusteredSelector(by='updates', clients_per_round=10)
    """

    _parameter_constraints = {
        "by": [StrOptions({"size", "updates"})],
        "clients_per_round": [*CLIENT_COUNT, None],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False

    def __init__(self, by="size", clients_per_round=None, ignore_priority=False):
        self.by = by
        self.clients_per_round = clients_per_round
        self.ignore_priority = ignore_priority

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """("updates",) if clients are clustered by them."""
        return ("updates",) if self.by == "updates" else ()

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return m p_k, whatever the clusters; no client is polled."""
        n_clients = len(round.sizes)
        m = cohort_size(self.clients_per_round, round)
        return {"polled": np.zeros(n_clients), "chosen": m * round.sizes / round.sizes.sum()}

    def _select(self, round: Round) -> Cohort:
        # Shuffled before stable sorts, and before clusters are joined, to break ties at random.
        clients = round.rng.permutation(np.flatnonzero(round.available))
        m = cohort_size(self.clients_per_round, round)
        owners, places = self._urns(round, clients, m)
        capacity = places.sum() // m
        drawn = np.arange(m) * capacity + round.rng.integers(capacity, size=m)
        return Cohort.mean(owners[np.searchsorted(np.cumsum(places), drawn, side="right")])

    def _urns(self, round: Round, clients: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the owners and lengths of runs of places, one urn after the other.

        They are whole numbers, so that urns are full to the last place.
        """
        places = m * round.sizes[clients].astype(np.int64)
        if self.by == "size":
            largest_first = np.argsort(-places, kind="stable")
            return clients[largest_first], places[largest_first]
        capacity = places.sum() // m
        n_alone, places = np.divmod(places, capacity)
        clusters = self._clusters(round.past.updates[clients], places, capacity)
        clusters = round.rng.permutation(clusters.max() + 1)[clusters]
        owners, lengths = _filled(clusters, places, m - n_alone.sum(), capacity)
        alone = np.repeat(clients, n_alone)
        full = np.full(len(alone), capacity)
        return np.concatenate([alone, clients[owners]]), np.concatenate([full, lengths])

    def _clusters(self, updates: np.ndarray, places: np.ndarray, capacity: int) -> np.ndarray:
        """Return the cluster of each client, from 0; none has more places than an urn."""
        norms = np.linalg.norm(updates, axis=1)
        known = np.flatnonzero(np.isfinite(norms) & (norms > 0) & (places > 0))
        clusters = np.arange(len(updates))  # each its own
        if len(known) > 1:
            tree = ward_tree(angles_between(updates[known]))
            clusters[known] = known[_cut(tree, places[known], capacity)]
        return np.unique(clusters, return_inverse=True)[1]


def _cut(tree: np.ndarray, places: np.ndarray, capacity: int) -> np.ndarray:
    """Return the largest subtrees that fit into an urn: of each leaf, a number of its subtree."""
    n_leaves = len(places)
    joined = np.concatenate([places, np.zeros(len(tree), places.dtype)])
    for node, (left, right) in enumerate(tree[:, :2].astype(int), start=n_leaves):
        joined[node] = joined[left] + joined[right]
    by_places = tree.copy()
    by_places[:, 2] = joined[n_leaves:]  # a branch has no more than its stem
    return fcluster(by_places, capacity, criterion="distance") - 1


def _filled(
    clusters: np.ndarray, places: np.ndarray, n_urns: int, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the owners and lengths of the runs of places in urns that clusters open and fill."""
    weights = np.zeros(clusters.max() + 1, places.dtype)
    np.add.at(weights, clusters, places)
    ranks = np.argsort(np.argsort(weights, kind="stable"))  # from the lightest
    urns = ranks[clusters] - (len(weights) - n_urns)
    opening = np.flatnonzero(urns >= 0)
    filling = np.flatnonzero(urns < 0)
    filling = filling[np.argsort(urns[filling], kind="stable")]
    rooms = capacity - np.sort(weights)[len(weights) - n_urns :]
    room_ends, filling_ends = np.cumsum(rooms), np.cumsum(places[filling])
    cuts = np.union1d(room_ends, filling_ends)
    cuts = cuts[cuts > 0]
    owners = np.concatenate([opening, filling[np.searchsorted(filling_ends, cuts)]])
    lengths = np.concatenate([places[opening], np.diff(cuts, prepend=0)])
    by_urn = np.argsort(
        np.concatenate([urns[opening], np.searchsorted(room_ends, cuts)]), kind="stable"
    )
    return owners[by_urn], lengths[by_urn]

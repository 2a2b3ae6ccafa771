"""HiCS-FL, clusters of clients drawn by the entropy of the labels that their updates tell of.

Chen, Vikalo: Heterogeneity-Guided Client Sampling: Towards Fast and Efficient Non-IID Federated
Learning, 2023 (arXiv:2310.00198).
"""

from numbers import Integral, Real

import numpy as np
from scipy.cluster.hierarchy import fcluster
from scipy.special import entr, softmax

from skfed.selection._angles import angles_between, ward_tree
from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size
from skfed.utils._sklearn import Interval

#: Of larger parameters, squares and products overflow.
_LARGEST = 1e100


class HicsFLSelector(BaseSelector):
    r"""Draw clusters of similar clients, at first those whose labels seem the most balanced.

    The update of the bias of the last layer in a client's last training, :math:`\Delta b_k`, tells
    how balanced its labels are. Their entropy is estimated by

    .. math::

       H_k = H(\operatorname{softmax}(\Delta b_k / \tau))

    with the natural logarithm. Ward's method joins clients by the distances

    .. math::

       d_{ij} = \arccos \frac{\Delta b_i \cdot \Delta b_j}{\|\Delta b_i\| \|\Delta b_j\|}
       + \lambda |H_i - H_j|

    into clusters. Then m times a cluster c is drawn in proportion to
    :math:`\exp(\gamma (1 - t / T) \bar H_c)`, with the mean entropy :math:`\bar H_c` of its
    clients, and one of its clients that are left in proportion to its size. A cluster of which
    nobody is left is not drawn again. At the end of the planned rounds, t = T, and after it, all
    clusters are equally likely. Updates are averaged with equal weights.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m; a float in (0, 1] is a fraction of all clients, rounded down, at least 1. Capped by the
        number of available clients. None is a tenth of the clients, but at least ten, and at most
        half of them, as in the other selectors: 2 of 4 clients, 10 of 40, 400 of 4,000. The
        authors' configurations draw a fifth: 10 of 50, or 20 of 100.
    n_clusters : int or None, default=None
        The largest number of clusters; clients of equal distance are not separated, so that there
        may be fewer. None is m, but at least 2: the authors' configurations have as many clusters
        as they draw clients, but for ablations with 3 to 14. With 1, clients are drawn by size.
    gamma : float, default=4.0
        How much likelier balanced clusters are at first; with 0 all are equally likely. It is 4 in
        the authors' configurations for Fashion-MNIST and CIFAR-10, 2 for Mini-ImageNet.
    tau : float or None, default=None
        The temperature of the softmax, in units of the update, which grows with the learning rate
        and the number of local steps: if an entry leads all others by 10 tau or more, the entropy
        of 10 classes is below 0.005. It is 0.001 in the authors' configurations for Fashion-MNIST
        and most for CIFAR-10, 0.0015 for Mini-ImageNet, with rates of 0.001; at the rate of the
        default net, 0.1, that makes the entropies of nearly all clients 0. None is ours: a fifth of
        the median over clients of the largest entry, so that neither rate nor steps matter. The
        softmax of the median client is then 0.94 at one entry of 10, if the others are 0.
    lam : float, default=10.0
        Lambda, the weight of the entropies' difference beside the angle. It is 10 in the authors'
        configurations, 1 to 20 in those of ablations.
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    See Also
    --------
    skfed.ClusteredSelector : Clusters by the angles between whole updates; unbiased.

    Notes
    -----
    - Clients that were never chosen come first, at random, so that the first rounds are a warm-up
      in which each is chosen once. It takes K / m rounds, or longer if clients are away.
    - A client that has been chosen and has no update, because all its trainings failed or it never
      answered, is in the cluster of another client, drawn at random in each round, and does not
      count in the mean entropy.
    - An update of zeros has the largest entropy, that of the uniform distribution, and no
      direction: it is at a right angle to all others, and at an angle of 0 to other zeros. If
      those of more than half of the clients are zeros, the default tau is near 0, and all others
      have the entropy of the classes that share their largest entry.
    - Equal updates, and those at angles below 1.4e-6 with equal entropies, are never separated. If
      all are equal, all clients are one cluster, drawn from by size.
    - With one output (a regression, or two classes with one logit) each entropy is 0 and an angle
      is 0 or pi: there are two clusters, by the sign of the update, and they are equally likely.
    - Only available clients are clustered. If there are at most m, all of them train.

    The text of the paper could not be read for this, so that the rule above could not be compared
    with it. Its authors' code (CityChan/HiCS-FL, ``server/server_hics.py`` at 25f309d) differs from
    the rule above in this:

    - Entropies are those of the row means of the last layer's weights, here only of a layer
      without bias, and angles those of its weights and bias together. The softmax overflows where
      an entry is above 709 tau.
    - It hands the square matrix of distances to scikit-learn, which takes its rows for positions,
      so that clients are joined by the Euclidean distances between rows. There are always M
      clusters. It does not clip cosines, and a client with an update of zeros is at angle 0 to
      everybody.
    - Clients are drawn uniformly within a cluster.
    - Only where the variance of the entropies is below 0.1 are clusters drawn so. Elsewhere clients
      are chosen by Algorithm 2 of clustered sampling, by the same matrix, so that neither gamma
      nor t plays a part. Here clusters are always drawn as above.
    - The warm-up takes K / m rounds, rounded down, in the order of the clients. After it, updates
      are not renewed if the clients' data were drawn with different Dirichlet parameters.

    It asks nothing of clients beyond their updates, in which the server sees that of the last
    layer: K times the number of outputs are kept. So this is not for fits with ``update_privacy``.
    Time and memory grow with the square of K: with ten outputs 0.015 s for 1,000 clients, 0.5 s for
    4,000 (``python -m pytest benchmarks -k selection``). While m or more clients were never chosen,
    nothing is clustered.

    Examples
    --------
    >>> from skfed import HicsFLSelector
    >>> HicsFLSelector(clients_per_round=10, n_clusters=5)
    HicsFLSelector(clients_per_round=10, n_clusters=5)
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "n_clusters": [Interval(Integral, 1, None, closed="left"), None],
        "gamma": [Interval(Real, 0, None, closed="left")],
        "tau": [Interval(Real, 0, None, closed="neither"), None],
        "lam": [Interval(Real, 0, None, closed="left")],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False
    needs = ("last_layer",)

    def __init__(
        self,
        clients_per_round=None,
        n_clusters=None,
        gamma=4.0,
        tau=None,
        lam=10.0,
        ignore_priority=False,
    ):
        self.clients_per_round = clients_per_round
        self.n_clusters = n_clusters
        self.gamma = gamma
        self.tau = tau
        self.lam = lam
        self.ignore_priority = ignore_priority

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return that no client is polled; who is chosen depends on clusters."""
        return {"polled": np.zeros(len(round.sizes))}

    def _select(self, round: Round) -> Cohort:
        # Shuffled, so that those never chosen are in random order, and ties in clusters are too.
        clients = round.rng.permutation(np.flatnonzero(round.available))
        m = cohort_size(self.clients_per_round, round)
        updates = round.past.last_layer[clients]
        heard = np.isfinite(updates).all(axis=1)
        new = ~heard & (round.past.n_chosen[clients] == 0)
        chosen = clients[new][:m]
        if (n_left := m - len(chosen)) > 0:
            rest, updates = clients[~new], updates[~new]
            clusters, logits = self._clusters(round, updates, heard[~new], m)
            drawn = _drawn(round.rng, clusters, logits, round.sizes[rest], n_left)
            chosen = np.concatenate([chosen, rest[drawn]])
        return Cohort.mean(chosen)

    def _clusters(
        self, round: Round, updates: np.ndarray, heard: np.ndarray, m: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the cluster of each client, and of each cluster the logarithm of its weight."""
        clusters = np.zeros(len(updates), dtype=np.intp)
        if not heard.any():
            return clusters, np.zeros(1)
        entropies = entropies_of(updates[heard], self._temperature(updates[heard]))
        if len(entropies) > 1:
            tree = ward_tree(distances_of(updates[heard], entropies, self.lam))
            clusters[heard] = _cut(tree, self.n_clusters or max(m, 2))
        sizes = np.bincount(clusters[heard])
        means = np.bincount(clusters[heard], entropies) / sizes
        clusters[~heard] = round.rng.choice(clusters[heard], size=len(heard) - len(entropies))
        left = max(1 - round.index / round.n_rounds, 0.0)  # a fit may go on after its last round
        return clusters, min(self.gamma, _LARGEST) * left * means

    def _temperature(self, updates: np.ndarray) -> float:
        """Return tau, or a fifth of the median of the largest entries."""
        if self.tau is not None:
            return self.tau
        largest = np.abs(updates).max(axis=1)
        median = float(np.quantile(largest, 0.5, method="higher"))  # of two, a mean may overflow
        return max(median / 5, float(np.finfo(float).tiny))


def entropies_of(updates: np.ndarray, tau: float) -> np.ndarray:
    """Return the entropy, in nats, of the softmax of each row over tau."""
    with np.errstate(over="ignore"):  # to -inf, of which the softmax is 0
        scaled = (updates - updates.max(axis=1, keepdims=True)) / tau
    return entr(softmax(scaled, axis=1)).sum(axis=1)


def distances_of(updates: np.ndarray, entropies: np.ndarray, lam: float) -> np.ndarray:
    """Return the square matrix of the angles plus lambda times the differences of entropies."""
    largest = np.abs(updates).max(axis=1, keepdims=True)  # of which a square may overflow
    distances = angles_between(updates / np.where(largest > 0, largest, 1.0))
    distances += min(lam, _LARGEST) * np.abs(entropies[:, None] - entropies)
    return distances


def _cut(tree: np.ndarray, n_clusters: int) -> np.ndarray:
    """Return the cluster of each leaf, from 0; merges at equal heights are all made, or none."""
    n_undone = n_clusters - 1
    height = tree[-1 - n_undone, 2] if n_undone < len(tree) else 0.0
    return fcluster(tree, height, criterion="distance") - 1


def _drawn(
    rng: np.random.Generator, clusters: np.ndarray, logits: np.ndarray, sizes: np.ndarray, n: int
) -> np.ndarray:
    """Return the positions of n draws of a cluster, and each time of one of its clients by size.

    The clusters are Poisson processes, of rates exp(logits), that end when all their clients have
    been drawn. The first n arrivals of all are n draws in proportion to the rates.
    """
    turns = rng.exponential(size=len(clusters)) / sizes  # ascending, they are draws by size
    order = np.lexsort((turns, clusters))
    ordered = clusters[order]
    ends = np.cumsum(rng.exponential(size=len(clusters)))
    before = np.concatenate([[0.0], ends])[np.searchsorted(ordered, ordered)]
    with np.errstate(divide="ignore"):
        arrivals = np.log(ends - before) - logits[ordered]
    return order[np.argsort(arrivals)[:n]]

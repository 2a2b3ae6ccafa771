"""Synthetic(alpha, beta), and its extension with free clients of graded quality.

Sahu, Li, Sanjabi, Zaheer, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020 (arXiv:1812.06127). Ravi, Shomorony: Prioritized Federated Learning, TMLR 2024; the
extension is in appendix B.2 of its preprint.
"""

from numbers import Real

import numpy as np
from sklearn.utils import Bunch, check_random_state

from skfed.utils._checks import Count, validated
from skfed.utils._sklearn import Interval

N_FEATURES, N_CLASSES = 60, 10

_SPREAD = [Interval(Real, 0, 1e30, closed="both")]  # X is float32
_COUNT = [Count()]
_FACTOR = [Interval(Real, 0, None, closed="left")]
_SEED = ["random_state"]


@validated(alpha=_SPREAD, beta=_SPREAD, n_clients=_COUNT, random_state=_SEED)
def make_synthetic(
    alpha: float = 1.0, beta: float = 1.0, *, n_clients: int = 30, random_state=None
) -> Bunch:
    """Make clients whose models and inputs differ: Synthetic(alpha, beta).

    Client k holds int(lognormal(4, 2)) + 50 rows of 60 features. Its labels are the largest of
    the 10 logits W_k x + b_k, the entries of W_k and b_k drawn from N(u_k, 1) with
    u_k ~ N(0, alpha). Its inputs are drawn from N(v_k, diag(j^-1.2)), the entries of v_k from
    N(B_k, 1) with B_k ~ N(0, beta).

    Parameters
    ----------
    alpha : float, default=1.0
        How much the clients' models differ: the standard deviation of u_k.
    beta : float, default=1.0
        How much their inputs differ: the standard deviation of B_k.
    n_clients : int, default=30
        K, number of clients.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws.

    Returns
    -------
    Bunch
        ``X`` float32 of shape (n_samples, 60), ``y`` int of shape (n_samples,) and ``clients``,
        0 to n_clients - 1, one a row.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> from skfed.datasets import make_synthetic
    >>> data = make_synthetic(n_clients=3, random_state=0)
    >>> data.X.shape[1], sorted(set(data.clients.tolist()))
    (60, [0, 1, 2])
    """
    rng = check_random_state(random_state)
    sizes = rng.lognormal(4, 2, n_clients).astype(int) + 50
    rows = [_client(rng, alpha, beta, size) for size in sizes]
    return Bunch(
        X=np.concatenate([X for X, _ in rows]).astype(np.float32),
        y=np.concatenate([y for _, y in rows]),
        clients=np.arange(n_clients).repeat(sizes),
    )


@validated(
    alpha=_SPREAD,
    beta=_SPREAD,
    n_priority=_COUNT,
    n_free=_COUNT,
    label_noise=_FACTOR,
    irrelevant=_FACTOR,
    skew=[Interval(Real, 0, None, closed="neither")],
    random_state=_SEED,
)
def make_prioritized_synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    n_priority: int = 10,
    n_free: int = 10,
    label_noise: float = 2.5,
    irrelevant: float = 1.0,
    skew: float = 1.5,
    random_state=None,
) -> Bunch:
    """Make priority clients, and free clients that hold noisy copies of their data.

    The priority clients are those of :func:`make_synthetic`. The free clients hold copies of their
    rows, assigned at random and changed: a share of each client's labels is drawn again, uniformly,
    and a share of its rows is replaced by irrelevant ones, of standard normal inputs and uniform
    labels. The shares differ by client: min(factor * u^(1/skew), 1), with u uniform in [0, 1], so
    that with a larger skew more clients are near the largest share. The paper names factors and
    skews, but does not define them; this definition is ours.

    Parameters
    ----------
    alpha, beta : float, default=1.0
        See :func:`make_synthetic`.
    n_priority, n_free : int, default=10
        Number of clients of each kind.
    label_noise : float, default=2.5
        Factor of the share of labels drawn again.
    irrelevant : float, default=1.0
        Factor of the share of rows replaced.
    skew : float, default=1.5
        Skew of both shares. The paper has 0.5, 1.5 and 5 for low, medium and high noise.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws.

    Returns
    -------
    Bunch
        ``X``, ``y`` and ``clients`` as of :func:`make_synthetic`, the free clients last;
        ``priority``, the ids of the priority clients; ``label_noise`` and ``irrelevant``, the
        shares of each free client, of shape (n_free,).

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    rng = check_random_state(random_state)
    data = make_synthetic(alpha, beta, n_clients=n_priority, random_state=rng)
    dealt = rng.permutation(len(data.y))
    X, y = data.X[dealt], data.y[dealt]
    free = np.arange(n_free).repeat(np.diff(np.linspace(0, len(y), n_free + 1).astype(int)))
    wrong, replaced = (
        np.minimum(factor * rng.uniform(size=n_free) ** (1 / skew), 1)
        for factor in (label_noise, irrelevant)
    )
    for k in range(n_free):
        rows = rng.permutation(np.flatnonzero(free == k))
        noisy = rows[: round(wrong[k] * len(rows))]
        y[noisy] = rng.randint(N_CLASSES, size=len(noisy))
        rows = rng.permutation(rows)
        foreign = rows[: round(replaced[k] * len(rows))]
        X[foreign] = rng.normal(size=(len(foreign), N_FEATURES))
        y[foreign] = rng.randint(N_CLASSES, size=len(foreign))
    return Bunch(
        X=np.concatenate([data.X, X]),
        y=np.concatenate([data.y, y]),
        clients=np.concatenate([data.clients, free + n_priority]),
        priority=np.arange(n_priority),
        label_noise=wrong,
        irrelevant=replaced,
    )


def _client(
    rng: np.random.RandomState, alpha: float, beta: float, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw one client's model, inputs and labels; return X and y."""
    u, B = rng.normal(0, abs(alpha)), rng.normal(0, abs(beta))  # numpy takes no -0.0
    W, b = rng.normal(u, 1, (N_CLASSES, N_FEATURES)), rng.normal(u, 1, N_CLASSES)
    v = rng.normal(B, 1, N_FEATURES)
    spread = np.arange(1, N_FEATURES + 1) ** -0.6  # the square root of j^-1.2
    X = v + spread * rng.normal(size=(size, N_FEATURES))
    return X, np.argmax(X @ W.T + b, axis=1)

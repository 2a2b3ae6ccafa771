"""Quadratic objectives with the optimum in closed form.

Cho, Wang, Joshi: Client Selection in Federated Learning, 2020 (arXiv:2010.01243), appendix F.
"""

import numpy as np
from sklearn.utils import Bunch, check_random_state

from skfed.utils._checks import Count, validated

_EXPONENT = 3  # a of the power law P(x; a) = a x^(a - 1)
_MAX_ROWS = 1000  # of a client


@validated(n_clients=[Count()], n_dims=[Count()])
def make_quadratic(n_clients: int = 30, n_dims: int = 5, *, random_state=None) -> Bunch:
    """Make clients of ``F_k(w) = 1/2 h_k |w - e_k / h_k|^2`` for ``skfed.modules.Quadratic``.

    h_k is drawn from U(1, 20). The paper leaves e_k open; here the entries of the local optima
    e_k / h_k are drawn from N(2, 1), away from w = 0, where training starts. All rows of a client
    are (h_k, e_k); D_k is at least 1, and 1000 times a draw from the power law P(x; 3) = 3 x^2 on
    [0, 1], rounded down.

    Parameters
    ----------
    n_clients : int, default=30
        K, number of clients.
    n_dims : int, default=5
        v, the length of w.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws.

    Returns
    -------
    Bunch
        ``X`` of shape (n_samples, 1 + n_dims), float64, ``y`` zeros, and ``clients``, one a row;
        ``optimum``, the w of shape (n_dims,) that minimises F = sum of p_k F_k;
        ``local_optima`` of shape (n_clients, n_dims); ``minimum``, F at ``optimum``.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> from skorch import NeuralNetClassifier
    >>> from skfed import FederatedClassifier, RandomSelector
    >>> from skfed.datasets import make_quadratic
    >>> from skfed.modules import MeanOutput, Quadratic
    >>> data = make_quadratic(4, random_state=0)
    >>> net = NeuralNetClassifier(
    ...     Quadratic,
    ...     module__n_dims=5,
    ...     criterion=MeanOutput,
    ...     lr=0.01,
    ...     batch_size=1,
    ... )
    >>> everybody = RandomSelector(1.0, probability="uniform", replace=False)
    >>> model = FederatedClassifier(
    ...     net,
    ...     selector=everybody,
    ...     n_rounds=300,
    ...     local_steps=1,
    ...     random_state=0,
    ... ).fit(data.X, data.y, clients=data.clients)
    >>> bool(
    ...     abs(model.net_.module_.w.detach().numpy() - data.optimum).max()
    ...     < 1e-6
    ... )
    True
    """
    rng = check_random_state(random_state)
    h = rng.uniform(1, 20, n_clients)
    local_optima = rng.normal(2, 1, (n_clients, n_dims))
    e = h[:, None] * local_optima
    # The distribution function of the power law is x^a.
    sizes = np.maximum(1, _MAX_ROWS * rng.uniform(size=n_clients) ** (1 / _EXPONENT)).astype(int)
    p = sizes / sizes.sum()
    optimum = (p @ e) / (p @ h)
    minimum = p @ (h / 2 * ((optimum - local_optima) ** 2).sum(axis=1))
    return Bunch(
        X=np.column_stack([h, e]).repeat(sizes, axis=0),
        y=np.zeros(sizes.sum(), dtype=int),
        clients=np.arange(n_clients).repeat(sizes),
        optimum=optimum,
        local_optima=local_optima,
        minimum=float(minimum),
    )

"""Parameters that count clients, such as ``clients_per_round``, and their defaults."""

from numbers import Integral, Real
from typing import Any

import numpy as np

from skfed.selection._round import Round
from skfed.utils._sklearn import Interval

#: Constraint of a parameter that counts clients: an int, or a fraction of all clients.
CLIENT_COUNT = [Interval(Integral, 1, None, closed="left"), Interval(Real, 0, 1, closed="right")]


def count_clients(value: Any, n_clients: int) -> int:
    """Return a number of clients from an int, or from a fraction: m = max(C K, 1), as in FedAvg."""
    if isinstance(value, Integral):
        return int(value)
    # The tiny addition undoes rounding such as 0.29 * 100 = 28.999999999999996.
    return max(1, int(value * n_clients + 1e-9))


def default_count(n_clients: int) -> int:
    """Return the default m: a tenth of the clients, but at least ten, or all."""
    return min(max(10, n_clients // 10), n_clients)


def half_at_most(n: int, n_candidates: int) -> int:
    """Return ``n``, but at most half of the candidates, so that there is a choice among them."""
    return min(n, max(n_candidates // 2, 1))


def count_or_default(value: Any, n_clients: int, n_candidates: int | None = None) -> int:
    """Return m of ``clients_per_round``; None is the default count, at most half of the candidates.

    By default all clients are candidates.
    """
    if value is None:
        n_candidates = n_clients if n_candidates is None else n_candidates
        return half_at_most(default_count(n_clients), n_candidates)
    return count_clients(value, n_clients)


def cohort_size(value: Any, round: Round) -> int:
    """Return m of ``clients_per_round``, at most the number of available clients."""
    n_available = int(np.count_nonzero(round.available))
    return min(count_or_default(value, len(round.sizes)), n_available)

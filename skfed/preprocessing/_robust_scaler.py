"""RobustScaler, fitted by bisection on each client's counts."""

import numpy as np
import torch
from sklearn.preprocessing import RobustScaler

from skfed.preprocessing._base import Exchanges, SuppressingTransformer
from skfed.preprocessing._quantiles import (
    check_enough,
    client_counts,
    interpolate,
    merge_counts,
    neighbours,
    sorted_columns,
)
from skfed.utils._sklearn import handle_zeros_in_scale


class FederatedRobustScaler(SuppressingTransformer, RobustScaler):
    """Scale columns by quantiles over all clients' rows, which stay with them.

    Each client counts its values up to edges that the server asks for, in at most 18 exchanges (10
    for float32). The fitted attributes are those of :class:`sklearn.preprocessing.RobustScaler` on
    the pooled rows: quantiles are exact.

    Parameters
    ----------
    with_centering, with_scaling : bool, default=True
        As in scikit-learn.
    quantile_range : tuple (q_min, q_max), default=(25.0, 75.0)
        As in scikit-learn.
    copy : bool, default=True
        As in scikit-learn.
    unit_variance : bool, default=False
        As in scikit-learn.
    priority : collection or mapping of client ids, default=None
        Whose statistics count, as in :class:`FederatedStandardScaler`.
    min_count, min_holders : int, default=1
        The server does not search on where fewer than ``min_count`` values, or values of fewer than
        ``min_holders`` clients, are left; the middle of the interval before stands for the value.

    Attributes
    ----------
    center_, scale_, n_features_in_, feature_names_in_
        As in scikit-learn.
    exchange_ : DataFrame
        A row for each exchange and client; see :mod:`skfed.preprocessing`.

    Examples
    --------
    >>> from skfed.preprocessing import FederatedRobustScaler
    >>> X, clients = [[1.0], [2.0], [30.0], [4.0], [5.0]], ["a", "b", "b", "a", "a"]
    >>> scaler = FederatedRobustScaler().fit(X, clients=clients)
    >>> scaler.center_, scaler.scale_
    (array([4.]), array([3.]))
    """

    _parameter_constraints = {
        **RobustScaler._parameter_constraints,
        **SuppressingTransformer._suppression_constraints,
        "priority": "no_validation",
    }

    def __init__(
        self,
        *,
        with_centering=True,
        with_scaling=True,
        quantile_range=(25.0, 75.0),
        copy=True,
        unit_variance=False,
        priority=None,
        min_count=1,
        min_holders=1,
    ):
        super().__init__(
            with_centering=with_centering,
            with_scaling=with_scaling,
            quantile_range=quantile_range,
            copy=copy,
            unit_variance=unit_variance,
        )
        self.priority = priority
        self.min_count = min_count
        self.min_holders = min_holders

    def validate_rows(self, X):
        """Return the rows as floats, and check the range."""
        low, high = self.quantile_range
        if not 0 <= low <= high <= 100:
            raise ValueError(f"Invalid quantile range: {self.quantile_range}")
        rows = super().validate_rows(X)
        self._dtype = rows.dtype
        return rows

    def prepare(self, rows):
        """Return the columns, sorted."""
        return sorted_columns(rows)

    def client_statistics(self, data, request):
        """Return numbers of values, in all or up to the edges asked for."""
        return client_counts(data, request)

    def merge(self, statistics):
        """Return sums of counts and of clients that have values."""
        return merge_counts(statistics)

    def exchanges(self) -> Exchanges:
        """Ask for numbers of values, then for counts until the quantiles are known."""
        counted = yield {}
        check_enough(self, counted)
        least, most = np.asarray(self.quantile_range) / 100
        shares = [0.5] * self.with_centering + [least, most] * self.with_scaling
        low, high, part, suppressed = yield from neighbours(
            counted["n"], shares, self._dtype, self.min_count, self.min_holders
        )
        self.center_ = np.mean([low[:, 0], high[:, 0]], axis=0) if self.with_centering else None
        self.scale_ = None
        if self.with_scaling:
            ends = interpolate(low, high, part)[:, -2:]
            scale = handle_zeros_in_scale(ends[:, 1] - ends[:, 0], copy=False)
            self.scale_ = scale / _normal_range(least, most) if self.unit_variance else scale
        return suppressed


def _normal_range(least: float, most: float) -> float:
    """Return the distance of two quantiles of the standard normal distribution."""
    low, high = torch.special.ndtri(torch.tensor([least, most], dtype=torch.float64)).tolist()
    return high - low

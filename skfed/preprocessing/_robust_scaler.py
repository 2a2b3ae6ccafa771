"""RobustScaler, fitted by bisection on each client's counts."""

import numpy as np
import torch
from sklearn.preprocessing import RobustScaler

from skfed.preprocessing._base import Requests, SuppressingTransformer
from skfed.preprocessing._quantiles import (
    check_agreement,
    check_client_counts,
    check_enough,
    client_counts,
    interpolate,
    merge_counts,
    neighbours,
    sorted_columns,
)
from skfed.preprocessing._scope import ScopedScaler, ScopedTransformer
from skfed.utils._sklearn import handle_zeros_in_scale
from skfed.utils._warnings import warn


class FederatedRobustScaler(SuppressingTransformer, ScopedScaler, RobustScaler):
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
    scope : {"all", "client"}, default="all"
        Whose statistics transform a row: those of all clients (of the priority clients, if any are
        named), or those of the row's own client, as in :class:`FederatedStandardScaler`.
    min_count, min_holders : int, default=1
        The server does not search on where fewer than ``min_count`` values, or values of fewer than
        ``min_holders`` clients, are left. The result then differs from the quantile by at most the
        width of the narrowest interval that holds the quantile, so many values, and values of so
        many clients (of several quantiles of a column, the widest of these). This takes some
        further exchanges. If the distance of the two quantiles may be wrong by more than half of
        it, fit warns.

    Attributes
    ----------
    center_, scale_, n_features_in_, feature_names_in_
        As in scikit-learn.
    clients_ : ndarray of shape (n_clients,)
        The ids of the clients; with ``scope="client"`` only.
    by_client_ : dict of ndarray of shape (n_clients, n_features)
        With ``scope="client"`` only: by name, each client's own ``center_`` and ``scale_``.
    exchange_ : DataFrame
        A row for each exchange and client; see :mod:`skfed.preprocessing`.

    See Also
    --------
    sklearn.preprocessing.RobustScaler : The same on rows that are in one place.
    skfed.preprocessing.FederatedStandardScaler : Scales by mean and variance.

    Examples
    --------
    >>> from skfed.preprocessing import FederatedRobustScaler
    >>> X, clients = (
    ...     [[1.0], [2.0], [30.0], [4.0], [5.0]],
    ...     ["a", "b", "b", "a", "a"],
    ... )
    >>> scaler = FederatedRobustScaler().fit(X, clients=clients)
    >>> scaler.center_, scaler.scale_
    (array([4.]), array([3.]))
    """

    _parameter_constraints = {
        **RobustScaler._parameter_constraints,
        **SuppressingTransformer._suppression_constraints,
        **ScopedTransformer._scope_constraints,
        "priority": "no_validation",
    }
    _attributes_by_client = ("center_", "scale_")

    def __init__(
        self,
        *,
        with_centering=True,
        with_scaling=True,
        quantile_range=(25.0, 75.0),
        copy=True,
        unit_variance=False,
        priority=None,
        scope="all",
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
        self.scope = scope
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

    def check_statistics(self, statistics, example, n_samples):
        """Raise a ValueError if counts are not those of so many rows."""
        check_client_counts(statistics, n_samples)

    def check_exchanges(self, exchanges):
        """Raise a ValueError if counts are not of the same values."""
        check_agreement(exchanges)

    def merge(self, statistics):
        """Return sums of counts and of clients that have values."""
        return merge_counts(statistics, self.min_holders)

    def exchanges(self) -> Requests:
        """Ask for numbers of values, then for counts until the quantiles are known."""
        counted = yield {}
        check_enough(self, counted)
        least, most = np.asarray(self.quantile_range) / 100
        shares = [0.5] * self.with_centering + [least, most] * self.with_scaling
        low, high, part, errors = yield from neighbours(
            counted["n"], shares, self._dtype, self.min_count, self.min_holders
        )
        self.center_ = np.mean([low[:, 0], high[:, 0]], axis=0) if self.with_centering else None
        self.scale_ = None
        if self.with_scaling:
            ends = interpolate(low, high, part)[:, -2:]
            self._warn_of_wide(ends, errors[:, -2:])
            scale = handle_zeros_in_scale(ends[:, 1] - ends[:, 0], copy=False)
            self.scale_ = scale / _normal_range(least, most) if self.unit_variance else scale
        return not np.isnan(errors).all()

    def _warn_of_wide(self, ends: np.ndarray, errors: np.ndarray) -> None:
        """Warn of columns whose range may be wrong by more than half, since it is suppressed."""
        wide = np.nansum(errors / 2, axis=1) > (ends[:, 1] / 2 - ends[:, 0] / 2) / 2
        for j in np.flatnonzero(wide).tolist():
            warn(
                f"column {self.column_name(j)!r}: min_count={self.min_count} and min_holders="
                f"{self.min_holders} leave its quantiles too uncertain to scale by: {ends[j, 0]:g} "
                f"and {ends[j, 1]:g}, each up to {np.nanmax(errors[j]):g} from the true one. Lower "
                "them, or scale the column by a FederatedStandardScaler."
            )


def _normal_range(least: float, most: float) -> float:
    """Return the distance of two quantiles of the standard normal distribution."""
    low, high = torch.special.ndtri(torch.tensor([least, most], dtype=torch.float64)).tolist()
    return high - low

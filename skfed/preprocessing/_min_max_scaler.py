"""MinMaxScaler, fitted from each client's minima and maxima."""

import numpy as np
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.validation import FLOAT_DTYPES, validate_data

from skfed.preprocessing._base import Requests, Statistics, SuppressingTransformer
from skfed.preprocessing._blocks import ClientRows, blocks
from skfed.preprocessing._private import bounds_of
from skfed.preprocessing._scope import ScopedScaler, ScopedTransformer
from skfed.utils._sklearn import handle_zeros_in_scale


class FederatedMinMaxScaler(SuppressingTransformer, ScopedScaler, MinMaxScaler):
    """Scale columns to a range over all clients' rows, which stay with them.

    Each client sends the minimum and maximum of each column, in one exchange. The fitted attributes
    are those of :class:`sklearn.preprocessing.MinMaxScaler` on the pooled rows, bit for bit.

    Parameters
    ----------
    feature_range : tuple (min, max), default=(0, 1)
        As in scikit-learn.
    copy : bool, default=True
        As in scikit-learn.
    clip : bool, default=False
        As in scikit-learn.
    priority : collection or mapping of client ids, default=None
        Whose statistics count, as in :class:`FederatedStandardScaler`.
    scope : {"all", "client"}, default="all"
        Whose statistics transform a row: those of all clients (of the priority clients, if any are
        named), or those of the row's own client, as in :class:`FederatedStandardScaler`.
    min_count : int, default=1
        Instead of its minimum and maximum, a client sends the ``min_count``-th smallest and the
        ``min_count``-th largest of its values in a column: each is the value of one of its rows,
        and at least ``min_count`` of them are at or beyond it. It sends neither of a column in
        which it has fewer values, or so few that the first is above the second.
    min_holders : int, default=1
        The server takes the ``min_holders``-th smallest of the clients' minima, and largest of
        their maxima. A column is an error where fewer clients have values, or the first is above
        the second.
    bounds : (lowest, highest), each a number or array-like of shape (n_features,), default=None
        Bounds of the columns that are known without a look at the data. They are then minima and
        maxima, and clients send nothing. Noise would not hide that an extreme is a value of a row,
        so there is no ``privacy``.

    Attributes
    ----------
    min_, scale_, data_min_, data_max_, data_range_, n_samples_seen_, n_features_in_, \
feature_names_in_
        As in scikit-learn.
    clients_ : ndarray of shape (n_clients,)
        The ids of the clients; with ``scope="client"`` only.
    by_client_ : dict of ndarray of shape (n_clients, n_features)
        With ``scope="client"`` only: by name, each client's own ``data_min_``, ``data_max_``,
        ``data_range_``, ``scale_`` and ``min_``.
    exchange_ : DataFrame
        A row for each exchange and client; see :mod:`skfed.preprocessing`.

    See Also
    --------
    sklearn.preprocessing.MinMaxScaler : The same on rows that are in one place.
    skfed.preprocessing.FederatedStandardScaler : Scales by mean and variance.

    Examples
    --------
    >>> from skfed.preprocessing import FederatedMinMaxScaler
    >>> scaler = FederatedMinMaxScaler().fit(
    ...     [[0.0], [2.0], [8.0]], clients=["a", "a", "b"]
    ... )
    >>> scaler.transform([[2.0]])
    array([[0.25]])
    """

    _parameter_constraints = {
        **MinMaxScaler._parameter_constraints,
        **SuppressingTransformer._suppression_constraints,
        **ScopedTransformer._scope_constraints,
        "bounds": ["array-like", None],
        "priority": "no_validation",
    }
    _attributes_by_client = ("data_min_", "data_max_", "data_range_", "scale_", "min_")

    def __init__(
        self,
        feature_range=(0, 1),
        *,
        copy=True,
        clip=False,
        priority=None,
        scope="all",
        min_count=1,
        min_holders=1,
        bounds=None,
    ):
        super().__init__(feature_range, copy=copy, clip=clip)
        self.priority = priority
        self.scope = scope
        self.min_count = min_count
        self.min_holders = min_holders
        self.bounds = bounds

    def validate_rows(self, X):
        """Return the rows as floats, and check the range."""
        low, high = self.feature_range
        if low >= high:
            raise ValueError(
                "Minimum of desired feature range must be smaller than maximum. Got "
                f"{self.feature_range}."
            )
        if self.bounds is not None and (self.min_count > 1 or self.min_holders > 1):
            raise ValueError(
                f"min_count={self.min_count} and min_holders={self.min_holders} suppress extremes "
                "of rows, which are not sent with bounds: leave them out."
            )
        return validate_data(self, X, dtype=FLOAT_DTYPES, ensure_all_finite="allow-nan")

    def take_rows(self, rows, indices):
        """Return some of the rows, copied only where they are read."""
        return ClientRows(rows, indices)

    def client_statistics(self, data, request):
        """Return the number of rows, and of each column the extremes that may be sent."""
        if self.bounds is not None:
            return {}
        ends = [_ends(block) for block in blocks(data)]
        exact = np.stack([_ends(end)[i] for i, end in enumerate(np.stack(ends, axis=1))])
        sent = exact
        if self.min_count > 1:
            sent = _in_order(_extremes(np.concatenate(list(blocks(data))), self.min_count))
        suppressed = (sent != exact) & ~np.isnan(exact)
        return {"n": np.array([len(data)]), "min": sent[0], "max": sent[1]} | (
            {"suppressed": suppressed.any(axis=0)} if suppressed.any() else {}
        )

    def check_statistics(self, statistics, example, n_samples):
        """Raise a ValueError if extremes are not those of so many rows."""
        if self.bounds is not None:
            return
        low, high = statistics["min"], statistics["max"]
        if statistics["n"][0] != n_samples:
            raise ValueError("its n is not the number of its rows.")
        most = np.finfo(low.dtype).max / 4  # so that ranges are finite
        known = (-most <= low) & (low <= high) & (high <= most)
        if not (known | (np.isnan(low) & np.isnan(high))).all():
            raise ValueError("a minimum is above the maximum, or one of them is too large.")

    def merge(self, statistics):
        """Return the ``min_holders``-th smallest minimum and largest maximum of the clients."""
        if self.bounds is not None:
            low, high = bounds_of(self)
            none = np.zeros(len(low), dtype=bool)
            sides = {"by_server": none, "by_clients": none}
            return {"n": np.array([0]), "min": low.copy(), "max": high.copy(), **sides}
        low, high = (np.stack([s[name] for s in statistics]) for name in ("min", "max"))
        exact = _extremes(low, 1)[0], _extremes(high, 1)[1]
        left = _extremes(low, self.min_holders)[0], _extremes(high, self.min_holders)[1]
        merged = _in_order(np.stack(left))
        by_server = np.not_equal(merged, exact) & ~np.isnan(exact)
        by_clients = sum(s.get("suppressed", np.zeros(low.shape[1], bool)) for s in statistics)
        return {
            "n": sum(s["n"] for s in statistics),
            "min": merged[0],
            "max": merged[1],
            "by_server": by_server.any(axis=0),
            "by_clients": by_clients > 0,
        }

    def exchanges(self) -> Requests:
        """Ask for minima and maxima once."""
        merged = yield {}
        self._check_remaining(merged)
        low, high = self.feature_range
        self.n_samples_seen_ = int(merged["n"][0])
        self.data_min_, self.data_max_ = merged["min"], merged["max"]
        self.data_range_ = self.data_max_ - self.data_min_
        scale = handle_zeros_in_scale(self.data_range_.copy())
        self.scale_ = scale.dtype.type(high - low) / scale
        self.min_ = scale.dtype.type(low) - self.data_min_ * self.scale_
        return bool(merged["by_server"].any())

    def _check_remaining(self, merged: Statistics) -> None:
        """Raise where suppression left nothing of a column that has values."""
        empty = np.isnan(merged["min"]) & (merged["by_server"] | merged["by_clients"])
        if empty.any():
            name = self.column_name(int(np.flatnonzero(empty)[0]))
            raise ValueError(
                f"column {name!r}: min_count={self.min_count} and min_holders={self.min_holders} "
                "suppress its minimum or its maximum. Lower them, or leave the column out."
            )


def _extremes(values: np.ndarray, n: int) -> np.ndarray:
    """Return the n-th smallest and largest along the first axis; NaN where there are fewer than n.

    Bit for bit the same for all orders of the values: -0.0 becomes 0.0.
    """
    if n == 1:
        return _ends(values)
    if len(values) < n:
        return np.full((2, values.shape[1]), np.nan, values.dtype)
    smallest, of_negative = (np.partition(v, n - 1, axis=0)[n - 1] for v in (values, -values))
    return np.stack([smallest, -of_negative]) + 0  # NaN counts as largest in both


def _in_order(extremes: np.ndarray) -> np.ndarray:
    """Return a minimum and a maximum of each column; NaN where the minimum is the larger one."""
    return np.where(extremes[0] > extremes[1], extremes.dtype.type(np.nan), extremes)


def _ends(values: np.ndarray) -> np.ndarray:
    """Return the smallest and largest along the first axis; NaN where there are none."""
    return np.stack([np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0)]) + 0

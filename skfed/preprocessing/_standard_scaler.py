"""StandardScaler, fitted from each client's counts, means and sums of squared deviations."""

import numpy as np
from sklearn.preprocessing import StandardScaler

from skfed.callbacks._sklearn import as_one_task, with_callbacks
from skfed.preprocessing._base import BaseFederatedTransformer, Exchanges
from skfed.preprocessing._moments import merge_moments, moments
from skfed.utils._sklearn import handle_zeros_in_scale, is_constant_feature


class FederatedStandardScaler(BaseFederatedTransformer, StandardScaler):
    """Scale columns to mean 0 and variance 1 over all clients' rows, which stay with them.

    Each client sends, for each column, the number of its values, their mean, what rounding took
    from it, and the sum of their squared deviations from it, in one exchange. The fitted attributes
    are those of :class:`sklearn.preprocessing.StandardScaler` on the pooled rows, up to rounding.

    Parameters
    ----------
    copy, with_mean, with_std : bool, default=True
        As in scikit-learn.
    priority : collection or mapping of client ids, default=None
        Whose statistics count. None means all clients'. Of a mapping to weights, the clients of
        positive weight count, all alike.

    Attributes
    ----------
    mean_, var_, scale_, n_samples_seen_, n_features_in_, feature_names_in_
        As in scikit-learn.
    exchange_ : DataFrame
        A row for each exchange and client; see :mod:`skfed.preprocessing`.

    Examples
    --------
    >>> from skfed.preprocessing import FederatedStandardScaler
    >>> scaler = FederatedStandardScaler().fit([[0.0], [2.0], [7.0]], clients=["a", "a", "b"])
    >>> scaler.mean_
    array([3.])
    >>> scaler.exchange_[["client", "bytes_up", "held"]]
      client  bytes_up                    held
    0      a        32  n, mean, rest, squares
    1      b        32  n, mean, rest, squares
    """

    _parameter_constraints = {**StandardScaler._parameter_constraints, "priority": "no_validation"}

    def __init__(self, *, copy=True, with_mean=True, with_std=True, priority=None):
        super().__init__(copy=copy, with_mean=with_mean, with_std=with_std)
        self.priority = priority

    @with_callbacks  # of the transformers, scikit-learn's StandardScaler alone has callbacks
    def fit(self, X, y=None, clients=None):
        """Fit the scaler by the moments that each client computes from its own rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows of all clients.
        y : None
            Ignored.
        clients : array-like of shape (n_samples,), default=None
            The id of the client that holds each row. None means one client, with a warning.

        Returns
        -------
        self
            The fitted scaler.
        """
        with as_one_task(self, X, y):
            return super().fit(X, y, clients=clients)

    def client_statistics(self, data, request):
        """Return count, mean and sum of squared deviations of each column."""
        return moments(data)

    def merge(self, statistics):
        """Return the moments of all clients' rows."""
        return merge_moments(statistics)

    def exchanges(self) -> Exchanges:
        """Ask for moments once."""
        merged = yield {}
        n, mean = merged["n"].astype(np.float64), merged["mean"]
        var = np.where(n > 0, merged["squares"] / np.maximum(n, 1), np.nan)
        self.n_samples_seen_ = n[0] if (n == n[0]).all() else n
        self.mean_ = mean if self.with_mean or self.with_std else None
        self.var_ = var if self.with_std else None
        self.scale_ = None
        if self.with_std:
            constant = is_constant_feature(var, mean, n)
            self.scale_ = handle_zeros_in_scale(np.sqrt(var), constant_mask=constant)
        return False

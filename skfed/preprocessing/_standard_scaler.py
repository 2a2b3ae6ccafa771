"""StandardScaler, fitted from each client's counts, means and sums of squared deviations."""

import numpy as np
from sklearn.preprocessing import StandardScaler

from skfed.callbacks._sklearn import as_one_task, with_callbacks
from skfed.preprocessing._base import Requests, Statistics
from skfed.preprocessing._blocks import ClientRows
from skfed.preprocessing._moments import check_sums, merge_moments, moments
from skfed.preprocessing._private import (
    PrivateTransformer,
    average_rows,
    merge_averages,
    moments_of_averages,
    sums_of_powers,
)
from skfed.preprocessing._scope import ScopedScaler, ScopedTransformer
from skfed.preprocessing._windows import as_windows, steps_as_rows
from skfed.utils._sklearn import handle_zeros_in_scale, is_constant_feature


class FederatedStandardScaler(PrivateTransformer, ScopedScaler, StandardScaler):
    """Scale columns to mean 0 and variance 1 over all clients' rows, which stay with them.

    Each client sends, for each column, the number of its values, their mean, its rounding error,
    and the sum of their squared deviations from it, in one exchange. The fitted attributes are
    those of :class:`sklearn.preprocessing.StandardScaler` on the pooled rows, up to rounding.
    Windows of several steps, of shape (n_samples, n_steps, n_features), are scaled column by column
    over all their steps, each of which counts as a row.

    Parameters
    ----------
    copy, with_mean, with_std : bool, default=True
        As in scikit-learn.
    priority : collection or mapping of client ids, default=None
        Whose statistics count. None means all clients'. Of a mapping to weights, the clients of
        positive weight count, all alike.
    scope : {"all", "client"}, default="all"
        Whose statistics scale a row: those of all clients (of the priority clients, if any are
        named), or those of the row's own client, which do not leave it. Rows of clients that were
        not seen in fit, and columns in which a client lacks all values, are scaled by those of all
        clients also with ``"client"``; ``transform`` and ``inverse_transform`` then need
        ``clients``.
    privacy : GaussianMechanism, default=None
        Clips what each client sends and adds noise to it, which makes it private with respect to
        all of the client's data, except for the number of its rows
        (:func:`skfed.privacy.privacy_spent`); needs ``bounds``. A column whose
        noisy variance is not positive gets that of evenly spread values.
    bounds : (lowest, highest), each a number or array-like of shape (n_features,), default=None
        Bounds of the columns, to which values are clipped before they are summed; for ``privacy``.
    random_state : int, RandomState instance or None, default=None
        The seed of the noise. Steps of the same seed do not share noise: it depends also on what is
        sent.

    Attributes
    ----------
    mean_, var_, scale_, n_samples_seen_, n_features_in_, feature_names_in_
        As in scikit-learn.
    clients_ : ndarray of shape (n_clients,)
        The ids of the clients; with ``scope="client"`` only.
    by_client_ : dict of ndarray of shape (n_clients, n_features)
        With ``scope="client"`` only: by name, each client's own ``mean_``, ``var_`` and
        ``scale_``.
    exchange_ : DataFrame
        A row for each exchange and client; see :mod:`skfed.preprocessing`.

    See Also
    --------
    sklearn.preprocessing.StandardScaler : The same on rows that are in one place.
    skfed.preprocessing.FederatedRobustScaler : Scales by quantiles, which outliers hardly change.
    skfed.preprocessing.FederatedMinMaxScaler : Scales to a range.

    Examples
    --------
    >>> from skfed.preprocessing import FederatedStandardScaler
    >>> scaler = FederatedStandardScaler().fit(
    ...     [[0.0], [2.0], [7.0]], clients=["a", "a", "b"]
    ... )
    >>> scaler.mean_
    array([3.])
    >>> scaler.exchange_[["client", "bytes_up", "held"]]
      client  bytes_up                    held
    0      a        32  n, mean, rest, squares
    1      b        32  n, mean, rest, squares
    >>> scaler = FederatedStandardScaler(scope="client")
    >>> scaler.fit_transform(
    ...     [[0.0], [2.0], [7.0]], clients=["a", "a", "b"]
    ... ).ravel()
    array([-1.,  1.,  0.])
    >>> scaler.by_client_["mean_"].ravel()
    array([1., 7.])
    """

    _parameter_constraints = {
        **StandardScaler._parameter_constraints,
        **ScopedTransformer._scope_constraints,
        **PrivateTransformer._privacy_constraints,
        "priority": "no_validation",
    }
    _attributes_by_client = ("mean_", "var_", "scale_")

    def __init__(
        self,
        *,
        copy=True,
        with_mean=True,
        with_std=True,
        priority=None,
        scope="all",
        privacy=None,
        bounds=None,
        random_state=None,
    ):
        super().__init__(copy=copy, with_mean=with_mean, with_std=with_std)
        self.priority = priority
        self.scope = scope
        self.privacy = privacy
        self.bounds = bounds
        self.random_state = random_state

    @with_callbacks  # of the transformers, scikit-learn's StandardScaler alone has callbacks
    def fit(self, X, y=None, clients=None):
        """Fit the scaler by the moments that each client computes from its own rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, n_steps, n_features)
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
            X, clients = steps_as_rows(X, clients)
            return super().fit(X, y, clients=clients)

    def transform(self, X, copy=None, *, clients=None):
        """Scale rows; with ``scope="client"`` each client's by its own statistics.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, n_steps, n_features)
            Rows.
        copy : bool, default=None
            As in scikit-learn.
        clients : array-like of shape (n_samples,), default=None
            The id of the client that holds each row, for ``scope="client"``. None means the
            statistics of all clients, with a warning.

        Returns
        -------
        array-like of the shape of X
            The scaled rows.
        """
        rows, clients = steps_as_rows(X, clients)
        return as_windows(self._apply("transform", rows, clients, copy=copy), X)

    def inverse_transform(self, X, copy=None, *, clients=None):
        """Return rows before they were scaled; with ``scope="client"`` each client's by its own.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, n_steps, n_features)
            Scaled rows.
        copy : bool, default=None
            As in scikit-learn.
        clients : array-like of shape (n_samples,), default=None
            The id of the client that holds each row, as in ``transform``.

        Returns
        -------
        ndarray of the shape of X
            The rows.
        """
        rows, clients = steps_as_rows(X, clients)
        return as_windows(self._apply("inverse_transform", rows, clients, copy=copy), X)

    def take_rows(self, rows, indices):
        """Return some of the rows, copied only where they are read."""
        return ClientRows(rows, indices)

    def client_statistics(self, data, request):
        """Return count, mean and sum of squared deviations of each column."""
        if self.privacy is not None:
            sums = [sums_of_powers(block, 2) for block in self.scaled_blocks(data)]
            return average_rows(sums, len(data))
        return moments(data)

    def check_statistics(self, statistics, example, n_samples):
        """Raise a ValueError if moments are not those of so many rows."""
        check_sums(statistics, n_samples)

    def merge(self, statistics):
        """Return the moments of all clients' rows."""
        if self.privacy is not None:
            return self._moments_of(merge_averages(statistics))
        return merge_moments(statistics)

    def exchanges(self) -> Requests:
        """Ask for moments once."""
        merged = yield {}
        n, mean = merged["n"].astype(np.float64), merged["mean"]
        var = np.where(n > 0, merged["squares"] / np.maximum(n, 1), np.nan)
        seen = n if self.with_mean or self.with_std else merged["n"]
        self.n_samples_seen_ = seen[0] if (n == n[0]).all() else seen
        self.mean_ = mean if self.with_mean or self.with_std else None
        self.var_ = var if self.with_std else None
        self.scale_ = None
        if self.with_std:
            constant = is_constant_feature(var, mean, n)
            self.scale_ = handle_zeros_in_scale(np.sqrt(var), constant_mask=constant)
        return False

    def _moments_of(self, merged: Statistics) -> Statistics:
        """Return moments from noisy averages of values in [-1, 1] and of their squares."""
        middle, half = self.scale_of_bounds()
        mean, square = moments_of_averages(merged, self.n_features_in_)
        var = square - mean**2
        var = np.where(var > 0, var, 1 / 3)  # of the uniform distribution
        n = np.full(self.n_features_in_, merged["n"])
        return {"n": n, "mean": middle + half * mean, "squares": n * var * half**2}

"""Transformers that may transform each client's rows by statistics of its own.

With ``scope="client"`` a client's statistics are scikit-learn's on its own rows. They are computed
where they are used and leave no client; what all clients' statistics need is exchanged as with
``scope="all"``, for clients that were not seen in fit and for columns in which a client lacks all
values.
"""

from typing import Any

import numpy as np
from sklearn.utils.metadata_routing import UNUSED, MetadataRequest
from sklearn.utils.validation import check_is_fitted

from skfed._federation import Federation, find_ids, make_federation
from skfed.preprocessing._base import BaseFederatedTransformer, fitted_elsewhere
from skfed.utils._sklearn import StrOptions, safe_indexing
from skfed.utils._warnings import warn


class ScopedTransformer(BaseFederatedTransformer):
    """Base class of transformers with ``scope``."""

    __metadata_request__transform = {"clients": True}

    _scope_constraints: dict = {"scope": [StrOptions({"all", "client"})]}
    _attributes_by_client: tuple[str, ...] = ()  # fitted attributes with a value for each column

    def fit_transform(self, X, y=None, clients=None):
        """Fit the transformer, and transform the rows that it is fitted on.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows of all clients.
        y : None
            Ignored.
        clients : array-like of shape (n_samples,), default=None
            The id of the client that holds each row.

        Returns
        -------
        array-like of shape (n_samples, n_features_out)
            The transformed rows.
        """
        return self.fit(X, y, clients=clients).transform(X, clients=clients)

    def transform(self, X, *, clients=None):
        """Transform rows; with ``scope="client"`` each client's by its own statistics.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        clients : array-like of shape (n_samples,), default=None
            The id of the client that holds each row. Rows of clients that were not seen in fit are
            transformed by the statistics of all clients, and so are all rows, with a warning, if
            ``clients`` is None. With ``scope="all"`` it is not used.

        Returns
        -------
        array-like of shape (n_samples, n_features_out)
            The transformed rows.

        Raises
        ------
        ValueError
            If ``clients`` has a wrong length or a missing value.
        """
        return self._apply("transform", X, clients)

    def get_metadata_routing(self) -> MetadataRequest:
        """Return the request for ``clients``: by fit, and with ``scope="client"`` by transform.

        Returns
        -------
        MetadataRequest
            The request.
        """
        request = super().get_metadata_routing()
        if self.scope == "all":
            for method in (request.transform, request.inverse_transform):
                if "clients" in method.requests:
                    method.add_request(param="clients", alias=UNUSED)
        return request

    def _checked(self, X: Any, clients: Any) -> Any:
        if self.scope == "client" and fitted_elsewhere():
            raise ValueError(
                f"{type(self).__name__}: scope='client' needs the rows of all clients in one "
                "process, as a simulation has them: use scope='all'."
            )
        return super()._checked(X, clients)

    def _fit_here(self, rows: Any, federation: Federation) -> None:
        super()._fit_here(rows, federation)
        for name in ("clients_", "by_client_"):
            if hasattr(self, name):  # of an earlier fit
                delattr(self, name)
        if self.scope == "client":
            self._fit_clients(rows, federation)

    def _fit_clients(self, rows: np.ndarray, federation: Federation) -> None:
        """Fit scikit-learn's transformer to each client's rows, in the columns with values."""
        known = [n for n in self._attributes_by_client if getattr(self, n) is not None]
        values = {n: np.tile(getattr(self, n), (len(federation), 1)) for n in known}
        plain = self._plain()
        for k in range(len(federation)):
            own = rows[federation.rows(k)]
            columns = np.flatnonzero(~self._is_missing(own).all(axis=0) & self._may_differ())
            if len(columns):
                plain.fit(np.ascontiguousarray(own[:, columns]))
                for name in known:
                    values[name][k, columns] = getattr(plain, name)
        self.clients_ = federation.ids
        self.by_client_ = values

    def _is_missing(self, rows: np.ndarray) -> np.ndarray:
        """Return which values are missing."""
        return np.isnan(rows)

    def _may_differ(self) -> np.ndarray:
        """Return for which columns clients may have statistics of their own."""
        return np.ones(self.n_features_in_, dtype=bool)

    def _plain(self, **attributes: Any) -> Any:
        """Return scikit-learn's transformer of the same parameters, with some attributes."""
        order = type(self).__mro__
        transformer: Any = order[order.index(BaseFederatedTransformer) + 1]
        plain = transformer(**{n: getattr(self, n) for n in transformer._get_param_names()})
        vars(plain).update(attributes)
        return plain.set_output(transform="default")

    def _apply(self, method: str, X: Any, clients: Any, **params: Any) -> Any:
        """Call a method of scikit-learn's transformer, with each client's statistics."""
        check_is_fitted(self)
        if self.scope == "all" or clients is None:
            if self.scope == "client" and len(self.clients_) > 1:
                warn(
                    f"{type(self).__name__}: scope='client', but clients was not given, so all "
                    "rows are transformed by the statistics of all clients: pass clients=, the id "
                    "of each row's client."
                )
            return getattr(super(BaseFederatedTransformer, self), method)(X, **params)
        X = X if hasattr(X, "shape") else np.asarray(X, dtype=object)
        if not len(X):  # refused as by scikit-learn
            return getattr(super(BaseFederatedTransformer, self), method)(X, **params)
        federation = make_federation(clients, len(X))
        fitted = {n: v for n, v in vars(self).items() if n.endswith("_") or n.startswith("_")}
        fitted.pop("_sklearn_output_config", None)
        parts = []
        for k, seen in enumerate(find_ids(self.clients_, federation.ids).tolist()):
            own = {n: v[seen] for n, v in self.by_client_.items()} if seen >= 0 else {}
            rows = safe_indexing(X, federation.rows(k))
            parts.append(getattr(self._plain(**fitted | own), method)(rows, **params))
        together = np.concatenate(parts)
        result = np.empty_like(together)
        result[federation.order] = together
        return result


class ScopedScaler(ScopedTransformer):
    """Base class of scalers with ``scope``."""

    __metadata_request__inverse_transform = {"clients": True}

    def inverse_transform(self, X, *, clients=None):
        """Return rows before they were scaled; with ``scope="client"`` each client's by its own.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Scaled rows.
        clients : array-like of shape (n_samples,), default=None
            The id of the client that holds each row, as in ``transform``.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            The rows.
        """
        return self._apply("inverse_transform", X, clients)

"""What both encoders share: scikit-learn's encoder is fitted to the categories of all clients."""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from skfed._federation import make_federation
from skfed.preprocessing._base import (
    BaseFederatedTransformer,
    Exchanges,
    SuppressingTransformer,
    place,
)
from skfed.preprocessing._values import Values, client_values, merge_values
from skfed.utils._sklearn import encoder_columns


class _RefusedError(Exception):
    """scikit-learn's encoder refused the categories of all clients."""

    def __init__(self, error: TypeError | ValueError):
        super().__init__(str(error))
        self.error = error


class FederatedEncoder(SuppressingTransformer):
    """Base class of encoders; each client sends its categories, and counts where they matter.

    The server fits scikit-learn's encoder to rows that have each column's categories, as often as
    all clients have them where ``min_frequency`` or ``max_categories`` is given.
    """

    def fit(self, X, y=None, clients=None):
        """Fit the encoder to the categories of all clients.

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
            The fitted encoder.

        Raises
        ------
        TypeError, ValueError
            If scikit-learn's encoder refuses the rows; the message names the column and the client.
        """
        try:
            super().fit(X, y, clients=clients)
        except _RefusedError as refused:
            where = self._place_of_refusal(X, clients)
            raise type(refused.error)(f"{refused.error} {where}") from refused.error
        validate_data(self, X, reset=True, skip_check_array=True)  # the names of X's columns
        return self

    def validate_rows(self, X):
        """Return the columns, each of a dtype of its own."""
        return encoder_columns(self, X)

    def take_rows(self, rows, indices):
        """Return some of the rows of each column."""
        return [column[indices] for column in rows]

    def client_statistics(self, data, request):
        """Return each column's categories, and how many rows have each if that matters."""
        sent = client_values(data, self.min_count)
        return sent if self._needs_counts() else {k: v for k, v in sent.items() if k != "counts"}

    def merge(self, statistics):
        """Return the categories of all clients, column by column."""
        suppressed = any(s.get("suppressed", False) for s in statistics)
        return {"values": merge_values(statistics), "suppressed": suppressed}

    def exchanges(self) -> Exchanges:
        """Ask for categories once."""
        merged = yield {}
        known = [column.take(column.holders >= self.min_holders) for column in merged["values"]]
        for j, column in enumerate(known):
            if not len(column.values):
                raise ValueError(
                    f"column {self.column_name(j)!r}: min_count={self.min_count} and "
                    f"min_holders={self.min_holders} suppress all of its categories. Lower them, "
                    "or leave the column out."
                )
        pairs = zip(known, merged["values"], strict=True)
        by_server = any(len(left.values) < len(column.values) for left, column in pairs)
        if self._needs_counts() and (by_server or merged["suppressed"]):
            raise ValueError(
                "min_count and min_holders suppress categories, so that the counts which "
                "min_frequency and max_categories need are not known: pass either these or those."
            )
        self._fit_to(known)
        return by_server

    def _needs_counts(self) -> bool:
        return self.min_frequency is not None or self.max_categories is not None

    def _fit_to(self, columns: list[Values]) -> None:
        """Fit scikit-learn's encoder to as few rows as have what it needs."""
        if self._needs_counts():
            values = [np.repeat(column.values, column.counts) for column in columns]
        else:
            n = max(len(column.values) for column in columns)
            values = [np.resize(column.values, n) for column in columns]
        try:
            super(BaseFederatedTransformer, self).fit(_table(values))
        except (TypeError, ValueError) as error:
            raise _RefusedError(error) from error

    def _place_of_refusal(self, X: Any, clients: Any) -> str:
        """Return the column, and the first client with which it is refused, if there is one."""
        columns = encoder_columns(self, X)
        n = len(columns[0])
        federation = make_federation(np.zeros(n, int) if clients is None else clients, n)
        for j, column in enumerate(columns):
            for k in range(len(federation)):
                so_far = federation.order[: federation.offsets[k + 1]]
                if self._refuses(column[so_far], j):
                    client = None if clients is None else federation.names([k])[0]
                    return place(self.column_name(j), client)
        return "It is in no one column."

    def _refuses(self, column: np.ndarray, j: int) -> bool:
        """Tell whether scikit-learn's encoder refuses some rows of column ``j``."""
        encoder = clone(self)
        if self.categories != "auto":
            encoder.set_params(categories=[self.categories[j]])
        try:
            super(BaseFederatedTransformer, encoder).fit(_table([column]))
        except (TypeError, ValueError):
            return True
        return False


def _table(columns: list[np.ndarray]) -> Any:
    """Return an array of columns of one dtype, or a DataFrame of several."""
    if len({column.dtype for column in columns}) == 1:
        return np.stack(columns, axis=1)
    return pd.DataFrame({j: pd.Series(c, dtype=c.dtype) for j, c in enumerate(columns)})

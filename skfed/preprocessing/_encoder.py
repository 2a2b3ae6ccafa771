"""What both encoders share: scikit-learn's encoder is fitted to the categories of all clients."""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from skfed._federation import make_federation
from skfed.preprocessing._base import (
    BaseFederatedTransformer,
    Requests,
    SuppressingTransformer,
    place,
    rows_are_made_up,
    with_place,
)
from skfed.preprocessing._values import check_values, client_values, kinds_of, merge_values
from skfed.utils._sklearn import check_unknown, encoder_columns

_NO_ONE_COLUMN = "It is in no one column."


class _RefusedError(Exception):
    """scikit-learn's encoder refused the categories of all clients."""

    def __init__(self, error: TypeError | ValueError, columns: list[np.ndarray]):
        super().__init__(str(error))
        self.error, self.columns = error, columns


class FederatedEncoder(SuppressingTransformer):
    """Base class of encoders; each client sends its categories, and counts where they matter.

    The server fits scikit-learn's encoder to rows that have each column's categories, as often as
    all clients have them where ``min_frequency`` or ``max_categories`` is given. Categories that
    are parameters are not sent, and not suppressed.
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
            if rows_are_made_up():
                where = self._column_of_refusal(X, refused.columns)
            else:
                where = self._place_of_refusal(X, clients)
            raise with_place(refused.error, where) from refused.error
        validate_data(self, X, reset=True, skip_check_array=True)  # the names of X's columns
        return self

    def fit_transform(self, X, y=None, clients=None):
        """Fit the encoder, and transform the rows that it is fitted on.

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
            The encoded rows.
        """
        self.fit(X, y, clients=clients)
        return self.transform(self._row_of_categories() if rows_are_made_up() else X)

    def transform(self, X):
        """Encode rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array-like of shape (n_samples, n_features_out)
            The encoded rows.

        Raises
        ------
        ValueError
            With ``handle_unknown="error"``, if a category was not in fit, or was suppressed there.
        """
        try:
            return super(BaseFederatedTransformer, self).transform(X)
        except ValueError as error:
            if "Found unknown categories" not in str(error) or not self._has_suppressed():
                raise
            raise ValueError(
                f"{error}. min_count={self.min_count} and min_holders={self.min_holders} suppress "
                "rare categories, which are then unknown: lower them, or pass a handle_unknown "
                "other than 'error'."
            ) from error

    def validate_rows(self, X):
        """Return the columns, each of a dtype of its own."""
        return encoder_columns(self, X)

    def take_rows(self, rows, indices):
        """Return some of the rows of each column."""
        return [column[indices] for column in rows]

    def client_statistics(self, data, request):
        """Return each column's categories, and how many rows have each if that matters.

        Of given categories only counts are sent, if they matter; all others are counted as one.
        """
        if self._are_given(data):
            data = [self._known(column, j) for j, column in enumerate(data)]
            if not self._needs_counts():
                return {"values": [column[:0] for column in data]}  # of each the dtype
        least = 1 if rows_are_made_up() else self.min_count
        sent = client_values(data, least, self.column_name)
        return sent if self._needs_counts() else {k: v for k, v in sent.items() if k != "counts"}

    def check_statistics(self, statistics, example, n_samples):
        """Raise a ValueError if they are not categories of so many rows, or of another kind."""
        check_values(statistics, np.full(len(example["values"]), n_samples))
        if self._needs_counts() and np.any(statistics.get("suppressed", False)):
            raise ValueError(
                "it has suppressed categories, whose counts min_frequency and max_categories need."
            )
        are_given = self._are_given(example["values"])
        for j, pair in enumerate(zip(statistics["values"], example["values"], strict=True)):
            if are_given:
                valid = self._are_known(pair[0], j)
            else:
                valid = pair[0].dtype != object or len(kinds_of(*pair)) < 2
            if not valid:
                raise ValueError(
                    f"its categories of column {self.column_name(j)!r} are of another kind, or not "
                    "among the given ones."
                )

    def merge(self, statistics):
        """Return the categories of all clients, column by column."""
        suppressed = any(s.get("suppressed", False) for s in statistics)
        return {"values": merge_values(statistics), "suppressed": suppressed}

    def exchanges(self) -> Requests:
        """Ask for categories once."""
        merged = yield {}
        if self._are_given(merged["values"]) and not self._needs_counts():
            dtypes = [column.values.dtype for column in merged["values"]]
            columns = [self._given(j, dtype) for j, dtype in enumerate(dtypes)]
            n = max(map(len, columns))
            self._fit_to([np.resize(column, n) for column in columns])
            return False
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
        if self._needs_counts():
            self._fit_to([np.repeat(column.values, column.counts) for column in known])
        else:
            n = max(len(column.values) for column in known)
            self._fit_to([np.resize(column.values, n) for column in known])
        return by_server

    def _are_given(self, columns: list) -> bool:
        return not isinstance(self.categories, str) and len(self.categories) == len(columns)

    def _given(self, j: int, dtype: np.dtype) -> np.ndarray:
        """Return the given categories of column ``j``, of scikit-learn's dtype."""
        return np.array(self.categories[j], dtype=object if dtype.kind in "US" else dtype)

    def _known(self, column: np.ndarray, j: int) -> np.ndarray:
        """Return a column in which all values that are not given are one; raise if none may be."""
        given = self._given(j, column.dtype)
        others, is_given = check_unknown(column, given, return_mask=True)
        if not len(others):
            return column
        if self.handle_unknown == "error" and not rows_are_made_up():
            message = f"Found unknown categories {others} in column {j} during fit"
            raise _RefusedError(ValueError(message), [])
        one = next(value for value in range(len(given) + 1) if value not in given)
        if column.dtype.kind in "USO":
            return np.where(is_given, column.astype(object), f"not among the categories: {one}")
        return np.where(is_given, column, column.dtype.type(one))

    def _are_known(self, values: np.ndarray, j: int) -> bool:
        """Tell whether values are given, but for one that stands for all others."""
        others = check_unknown(values, self._given(j, values.dtype))
        known = len(others) <= (self.handle_unknown != "error")
        return known and (self._needs_counts() or not len(values))

    def _has_suppressed(self) -> bool:
        """Tell whether categories were left out in fit, or, without its table, may have been."""
        if not hasattr(self, "exchange_"):  # clients of Flower do not get it
            return self.min_count > 1 or self.min_holders > 1
        return bool((self.exchange_["result"] == "suppressed").any())

    def _needs_counts(self) -> bool:
        return self.min_frequency is not None or self.max_categories is not None

    def _fit_to(self, columns: list[np.ndarray]) -> None:
        """Fit scikit-learn's encoder to rows that have what it needs."""
        try:
            super(BaseFederatedTransformer, self).fit(_table(columns))
        except (TypeError, ValueError) as error:
            raise _RefusedError(error, columns) from error

    def _row_of_categories(self) -> Any:
        """Return a row that the encoder knows, which a made-up one need not be."""
        row = _table([categories[:1] for categories in self.categories_])
        names = getattr(self, "feature_names_in_", None)
        return row if names is None else pd.DataFrame(row).set_axis(names, axis=1)

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
        return _NO_ONE_COLUMN

    def _column_of_refusal(self, X: Any, columns: list[np.ndarray]) -> str:
        """Return the first of the columns that is refused alone; X has their names."""
        encoder_columns(self, X)
        for j, column in enumerate(columns):
            if self._refuses(column, j):
                return place(self.column_name(j), None)
        return _NO_ONE_COLUMN

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

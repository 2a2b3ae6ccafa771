"""SimpleImputer, fitted from each client's means, counts or frequent values."""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.impute import SimpleImputer

from skfed.preprocessing._base import Exchanges, Statistics, SuppressingTransformer
from skfed.preprocessing._moments import means, merge_means
from skfed.preprocessing._quantiles import (
    check_enough,
    client_counts,
    merge_counts,
    neighbours,
    sorted_columns,
)
from skfed.preprocessing._values import client_values, merge_values
from skfed.utils._sklearn import StrOptions, get_mask, imputer_rows


class FederatedSimpleImputer(SuppressingTransformer, SimpleImputer):
    """Fill missing values by statistics over all clients' rows, which stay with them.

    Each client sends how many of its values are missing, and: ``"mean"``, the number and mean of
    the others; ``"median"``, counts up to edges that the server asks for, in at most 18 exchanges;
    ``"most_frequent"``, its values and their counts; ``"constant"``, nothing more. The fitted
    attributes are those of :class:`sklearn.impute.SimpleImputer` on the pooled rows: means up to
    rounding, the others exactly.

    Parameters
    ----------
    missing_values : int, float, str, np.nan, None or pandas.NA, default=np.nan
        As in scikit-learn.
    strategy : {"mean", "median", "most_frequent", "constant"}, default="mean"
        As in scikit-learn, callables excepted.
    fill_value : str or numerical value, default=None
        As in scikit-learn.
    copy : bool, default=True
        As in scikit-learn.
    add_indicator, keep_empty_features : bool, default=False
        As in scikit-learn.
    priority : collection or mapping of client ids, default=None
        Whose statistics count, as in :class:`FederatedStandardScaler`.
    min_count, min_holders : int, default=1
        For ``"most_frequent"``, a client sends only values of so many of its rows, and the server
        takes only values that so many clients sent. For ``"median"``, as in
        :class:`FederatedRobustScaler`.

    Attributes
    ----------
    statistics_, indicator_, n_features_in_, feature_names_in_
        As in scikit-learn.
    exchange_ : DataFrame
        A row for each exchange and client; see :mod:`skfed.preprocessing`.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.preprocessing import FederatedSimpleImputer
    >>> X, clients = [[1.0], [np.nan], [5.0]], ["a", "a", "b"]
    >>> imputer = FederatedSimpleImputer().fit(X, clients=clients)
    >>> imputer.transform(X).ravel()
    array([1., 3., 5.])
    """

    _parameter_constraints = {
        **SimpleImputer._parameter_constraints,
        **SuppressingTransformer._suppression_constraints,
        "strategy": [StrOptions({"mean", "median", "most_frequent", "constant"})],
        "priority": "no_validation",
    }

    def __init__(
        self,
        *,
        missing_values=np.nan,
        strategy="mean",
        fill_value=None,
        copy=True,
        add_indicator=False,
        keep_empty_features=False,
        priority=None,
        min_count=1,
        min_holders=1,
    ):
        super().__init__(
            missing_values=missing_values,
            strategy=strategy,
            fill_value=fill_value,
            copy=copy,
            add_indicator=add_indicator,
            keep_empty_features=keep_empty_features,
        )
        self.priority = priority
        self.min_count = min_count
        self.min_holders = min_holders

    def validate_rows(self, X):
        """Return the rows as scikit-learn's imputer sees them, and check the parameters."""
        suppresses = self.min_count > 1 or self.min_holders > 1
        if suppresses and self.strategy in ("mean", "constant"):
            raise ValueError(
                f"min_count={self.min_count} and min_holders={self.min_holders} suppress values of "
                f"rows, which strategy={self.strategy!r} does not send: leave them out."
            )
        return imputer_rows(self, X)

    def prepare(self, rows):
        """Return which values are missing, and the others as the strategy needs them."""
        missing = get_mask(rows, self.missing_values)
        present: Any = None
        if self.strategy in ("mean", "median"):
            is_nan = pd.isna(self.missing_values)
            present = rows if is_nan else np.where(missing, rows.dtype.type(np.nan), rows)
            present = sorted_columns(present) if self.strategy == "median" else present
        elif self.strategy == "most_frequent":
            present = [c[~m] for c, m in zip(rows.T, missing.T, strict=True)]
        return missing, present

    def client_statistics(self, data, request):
        """Return numbers of rows and of missing values, and what the strategy needs."""
        missing, present = data
        if self.strategy == "median" and request:
            return client_counts(present, request)
        sent = {"rows": np.array([len(missing)]), "missing": missing.sum(axis=0)}
        if self.strategy == "mean":
            sent |= means(present)
        elif self.strategy == "median":
            sent |= client_counts(present, request)
        elif self.strategy == "most_frequent":
            sent |= client_values(present, self.min_count)
        return sent

    def merge(self, statistics):
        """Return numbers of missing values, and the statistics of all clients' rows."""
        if "rows" not in statistics[0]:
            return merge_counts(statistics)
        rows, missing = (np.stack([s[key] for s in statistics]) for key in ("rows", "missing"))
        merged: Statistics = {"rows": rows.sum(), "missing": missing.sum(axis=0)}
        if self.strategy == "mean":
            merged |= merge_means(statistics)
        elif self.strategy == "median":
            merged |= merge_counts(statistics)
        elif self.strategy == "most_frequent":
            merged["values"] = merge_values(statistics)
        return merged

    def exchanges(self) -> Exchanges:
        """Ask for numbers of missing values and statistics, for a median then for counts."""
        merged = yield {}
        empty = merged["missing"] == merged["rows"]
        suppressed = False
        fills = np.empty(len(empty))
        if self.strategy == "mean":
            fills = merged["mean"]
        elif self.strategy == "median":
            check_enough(self, merged)
            low, high, _, suppressed = yield from neighbours(
                merged["n"], [0.5], self._fit_dtype, self.min_count, self.min_holders
            )
            fills = np.mean([low, high], axis=0)[:, 0]
        elif self.strategy == "most_frequent":
            fills, suppressed = self._most_frequent(merged["values"], empty)
        self._fit_to_masks(merged["missing"] > 0, empty)
        if self.strategy != "constant":
            self.statistics_[~empty] = fills[~empty]
        return suppressed

    def _most_frequent(self, columns: list, empty: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return each column's most frequent value, the smallest of several."""
        fills = np.empty(len(columns), dtype=object)
        suppressed = False
        for j, column in enumerate(columns):
            known = column.take(column.holders >= self.min_holders)
            suppressed |= len(known.values) < len(column.values)
            if len(known.values):
                most = known.values[known.counts == known.counts.max()]
                fills[j] = _smallest(most.tolist())
            elif not empty[j]:
                raise ValueError(
                    f"column {self.column_name(j)!r}: min_count={self.min_count} and "
                    f"min_holders={self.min_holders} suppress all of its values. Lower them, or "
                    "take another strategy for it."
                )
        return fills, suppressed

    def _fit_to_masks(self, some_missing: np.ndarray, empty: np.ndarray) -> None:
        """Fit scikit-learn's imputer to two rows in which the same columns lack values."""
        missing: Any = self.missing_values
        present = 1 if not pd.isna(missing) and missing == 0 else 0
        rows = np.full((2, len(empty)), present, dtype=self._fit_dtype)
        if some_missing.any():
            is_nan = self._fit_dtype.kind == "f" and pd.isna(self.missing_values)
            rows[0, some_missing] = rows[:, empty] = np.nan if is_nan else self.missing_values
        names = getattr(self, "feature_names_in_", None)
        SimpleImputer.fit(self, rows)
        if names is not None:
            self.feature_names_in_ = names


def _smallest(values: list) -> Any:
    """Return the smallest value, or that of the first type name and text if they have no order."""
    try:
        return min(values)
    except TypeError:
        return min(values, key=lambda value: (str(type(value)), str(value)))

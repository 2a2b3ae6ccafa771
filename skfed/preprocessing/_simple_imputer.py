"""SimpleImputer, fitted from each client's means, counts or frequent values."""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.impute import SimpleImputer

from skfed.preprocessing._base import Requests, SuppressingTransformer
from skfed.preprocessing._moments import check_counts, check_sums, means, merge_means
from skfed.preprocessing._private import (
    PrivateTransformer,
    average_rows,
    merge_averages,
    moments_of_averages,
    sums_of_powers,
)
from skfed.preprocessing._quantiles import (
    check_agreement,
    check_client_counts,
    check_enough,
    client_counts,
    merge_counts,
    neighbours,
    sorted_columns,
)
from skfed.preprocessing._scope import ScopedTransformer
from skfed.preprocessing._values import check_values, client_values, merge_values
from skfed.utils._sklearn import StrOptions, get_mask, imputer_rows


class FederatedSimpleImputer(
    SuppressingTransformer, PrivateTransformer, ScopedTransformer, SimpleImputer
):
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
    scope : {"all", "client"}, default="all"
        Whose statistics fill a row: those of all clients (of the priority clients, if any are
        named), or those of the row's own client, as in :class:`FederatedStandardScaler`.
    min_count, min_holders : int, default=1
        For ``"most_frequent"``, a client sends only values of so many of its rows, and the server
        takes only values that so many clients sent. For ``"median"``, as in
        :class:`FederatedRobustScaler`.
    privacy : GaussianMechanism, default=None
        Clips what each client sends and adds noise to it, which makes it private with respect to
        all of the client's data, except for the number of its rows
        (:func:`skfed.privacy.privacy_spent`); needs ``bounds`` and ``strategy="mean"``.
    bounds : (lowest, highest), each a number or array-like of shape (n_features,), default=None
        Bounds of the columns, to which values are clipped before they are summed; for ``privacy``.
    random_state : int, RandomState instance or None, default=None
        The seed of the noise. Steps of the same seed do not share noise: it depends also on what is
        sent.

    Attributes
    ----------
    statistics_, indicator_, n_features_in_, feature_names_in_
        As in scikit-learn.
    clients_ : ndarray of shape (n_clients,)
        The ids of the clients; with ``scope="client"`` only.
    by_client_ : dict of ndarray of shape (n_clients, n_features)
        With ``scope="client"`` only: by name, each client's own ``statistics_``.
    exchange_ : DataFrame
        A row for each exchange and client; see :mod:`skfed.preprocessing`.

    See Also
    --------
    sklearn.impute.SimpleImputer : The same on rows that are in one place.

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
        **ScopedTransformer._scope_constraints,
        **PrivateTransformer._privacy_constraints,
        "strategy": [StrOptions({"mean", "median", "most_frequent", "constant"})],
        "priority": "no_validation",
    }
    _attributes_by_client = ("statistics_",)

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
        scope="all",
        min_count=1,
        min_holders=1,
        privacy=None,
        bounds=None,
        random_state=None,
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
        self.scope = scope
        self.min_count = min_count
        self.min_holders = min_holders
        self.privacy = privacy
        self.bounds = bounds
        self.random_state = random_state

    def validate_rows(self, X):
        """Return the rows as scikit-learn's imputer sees them, and check the parameters."""
        suppresses = self.min_count > 1 or self.min_holders > 1
        if suppresses and self.strategy in ("mean", "constant"):
            raise ValueError(
                f"min_count={self.min_count} and min_holders={self.min_holders} suppress values of "
                f"rows, which strategy={self.strategy!r} does not send: leave them out."
            )
        if self.privacy is not None and (self.strategy != "mean" or self.add_indicator):
            what = f"strategy={self.strategy!r}" if self.strategy != "mean" else "add_indicator"
            raise ValueError(
                f"privacy covers the sums of strategy='mean' only: {what} needs values of rows, or "
                "which columns lack some. Leave privacy out, or take strategy='mean' without it."
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
        if self.privacy is not None:
            sums = [sums_of_powers(block, 1) for block in self.scaled_blocks(present)]
            return average_rows(sums, len(present))
        if self.strategy == "median" and request:
            return client_counts(present, request)
        sent = {"rows": np.array([len(missing)]), "missing": missing.sum(axis=0)}
        if self.strategy == "mean":
            sent |= means(present)
        elif self.strategy == "median":
            sent |= client_counts(present, request)
        elif self.strategy == "most_frequent":
            sent |= client_values(present, self.min_count, self.column_name)
        return sent

    def check_statistics(self, statistics, example, n_samples):
        """Raise a ValueError if they are not those of so many rows."""
        if "rows" in statistics:
            rows, missing = statistics["rows"], statistics["missing"]
            check_counts("missing", missing, n_samples)
            present = n_samples - missing
            if rows[0] != n_samples or (statistics.get("n", present) != present).any():
                raise ValueError("its rows, or those without a value, are not as many.")
        if "mean" in statistics:
            check_sums(statistics, n_samples)
        elif "values" in statistics:
            check_values(statistics, present)
        elif "n" in statistics or "counts" in statistics:
            check_client_counts(statistics, n_samples)

    def check_exchanges(self, exchanges):
        """Raise a ValueError if counts, for a median, are not of the same values."""
        if self.strategy == "median":
            check_agreement(exchanges)

    def merge(self, statistics):
        """Return numbers of missing values, and the statistics of all clients' rows."""
        if self.privacy is not None:
            merged = merge_averages(statistics)
            middle, half = self.scale_of_bounds()
            (mean,) = moments_of_averages(merged, self.n_features_in_)
            # Noisy numbers of missing values do not tell which columns lack all.
            return {"rows": merged["n"], "missing": 0 * mean, "mean": middle + half * mean}
        if "rows" not in statistics[0]:
            return merge_counts(statistics, self.min_holders)
        rows, missing = (np.stack([s[key] for s in statistics]) for key in ("rows", "missing"))
        merged = {"rows": rows.sum(), "missing": missing.sum(axis=0)}
        if self.strategy == "mean":
            merged |= merge_means(statistics)
        elif self.strategy == "median":
            merged |= merge_counts(statistics, self.min_holders)
        elif self.strategy == "most_frequent":
            merged["values"] = merge_values(statistics)
        return merged

    def exchanges(self) -> Requests:
        """Ask for numbers of missing values and statistics, for a median then for counts."""
        merged = yield {}
        empty = merged["missing"] == merged["rows"]
        suppressed = False
        fills = np.empty(len(empty))
        if self.strategy == "mean":
            fills = merged["mean"]
        elif self.strategy == "median":
            check_enough(self, merged)
            low, high, _, errors = yield from neighbours(
                merged["n"], [0.5], self._fit_dtype, self.min_count, self.min_holders
            )
            suppressed = not np.isnan(errors).all()
            fills = np.mean([low, high], axis=0)[:, 0]
        elif self.strategy == "most_frequent":
            fills, suppressed = self._most_frequent(merged["values"], empty)
        self._fit_to_masks(merged["missing"] > 0, empty)
        if self.strategy != "constant":
            self.statistics_[~empty] = fills[~empty]
        return suppressed

    def _is_missing(self, rows: np.ndarray) -> np.ndarray:
        return get_mask(rows, self.missing_values)

    def _may_differ(self) -> np.ndarray:
        # A column without a statistic of all clients is left out, for every client.
        return ~np.asarray(pd.isna(self.statistics_))

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

"""The columns of clients' raw rows: their names and types, without values."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_numeric_dtype, pandas_dtype

from skfed.flower._messages import Refusal, abbreviated

_MAX_DTYPES, _MAX_DTYPE_NAME = 1_000, 200  # that a client may name
NUMBERS, TEXT, TIMES, BYTES = "numbers", "text", "times", "bytes"
MIXED, MISSING = "mixed values", "no values"
_CONTENTS = {
    "string": TEXT,
    "bytes": BYTES,
    "empty": MISSING,
    "mixed-integer-float": NUMBERS,
    **dict.fromkeys(["floating", "integer", "boolean", "decimal"], NUMBERS),
    **dict.fromkeys(["datetime64", "datetime", "date"], TIMES),
}
_EXAMPLES = {
    **{NUMBERS: 1, TEXT: "", TIMES: pd.Timestamp(0), BYTES: b""},
    **{MIXED: "", MISSING: np.nan},
}


@dataclass(frozen=True)
class Columns:
    """What a client says of the columns of X, and what all clients have in common."""

    names: tuple[str, ...] | None  # None: no column has a name
    is_frame: bool  # or else an array
    contents: tuple[str, ...]  # of each column; of an array of other than two dimensions, of all
    dtypes: tuple[str, ...]  # likewise
    shape: tuple[int, ...]  # of a row

    @classmethod
    def of(cls, X: Any) -> Self:
        """Describe the columns of X; a Refusal if it is neither a table nor an array."""
        is_frame = isinstance(X, pd.DataFrame)
        if not is_frame:
            X = np.asarray(X)
            if X.ndim < 2:
                raise Refusal(f"load_data returns X of {X.ndim} dimensions: return a table.")
        columns = _columns_of(X)
        names = X.columns.tolist() if is_frame else []
        return cls(
            names=tuple(names) if names and all(isinstance(one, str) for one in names) else None,
            is_frame=is_frame,
            contents=tuple(map(_content, columns)),
            dtypes=tuple(map(_dtype_name, columns)),
            shape=X.shape[1:],
        )

    @classmethod
    def received(cls, **values: Any) -> Self:
        """Check what a client says of its columns; a ValueError if it is not valid."""
        columns = cls(**values)
        n = columns.shape[0] if len(columns.shape) == 1 else 1
        valid = {
            "frame": isinstance(columns.is_frame, bool),
            "contents": set(columns.contents) <= _EXAMPLES.keys() and len(columns.contents) == n,
            "dtypes": len(columns.dtypes) == n
            and _are_dtypes(set(zip(columns.contents, columns.dtypes, strict=False))),
        }
        for name, is_valid in valid.items():
            if not is_valid:
                raise ValueError(f"its info has no valid {name} of columns.")
        return columns

    def mismatch(self, other: Self, owners: tuple[str, str]) -> str | None:
        """Describe a column in which the data of two clients differ in kind; None if none does."""
        kinds = [one.is_frame for one in (self, other)]
        if kinds[0] != kinds[1]:
            frame, array = owners if kinds[0] else owners[::-1]
            return f"{frame!r} has a DataFrame, {array!r} an array"
        for j, pair in enumerate(zip(self.contents, other.contents, strict=True)):
            if pair[0] != pair[1] and MISSING not in pair:
                found = " and ".join(f"{c} at {o!r}" for c, o in zip(pair, owners, strict=True))
                return f"column {self.name(j)!r} has {found}"
        return None

    def name(self, j: int) -> str | int:
        """Return the name of a column, or its number."""
        return j if self.names is None else self.names[j]

    def example(self) -> Any:
        """Return a made-up row: ones, empty texts."""
        values = [_EXAMPLES[one] for one in self.contents]
        if len(self.shape) > 1:
            return np.full((1, *self.shape), values[0], dtype=self.dtypes[0])
        columns = [pd.Series([v], dtype=d) for v, d in zip(values, self.dtypes, strict=True)]
        return self._assemble(columns)

    def cast(self, X: Any) -> Any:
        """Return a client's rows with these dtypes, as those of all clients together have them."""
        X = X if self.is_frame else np.asarray(X)
        if len(self.shape) > 1:
            return X.astype(self.dtypes[0], copy=False)
        return self._assemble(
            [_cast(one, dtype) for one, dtype in zip(_columns_of(X), self.dtypes, strict=True)]
        )

    def _assemble(self, columns: list[pd.Series]) -> Any:
        if self.is_frame:
            table = pd.concat(columns, axis=1)
            return table.set_axis(range(len(columns)) if self.names is None else self.names, axis=1)
        dtype = columns[0].dtype if len(set(self.dtypes)) == 1 else np.dtype(object)
        dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(str)
        return np.stack([column.to_numpy(dtype) for column in columns], axis=1)


def common_columns(of_clients: Collection[Columns]) -> Columns:
    """Return what columns of clients, none of which is a mismatch, have in common."""
    first = next(iter(of_clients))
    distinct = [*Counter((one.contents, one.dtypes) for one in of_clients)]
    contents, dtypes = [], []
    for j in range(len(first.contents)):
        pairs = dict.fromkeys((c[j], d[j]) for c, d in distinct)
        known = dict.fromkeys(c for c, _ in pairs if c != MISSING)
        contents.append(next(iter(known), MISSING))
        dtypes.append(_common_dtype(contents[-1], [*pairs]))
    return Columns(first.names, first.is_frame, tuple(contents), tuple(dtypes), first.shape)


def _common_dtype(content: str, pairs: list[tuple[str, str]]) -> str:
    """Return the dtype of a column over all clients; no values are missing numbers."""
    names = {dtype for _, dtype in pairs}
    if len(names) == 1 and content != MISSING:
        return names.pop()
    if content in (NUMBERS, MISSING):
        numeric = ["float64" if one == MISSING else dtype for one, dtype in pairs]
        return np.result_type(*map(np.dtype, numeric)).name
    return "object"


def _columns_of(X: Any) -> list[pd.Series]:
    """Return the columns of a table or an array of two dimensions; else one of all values."""
    if isinstance(X, pd.DataFrame):
        return [_plain(X.iloc[:, j]) for j in range(X.shape[1])]
    dtype = object if X.dtype.kind == "O" else None  # pandas 3 would take text for its own type
    columns = [X.ravel()] if X.ndim > 2 else list(X.T)
    return [pd.Series(column, dtype=dtype) for column in columns]


def _plain(column: pd.Series) -> pd.Series:
    """Return a column without categories and without pandas.NA, as scikit-learn sees it."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return pd.Series(np.asarray(column))
    if not isinstance(column.dtype, np.dtype) and is_numeric_dtype(column.dtype):
        dtype: Any = column.dtype
        number = np.dtype(dtype.numpy_dtype)
        if column.hasnans:
            number = np.result_type(number, np.float64)
            return pd.Series(column.astype(object).fillna(np.nan).to_numpy().astype(number))
        return pd.Series(column.to_numpy().astype(number))
    if isinstance(column.dtype, pd.StringDtype) and column.dtype.na_value is pd.NA:
        return pd.Series(column.to_numpy(dtype=object, na_value=np.nan))
    return column.reset_index(drop=True)


def _content(column: pd.Series) -> str:
    if column.isna().all():
        return MISSING
    if is_numeric_dtype(column.dtype):
        return NUMBERS
    return _CONTENTS.get(infer_dtype(column, skipna=True), MIXED)


def _dtype_name(column: pd.Series) -> str:
    return str(column.dtype)


def _are_dtypes(pairs: Collection[tuple[str, Any]]) -> bool:
    return len(pairs) <= _MAX_DTYPES and all(_is_dtype(*pair) for pair in pairs)


def _is_dtype(content: str, name: Any) -> bool:
    """Return whether a column of pandas with these contents may have a dtype of this name."""
    if not isinstance(name, str) or len(name) > _MAX_DTYPE_NAME:
        return False
    try:
        dtype = pandas_dtype(name)
    except (TypeError, ValueError):
        return False
    if not isinstance(dtype, np.dtype):
        return content != NUMBERS  # whose common dtype is NumPy's
    # Not texts of some length, which may take any memory: a column of them has objects.
    return dtype.kind in ("biufcO" if content == NUMBERS else "biufcOmM")


def _cast(column: pd.Series, dtype: str) -> pd.Series:
    return column if str(column.dtype) == dtype else column.astype(pandas_dtype(dtype))


def compare_names(mine: tuple[str, ...], other: tuple[str, ...]) -> str:
    """Describe how names of columns differ from another client's."""
    # In a set, as a client may have very many.
    pairs = ((other, frozenset(mine)), (mine, frozenset(other)))
    lacking, more = ([n for n in a if n not in b] for a, b in pairs)
    if lacking or more:
        parts = [f"lacks columns {abbreviated(lacking)}"] if lacking else []
        return " and ".join(parts + ([f"has more columns, {abbreviated(more)}"] if more else []))
    return f"has columns {abbreviated(mine)} in another order"


def describe(X: Any) -> dict[str, Any]:
    """Describe rows of X that a Pipeline is to transform."""
    raw = Columns.of(X)
    return {
        "shape": raw.shape,
        "columns": raw.names,
        "frame": raw.is_frame,
        "contents": raw.contents,
        "dtypes": raw.dtypes,
    }

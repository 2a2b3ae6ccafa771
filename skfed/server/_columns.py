"""Columns of validation data that are far from those of the training data, as unscaled ones are.

Without metadata routing, scikit-learn's Pipeline hands ``model__X_val`` to the model as it is, and
training data transformed. Only the values can tell. Clients differ, in means as in spreads, so that
more than one sign is asked for: many columns with most values far outside the range of X, some of
them with a larger spread, or nearly all columns with next to no spread.

Measured on scikit-learn's tables, Adult, WISDM, MNIST, Fashion-MNIST and Synthetic(1, 1): none of
2,009 splits at random (1 row to a half), by client, label and cluster, and by the order of a column
is told; nor a client held out where there are two others or more, unless it has a few rows of
Synthetic. Where X is scaled and ten rows or more of X_val are not, all is told but tables whose
columns were near unit scale to begin with (iris in four of five draws).
"""

import numpy as np

from skfed.utils._warnings import warn

_VALUES = 2**20  # of a sample
_MIN_ROWS = 30  # of X, below which its range says little
_MIN_SPREAD_ROWS = 10  # of X_val, likewise
_NAMED = 3


def warn_of_far_columns(X: np.ndarray, X_val: np.ndarray, names: np.ndarray | None) -> None:
    """Warn if columns of X_val are far from those of X."""
    step = -(-int(np.prod(X.shape[1:])) * 100 // _VALUES)
    train, val = _sampled(X, step), _sampled(X_val, step)
    far = far_columns(train, val)
    if not len(far):
        return
    said = [
        f"{_name(X, column * step, names)} (mean {val[:, column].mean():.3g} and standard "
        f"deviation {val[:, column].std():.3g}; in X {train[:, column].mean():.3g} and "
        f"{train[:, column].std():.3g})"
        for column in far[:_NAMED]
    ]
    if len(far) > _NAMED:
        said.append(f"and {len(far) - _NAMED} more")
    warn(
        f"X_val has columns that are far from those of X: {', '.join(said)}. If X has been "
        "transformed, X_val must be too, by the same steps: skfed.make_pipeline does it, and, with "
        "metadata routing on, scikit-learn's Pipeline with transform_input=['X_val']."
    )


@np.errstate(over="ignore", invalid="ignore")  # of values that are refused later
def far_columns(train: np.ndarray, val: np.ndarray) -> np.ndarray:
    """Return the numbers of the columns that are far, if they are too many for chance."""
    none = np.zeros(0, dtype=int)
    lower, upper = np.percentile(train, [25, 75], axis=0)
    varied = np.flatnonzero(lower < upper)  # rare values have a range that says nothing
    if len(train) < _MIN_ROWS or not len(varied):
        return none
    train, val = train[:, varied], val[:, varied]
    far = _outside(train, val)
    if far is None:
        far = _flat(train, val)
    return none if far is None else varied[far]


def _outside(train: np.ndarray, val: np.ndarray) -> np.ndarray | None:
    """Tell which columns are outside the range of X, if clients are not likely to differ so."""
    least, most, median = train.min(axis=0), train.max(axis=0), np.median(val, axis=0)
    ranges_away = np.maximum(least - median, median - most) / (most - least)
    far = ranges_away > 0.5
    if len(val) < _MIN_SPREAD_ROWS:
        sure = (ranges_away > 5).any()
    else:
        sure = (far & (val.std(axis=0) > 1.5 * train.std(axis=0))).any()
    enough = max(min(2, far.size), 0.1 * far.size)
    return far if sure and far.sum() >= enough else None


def _flat(train: np.ndarray, val: np.ndarray) -> np.ndarray | None:
    """Tell which columns are next to constant, near the mean of X, if nearly all are."""
    if len(val) < _MIN_SPREAD_ROWS or train.shape[1] < 3:
        return None
    spread, spread_val = train.std(axis=0), val.std(axis=0)
    near = np.abs(val.mean(axis=0) - train.mean(axis=0)) < spread
    far = near & (spread_val > 0) & (spread_val < spread / 10)
    return far if far.mean() > 0.8 else None


def _sampled(X: np.ndarray, step: int) -> np.ndarray:
    """Return some rows, of samples in one dimension every ``step``-th value."""
    n_rows = max(100, _VALUES // int(np.prod(X.shape[1:])))
    if len(X) > n_rows:
        # Drawn, since the rows of clients may alternate; no result depends on this stream.
        rows = np.random.default_rng(0).choice(len(X), n_rows, replace=False, shuffle=False)
        X = X[np.sort(rows)]
    return X.reshape(len(X), -1)[:, ::step].astype(np.float64)


def _name(X: np.ndarray, column: int, names: np.ndarray | None) -> str:
    if names is not None:
        return repr(names[column])
    index = np.unravel_index(column, X.shape[1:])
    return f"X_val[:, {', '.join(map(str, index))}]"

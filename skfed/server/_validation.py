"""Validation of the global model on held-out rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from skorch import NeuralNet

from skfed._input import TrainingData, priority_rows
from skfed._problem import Problem
from skfed.engines import evaluate
from skfed.nets import DictRows, Samples, arrays_of, cast, cast_samples
from skfed.server._state import ServerState
from skfed.utils._checks import naming
from skfed.utils._seeding import Purpose, stream
from skfed.utils._warnings import warn

_SAMPLE_SIZE = 2**20  # values of X that are looked at
_MIN_ROWS = 30  # of X, for its range
_MIN_SPREAD_ROWS = 10  # of X_val, for its standard deviation
_NAMED = 3  # columns in the warning


def is_due(t: int, every: int, n_rounds: int) -> bool:
    """Tell whether round t ends with a validation, unless it is the last because of a callback."""
    return (t + 1) % every == 0 or t + 1 == n_rounds


@dataclass(frozen=True)
class Validation:
    """Loss and score of a net on validation data."""

    server: ServerState  # with the seed of random layers
    rows: tuple[Samples, np.ndarray]  # X and y, as the net and its criterion take them
    problem: Problem
    owners: np.ndarray | None  # the index of each row's client; None: rows are of nobody
    names: Callable[[Iterable[int]], tuple]  # returns the ids of client indices
    every: int  # rounds from one validation to the next
    n_rounds: int  # the last has a validation

    def is_due(self, t: int) -> bool:
        """Tell whether round t ends with a validation."""
        return is_due(t, self.every, self.n_rounds)

    def after_round(self, net: NeuralNet, t: int, n_rows: int | None) -> dict[str, Any]:
        """Return columns of ``history_`` for round t; NaN and None if it has no validation.

        ``n_rows`` are those of a batch; see ``Evaluator.validation_rows``.
        """
        loss = score = float("nan")
        scores = np.empty(0)
        if self.is_due(t):
            rng = stream(self.server.seed, Purpose.EVALUATION_LAYERS, t)
            loss, outputs = evaluate(net, *self.rows, rng, n_rows)
            score = self.problem.score(outputs, self.rows[1])
            if self.owners is not None:
                scores = self.problem.client_scores(outputs, self.rows[1], self.owners)
        columns = {"val_loss": loss, "val_score": score}
        return columns if self.owners is None else columns | self._worst(scores)

    def _worst(self, scores: np.ndarray) -> dict[str, Any]:
        """Return the columns of the client with the lowest of the scores that are not NaN."""
        if np.isnan(scores).all():
            return {"val_score_worst": float("nan"), "val_worst": None}
        k = int(np.nanargmin(scores))
        return {"val_score_worst": float(scores[k]), "val_worst": self.names([k])[0]}

    def after_stop(self, net: NeuralNet, t: int, n_rows: int | None) -> dict[str, Any]:
        """Return the columns that round t lacks if a callback makes it the last."""
        if self.is_due(t):
            return {}
        return replace(self, n_rounds=t + 1).after_round(net, t, n_rows)


def make_validation(
    server: ServerState,
    problem: Problem,
    data: TrainingData,
    X_val: np.ndarray | DictRows,
    y_val: np.ndarray,
    clients_val: Any,
    *,
    names: np.ndarray | None,
    every: int,
    n_rounds: int,
) -> Validation:
    """Return the validation of a server's net on held-out rows; ``names`` are those of X's columns.

    ``y_val`` is encoded. With ``clients_val``, only the rows of priority clients count. There is a
    validation ``every`` so many of ``n_rounds`` rounds. A warning names columns that are far from
    those of the training data.
    """
    owners = rows = None
    _, cast_arrays = arrays_of(cast(server.net, X_val[:1]))
    keys, arrays = arrays_of(X_val)
    for i, one in enumerate(cast_arrays):
        if one.dtype.kind == "f":  # the integers of an embedding have no scale
            name = "X_val" if keys is None else f"X_val[{keys[i]!r}]"
            warn_of_far_columns(arrays_of(data.X)[1][i], arrays[i], names, name)
    if clients_val is not None:
        ids, priority = data.federation.ids, data.federation.priority
        rows, owners = priority_rows(clients_val, len(X_val), ids, priority, "clients_val")
        y_val = y_val[rows]
    with naming("X_val", "y_val"):
        samples = cast_samples(server.net, X_val, rows)
        y_val = problem.for_criterion(server.net, samples, y_val)
    ids_of = data.federation.names
    return Validation(server, (samples, y_val), problem, owners, ids_of, every, n_rounds)


def warn_of_far_columns(
    X: np.ndarray, X_val: np.ndarray, names: np.ndarray | None, name: str = "X_val"
) -> None:
    """Warn if columns of X_val are far from those of X, as columns are that were not scaled.

    Without metadata routing, scikit-learn's Pipeline passes ``model__X_val`` to the last step as it
    is, and X transformed. Only the values show it. Means and spreads differ between clients too, so
    a warning needs more than one sign: many columns with most values far outside the range of X,
    some of them with a larger spread; or nearly all columns with next to no spread.

    Measured on scikit-learn's tables, Adult, WISDM, MNIST, Fashion-MNIST and Synthetic(1, 1): no
    warning in 2,009 splits at random (1 row to a half), by client, label and cluster, and by the
    order of a column; nor for a client held out where there are two others or more, unless it has a
    few rows of Synthetic. Where X is scaled and ten rows or more of X_val are not, there is a
    warning for all but tables whose columns are near unit scale (iris in four of five draws).
    """
    step = -(-int(np.prod(X.shape[1:])) * 100 // _SAMPLE_SIZE)
    train, val = _sampled(X, step), _sampled(X_val, step)
    far = far_columns(train, val)
    if not len(far):
        return
    descriptions = [
        f"{_name(X, column * step, names, name)} (mean {val[:, column].mean():.3g} and standard "
        f"deviation {val[:, column].std():.3g}; in X {train[:, column].mean():.3g} and "
        f"{train[:, column].std():.3g})"
        for column in far[:_NAMED]
    ]
    if len(far) > _NAMED:
        descriptions.append(f"and {len(far) - _NAMED} more")
    warn(
        f"{name} has columns that are far from those of X: {', '.join(descriptions)}. If X has "
        "been transformed, X_val must be too, by the same steps: skfed.make_pipeline does it, and, "
        "with metadata routing on, scikit-learn's Pipeline with transform_input=['X_val']."
    )


@np.errstate(over="ignore", invalid="ignore")  # values too large are refused later
def far_columns(train: np.ndarray, val: np.ndarray) -> np.ndarray:
    """Return the indices of columns of ``val`` that are far from those of ``train``."""
    none = np.zeros(0, dtype=int)
    lower, upper = np.percentile(train, [25, 75], axis=0)
    varied = np.flatnonzero(lower < upper)  # the range of rare values means little
    if len(train) < _MIN_ROWS or not len(varied):
        return none
    train, val = train[:, varied], val[:, varied]
    far = _outside(train, val)
    if far is None:
        far = _flat(train, val)
    return none if far is None else varied[far]


def _outside(train: np.ndarray, val: np.ndarray) -> np.ndarray | None:
    """Return a mask of columns outside of the range of X; None if clients may differ so much."""
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
    """Return a mask of nearly constant columns near the mean of X; None unless nearly all are."""
    if len(val) < _MIN_SPREAD_ROWS or train.shape[1] < 3:
        return None
    spread, spread_val = train.std(axis=0), val.std(axis=0)
    near = np.abs(val.mean(axis=0) - train.mean(axis=0)) < spread
    far = near & (spread_val > 0) & (spread_val < spread / 10)
    return far if far.mean() > 0.8 else None


def _sampled(X: np.ndarray, step: int) -> np.ndarray:
    """Return rows drawn at random, flattened, with every ``step``-th value."""
    n_rows = max(100, _SAMPLE_SIZE // int(np.prod(X.shape[1:])))
    if len(X) > n_rows:
        # At random: clients' rows may alternate. No result depends on this stream.
        rows = np.random.default_rng(0).choice(len(X), n_rows, replace=False, shuffle=False)
        X = X[np.sort(rows)]
    return X.reshape(len(X), -1)[:, ::step].astype(np.float64)


def _name(X: np.ndarray, column: int, names: np.ndarray | None, name: str) -> str:
    if names is not None:
        return repr(names[column])
    index = np.unravel_index(column, X.shape[1:])
    return f"{name}[{', '.join([':', *map(str, index)])}]"

"""What a fit has cost until it reached a target."""

from numbers import Real

import numpy as np
import pandas as pd

from skfed.utils._checks import check_columns, validated
from skfed.utils._sklearn import Interval


@validated(
    history=[pd.DataFrame],
    column=[str],
    target=[Interval(Real, None, None, closed="neither")],
)
def cost_to(history: pd.DataFrame, column: str, target: float) -> pd.Series:
    """Return the rounds, bytes and simulated seconds until a column of a history reached a target.

    Parameters
    ----------
    history : DataFrame
        ``history_`` of a fitted model.
    column : str
        A column of numbers. It has reached the target in the first round in which it is at least
        as high, or, of ``objective`` and columns that end in "loss", at least as low.
    target : float
        The value to reach.

    Returns
    -------
    Series
        ``rounds``, that round included; ``bytes``, sent down and up in these rounds; and
        ``seconds``, what ``elapsed`` is then, NaN without devices. All are NaN where the target was
        not reached.

    Raises
    ------
    ValueError
        If the history has no such column, or it holds no numbers.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.metrics import cost_to
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(n_rounds=10, random_state=0)
    >>> history = model.fit(X, y, clients=y, X_val=X, y_val=y).history_
    >>> bool(cost_to(history, "val_score", 0.8)["rounds"] <= 10)
    True
    """
    check_columns(history, [column, "bytes_down", "bytes_up"], "history")
    if not pd.api.types.is_numeric_dtype(history[column]):
        raise ValueError(f"column={column!r} of history has no numbers: name another.")
    values = history[column].to_numpy(dtype=float)
    falls = column == "objective" or column.endswith("loss")
    reached = np.flatnonzero(values <= target if falls else values >= target)
    if not len(reached):
        return pd.Series({"rounds": np.nan, "bytes": np.nan, "seconds": np.nan})
    rounds = history.iloc[: reached[0] + 1]
    n_bytes = float(rounds["bytes_down"].sum() + rounds["bytes_up"].sum())
    seconds = float(rounds["elapsed"].iloc[-1]) if "elapsed" in rounds else np.nan
    return pd.Series({"rounds": float(len(rounds)), "bytes": n_bytes, "seconds": seconds})

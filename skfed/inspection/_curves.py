"""Curves of histories: one of one fit, the mean and the deviation of several."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

Histories = Mapping[str, Sequence[pd.DataFrame]]  # of the fits, by name


def common_column(histories: Histories) -> str:
    """Return the first of the usual columns that every history has enough finite values of."""
    fits = [history for group in histories.values() for history in group]
    for name in ("val_score", "objective", "train_loss"):
        # A default regressor's last round alone may have an objective: that is no curve.
        least = 2 if name == "objective" else 1
        known = (np.isfinite(history[name]).sum() if name in history else 0 for history in fits)
        if all(n >= min(least, len(history)) for n, history in zip(known, fits, strict=True)):
            return name
    raise ValueError("history_ holds no score or loss that is finite: name a column with y=.")


def check_columns(histories: Histories, x: str, y: Any) -> None:
    """Check that every history has what is drawn."""
    for name, group in histories.items():
        for i, history in enumerate(group):
            fit = repr(name) if len(group) == 1 else f"{name!r}[{i}]"
            _check_column(fit, history, y)
            if x == "elapsed" and x not in history:
                raise ValueError(
                    f"x='elapsed' is simulated or, over Flower, measured time, which {fit} has "
                    "none of: fit it with devices of skfed.devices, or draw by another x."
                )


def _check_column(fit: str, history: pd.DataFrame, y: Any) -> None:
    numbers = [c for c in history.select_dtypes("number") if np.isfinite(history[c]).any()]
    if not isinstance(y, str) or y not in numbers:
        hint = " It takes X_val and y_val in fit." if str(y).startswith("val_") else ""
        raise ValueError(f"y={y!r} is not in the history_ of {fit}.{hint} It has {numbers}.")


def make_curve(history: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Return columns ``x`` and ``y`` of the rounds that have a value."""
    curve = pd.DataFrame({"x": position(history, x), "y": history[y].astype(float)})
    return curve.loc[np.isfinite(curve.to_numpy()).all(axis=1)]


def position(history: pd.DataFrame, x: str) -> np.ndarray:
    """Return where the rounds are on the horizontal axis."""
    if x == "round":
        return history["round"].to_numpy() + 1
    if x == "bytes":
        return (history["bytes_down"] + history["bytes_up"]).cumsum().to_numpy() / 1e6
    if x == "elapsed":
        return history["elapsed"].to_numpy()
    return history["round_seconds"].cumsum().to_numpy()


def smoothed(curve: pd.DataFrame, n_rounds: int) -> pd.DataFrame:
    """Return the running mean of ``y``; the first values are means of fewer rounds."""
    return curve.assign(y=curve["y"].rolling(n_rounds, min_periods=1).mean())


def average(name: str, fits: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the mean of several curves and their sample standard deviation, ``spread``.

    Each fit counts with its line, interpolated between its rounds, where all fits have one.
    """
    start, end = max(f["x"].iloc[0] for f in fits), min(f["x"].iloc[-1] for f in fits)
    known = np.unique(np.concatenate([fit["x"] for fit in fits]))
    shared = known[(start <= known) & (known <= end)]
    if not len(shared):
        ranges = [f"{fit['x'].iloc[0]:g} to {fit['x'].iloc[-1]:g}" for fit in fits]
        raise ValueError(
            f"The fits of {name!r} have no x in common, so they have no mean: they have values at "
            f"{', '.join(ranges)}. Draw each by a name of its own."
        )
    values = np.array([np.interp(shared, fit["x"], fit["y"]) for fit in fits])
    spread = values.std(axis=0, ddof=1)
    return pd.DataFrame({"x": shared, "y": values.mean(axis=0), "spread": spread})

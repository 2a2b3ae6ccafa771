"""What the papers say, and whether it holds in a table of results."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

LAST = 10  # rounds that an accuracy or loss "in the end" is the mean of


@dataclass(frozen=True)
class Finding:
    """What a claim comes to in one setting."""

    measured: str
    verdict: str


@dataclass(frozen=True)
class Claim:
    """A statement of a paper about a figure that each seed gives.

    It holds when the mean over the seeds is at least as far as claimed, a standard error allowed;
    it holds partly when it is beyond ``neutral`` by more than a standard error. A ``strict`` claim,
    for which the paper gives a direction and no figure, holds when the mean is beyond ``claimed``
    by more than a standard error, and partly when it is beyond ``neutral``.

    Parameters
    ----------
    words : str
        The claim, in a few words.
    place : str
        Where the paper makes it.
    measure : callable
        Table of results to one figure a seed.
    claimed : float
        The paper's figure; 0 difference for a strict claim.
    neutral : float
        What the claim is against: no difference, or for a strict claim some difference too small
        to matter on the wrong side.
    strict : bool, default=False
        See above.
    form : str, default="{:.2f}"
        How figures are written.
    paper : str, default=None
        The paper's figure in words; None is ``claimed`` in that form.
    """

    words: str
    place: str
    measure: Callable[[pd.DataFrame], np.ndarray]
    claimed: float
    neutral: float
    strict: bool = False
    form: str = "{:.2f}"
    paper: str | None = None

    def check(self, table: pd.DataFrame) -> Finding:
        values = np.asarray(self.measure(table), float)
        if np.isnan(values).any():
            missed = f"not reached in {np.isnan(values).sum()} of {len(values)} runs"
            return Finding(missed, "does not hold")
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        measured = self.form.format(values.mean())
        if len(values) > 1:
            measured += f" ± {self.form.format(error).lstrip('+')}"
        side = 1 if self.claimed >= self.neutral else -1
        slack = -error if self.strict else error
        if side * (values.mean() - self.claimed) + slack >= 0:
            verdict = "holds"
        elif side * (values.mean() - self.neutral) > (0 if self.strict else error):
            verdict = "holds partly"
        else:
            verdict = "does not hold"
        return Finding(measured, verdict)

    @property
    def claimed_words(self) -> str:
        return self.form.format(self.claimed) if self.paper is None else self.paper


def of_seeds(table: pd.DataFrame, strategy: str, column: str) -> pd.DataFrame:
    """Return a column of one strategy, of shape (n_rounds, n_seeds)."""
    rows = table[table["strategy"] == strategy]
    return rows.pivot(index="round", columns="seed", values=column)


def rounds_to(
    table: pd.DataFrame, strategy: str, column: str, level: float, falling: bool = False
) -> np.ndarray:
    """Return after how many rounds each seed first reached a level; NaN if it never did."""
    values = of_seeds(table, strategy, column).dropna()
    reached = values <= level if falling else values >= level
    first = reached.idxmax().to_numpy(float) + 1
    return np.where(reached.any(), first, np.nan)


def in_the_end(table: pd.DataFrame, strategy: str, column: str) -> np.ndarray:
    """Return each seed's mean over the last measurements."""
    return of_seeds(table, strategy, column).dropna().tail(LAST).mean().to_numpy()


def over(table: pd.DataFrame, strategy: str, column: str, first: float, last: float) -> np.ndarray:
    """Return each seed's mean over a span of rounds, given as shares of all rounds."""
    values = of_seeds(table, strategy, column)
    return values.iloc[int(first * len(values)) : int(last * len(values))].mean().to_numpy()


def ratio_to(
    strategy: str, than: str, column: str, level: float, falling: bool = False
) -> Callable[[pd.DataFrame], np.ndarray]:
    """Measure the rounds that a strategy needs to a level, as a share of another's.

    Where the other never gets there, all its rounds count.
    """

    def measure(table: pd.DataFrame) -> np.ndarray:
        others = rounds_to(table, than, column, level, falling)
        others[np.isnan(others)] = table["round"].max() + 1
        return rounds_to(table, strategy, column, level, falling) / others

    return measure


def gain_in_the_end(
    strategy: str, than: str, column: str, scale: float = 1.0
) -> Callable[[pd.DataFrame], np.ndarray]:
    """Measure the difference of two strategies in the end."""
    return lambda table: (
        scale * (in_the_end(table, strategy, column) - in_the_end(table, than, column))
    )


def gain_over(
    strategy: str, than: str, column: str, first: float, last: float, scale: float = 1.0
) -> Callable[[pd.DataFrame], np.ndarray]:
    """Measure the difference of two strategies over a span of rounds."""
    return lambda table: (
        scale
        * (over(table, strategy, column, first, last) - over(table, than, column, first, last))
    )

"""Claims of the papers, and checks whether they hold in a table of results."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.runs.settings import N_LAST

N_DECIMALS = 9  # sums of floats differ beyond these with the order, and so with the processor
POINTS = "{:+.1f} points"  # a difference of accuracies, in percent


@dataclass(frozen=True)
class Finding:
    """The measured value of a claim in one setting, and the verdict."""

    measured: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Claim(ABC):
    """A statement of a paper about a value that each seed has.

    Parameters
    ----------
    words : str
        The claim, in a few words.
    place : str
        Where the paper makes it.
    measure : callable
        Takes a table of results; returns one value a seed, NaN where there is none.
    paper : str
        The paper's value, or its statement without one.
    form : str, default="{:.2f}"
        Format of the values.
    """

    words: str
    place: str
    measure: Callable[[pd.DataFrame], np.ndarray]
    paper: str
    form: str = "{:.2f}"

    def check(self, table: pd.DataFrame) -> Finding:
        """Return the measured value and the verdict for a table."""
        values = np.round(np.asarray(self.measure(table), float), N_DECIMALS) + 0.0  # no -0
        if np.isnan(values).any():
            missed = f"not reached in {np.isnan(values).sum()} of {len(values)} runs"
            return Finding(missed, "does not hold")
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        measured = self.form.format(values.mean())
        if len(values) > 1:
            measured += f" ± {self.form.format(error).lstrip('+')}"
        return Finding(measured, self.verdict(values.mean(), error))

    @abstractmethod
    def verdict(self, mean: float, error: float) -> str:
        """Judge a mean over the seeds with its standard error."""


def beyond(effect: float, error: float) -> bool:
    """Return whether an effect is more than its standard error.

    Where one seed alone has an effect, the mean equals the standard error up to rounding: this is
    not enough.
    """
    return effect > error * (1 + 1e-9)


@dataclass(frozen=True, kw_only=True)
class Figure(Claim):
    """The paper states a value.

    It holds when the mean is at least as far from ``neutral`` as ``claimed``, a standard error
    allowed, and partly when it is beyond ``neutral`` by more than a standard error and by a quarter
    of the claimed effect.
    """

    claimed: float
    neutral: float = 0.0

    def verdict(self, mean, error):
        side = 1 if self.claimed >= self.neutral else -1
        if side * (mean - self.claimed) + error >= 0:
            return "holds"
        effect = side * (mean - self.neutral)
        seen = beyond(effect, error) and effect >= abs(self.claimed - self.neutral) / 4
        return "holds partly" if seen else "does not hold"


@dataclass(frozen=True, kw_only=True)
class Direction(Claim):
    """The paper states that a value is higher, or lower.

    It holds when the mean is beyond ``neutral`` by more than a standard error, and partly when it
    is beyond by less.
    """

    more: bool = True
    neutral: float = 0.0

    def verdict(self, mean, error):
        gain = (mean - self.neutral) * (1 if self.more else -1)
        if beyond(gain, error):
            return "holds"
        return "holds partly" if gain > 0 else "does not hold"


@dataclass(frozen=True, kw_only=True)
class NoHigher(Claim):
    """The paper states that a value is not above ``neutral``.

    It holds unless the mean is higher by more than a standard error.
    """

    neutral: float = 0.0

    def verdict(self, mean, error):
        return "holds" if mean - self.neutral <= error else "does not hold"


@dataclass(frozen=True, kw_only=True)
class Bound(Claim):
    """A requirement of our own: the mean is on one side of ``limit``, without a standard error."""

    place: str = "bound of our own"
    limit: float
    at_most: bool = True

    def verdict(self, mean, error):
        excess = mean - self.limit if self.at_most else self.limit - mean
        return "holds" if excess <= 0 else "does not hold"


@dataclass(frozen=True, kw_only=True)
class Equal(Claim):
    """The paper states that two values are equal.

    It holds when the mean is within a standard error of ``neutral``, partly within ``tolerance``.
    """

    neutral: float = 0.0
    tolerance: float

    def verdict(self, mean, error):
        distance = abs(mean - self.neutral)
        if distance <= error:
            return "holds"
        return "holds partly" if distance <= self.tolerance else "does not hold"


def of_seeds(table: pd.DataFrame, strategy: str, column: str) -> pd.DataFrame:
    """Return a column of one strategy, of shape (n_rounds, n_seeds)."""
    rows = table[table["strategy"] == strategy]
    return rows.pivot(index="round", columns="seed", values=column)


def rounds_to(
    table: pd.DataFrame,
    strategy: str,
    column: str,
    level: float | np.ndarray,
    falling: bool = False,
) -> np.ndarray:
    """Return the number of rounds in which each seed first reached a level; NaN if it did not.

    The level is one number, or one for each seed.
    """
    values = of_seeds(table, strategy, column).dropna(how="all")
    reached = values <= level if falling else values >= level
    first = reached.idxmax().to_numpy(float) + 1
    return np.where(reached.any(), first, np.nan)


def final_mean(table: pd.DataFrame, strategy: str, column: str) -> np.ndarray:
    """Return each seed's mean over the last rounds; NaN if it diverged."""
    return of_seeds(table, strategy, column).tail(N_LAST).mean().to_numpy()


def mean_over(
    table: pd.DataFrame, strategy: str, column: str, first: float, last: float
) -> np.ndarray:
    """Return each seed's mean over a span of rounds, given as shares of all rounds.

    Rounds that were not measured are interpolated linearly, so that every part of the span has the
    same weight. A seed that diverged is NaN.
    """
    values = of_seeds(table, strategy, column).interpolate("index", limit_area="inside")
    span = values.iloc[int(first * len(values)) : int(last * len(values))]
    return span.mean(skipna=False).to_numpy()


def ratio_to(
    strategy: str, than: str, column: str, level: float, falling: bool = False
) -> Callable[[pd.DataFrame], np.ndarray]:
    """Measure the rounds that a strategy needs to reach a level, as a share of another's.

    If the other never reaches it, the number of all its rounds is taken.
    """

    def measure(table: pd.DataFrame) -> np.ndarray:
        others = rounds_to(table, than, column, level, falling)
        others[np.isnan(others)] = table["round"].max() + 1
        return rounds_to(table, strategy, column, level, falling) / others

    return measure


def final_gain(
    strategy: str, than: str, column: str, scale: float = 1.0
) -> Callable[[pd.DataFrame], np.ndarray]:
    """Measure the difference of two strategies over the last rounds."""
    return lambda table: (
        scale * (final_mean(table, strategy, column) - final_mean(table, than, column))
    )


def gain_over(
    strategy: str, than: str, column: str, first: float, last: float, scale: float = 1.0
) -> Callable[[pd.DataFrame], np.ndarray]:
    """Measure the difference of two strategies over a span of rounds."""
    return lambda table: (
        scale
        * (
            mean_over(table, strategy, column, first, last)
            - mean_over(table, than, column, first, last)
        )
    )

"""Medians of what was timed in turns, and of ratios within a turn, with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

Interval = tuple[float, float, float]  # median, lower and upper end


def median_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return the median and the ends of its interval, which holds whatever the distribution.

    The ends are two of the values, as many from the lowest as from the highest; the probability
    that all values so far out lie on one side of the true median is binomial. Fewer than six
    values have no interval of 95%; theirs is from the lowest to the highest.

    >>> median_interval([5, 1, 4, 2, 3, 9, 6, 8, 7])
    (5, 2, 8)
    """
    ordered, n, cut = sorted(values), len(values), 0
    while 2 * sum(comb(n, i) for i in range(cut + 2)) / 2**n <= 1 - level:
        cut += 1
    return median(ordered), ordered[cut], ordered[n - 1 - cut]


@dataclass(frozen=True)
class Comparison:
    """Median seconds of each contestant, and how many times longer than the base they take."""

    seconds: dict[str, float]
    ratios: dict[str, Interval]

    def lines(self, floor: float | None = None) -> list[str]:
        """Return a line for each contestant."""
        return [
            f"  {name:26} {value:.4f} s"
            + (f", {value / floor:.1f} floors" if floor else "")
            + (f", {show_ratio(self.ratios[name])}" if name in self.ratios else "")
            for name, value in self.seconds.items()
        ]


def show_ratio(ratio: Interval) -> str:
    middle, low, high = ratio
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def compare_turns(
    turns: Sequence[dict[str, list[float]]], names: Sequence[str], base: str
) -> Comparison:
    """Return the comparison of turns that give the seconds of rounds by name.

    A ratio is that of the medians of two contestants in one turn.
    """
    return Comparison(
        {name: median([s for turn in turns for s in turn[name]]) for name in names},
        {
            name: median_interval([median(turn[name]) / median(turn[base]) for turn in turns])
            for name in names
            if name != base
        },
    )

"""The axis of a parameter: linear or logarithmic, with a place for zero and for infinity."""

from typing import Any

import numpy as np


class ParameterScale:
    """Chooses the scale for some values, and places them.

    The scale is logarithmic if the positive values span a decade or more, none is negative, and
    their median is closer to the middle of the axis than on a linear one. Zero has no place on
    such an axis, and infinity on none: they are drawn beyond the other values.

    Parameters
    ----------
    values : array-like of float
        The values; not NaN.
    """

    def __init__(self, values: Any):
        values = np.unique(np.asarray(values, dtype=float))
        self.finite = values[np.isfinite(values)]
        self.is_log = _is_better_log(self.finite)
        self.regular = self.finite[self.finite > 0] if self.is_log else self.finite
        self.has_zero = len(self.regular) < len(self.finite)
        self.has_infinity = len(self.finite) < len(values)
        self.low, self.high = self._beyond()

    def _beyond(self) -> tuple[float, float]:
        """Return the places of zero and of infinity."""
        if not len(self.regular):
            return -1.0, 0.0
        first, last = self.regular[0], self.regular[-1]
        if self.is_log:
            step = (last / first) ** 0.25
            return first / step, last * step
        step = 0.25 * (last - first) or 1.0
        return first - step, last + step

    def place(self, values: Any) -> np.ndarray:
        """Return where values are drawn."""
        low = self.low if self.is_log else -np.inf
        return np.clip(np.asarray(values, dtype=float), low, self.high)

    def label(self, ax: Any) -> None:
        """Set the scale and the ticks of the horizontal axis."""
        if self.is_log:
            ax.set_xscale("log")
        if not (self.is_log or self.has_infinity):
            return
        ticks = self._ticks(ax)
        labels = [f"{tick:g}" for tick in ticks]
        if self.has_zero:
            ticks, labels = [self.low, *ticks], ["0", *labels]
        if self.has_infinity:
            ticks, labels = [*ticks, self.high], [*labels, "∞"]
        ax.set_xticks(ticks, labels)
        ax.minorticks_off()

    def _ticks(self, ax: Any) -> list[float]:
        """Return ticks in the range of the finite values."""
        if len(self.regular) < 2:
            return self.regular.tolist()
        first, last = self.regular[0], self.regular[-1]
        ticks = ax.get_xticks()
        if self.is_log:
            from matplotlib.ticker import LogLocator

            subs = (1.0, 3.0) if last / first < 1e4 else (1.0,)
            ticks = LogLocator(subs=subs).tick_values(first, last)
        near = 1 + 1e-9  # as for 0.1 and 0.1 + 1e-17
        return [float(tick) for tick in ticks if first <= tick * near and tick <= last * near]


def _is_better_log(values: np.ndarray) -> bool:
    """Tell whether a logarithmic axis spreads values better than a linear one."""
    positive = values[values > 0]
    if len(positive) < 3 or values[0] < 0 or positive[-1] < 10 * positive[0]:
        return False
    return _off_centre(np.log(positive)) < _off_centre(positive)


def _off_centre(values: np.ndarray) -> float:
    """Return how far the median is from the middle, as a share of the range."""
    return abs((np.median(values) - values[0]) / (values[-1] - values[0]) - 0.5)

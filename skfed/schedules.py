"""Values that change over the rounds: eps, d and the learning rate.

A parameter that takes a schedule also takes a number, for every round, or a callable of the round's
index. To add a schedule, subclass :class:`BaseSchedule` here and name the class in ``__all__``.
"""

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skfed.utils._checks import check_params
from skfed.utils._sklearn import Interval

__all__ = [
    "BaseSchedule",
    "Constant",
    "CosineDecay",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LinearDecay",
    "StepDecay",
]

_NON_NEGATIVE = Interval(Real, 0, None, closed="both")
_POSITIVE = Interval(Real, 0, None, closed="neither")


class BaseSchedule(BaseEstimator, metaclass=ABCMeta):
    """Base class of schedules; a subclass implements ``_at``."""

    _parameter_constraints: dict = {}

    def at(self, round: int, n_rounds: int, step: int = 0, n_steps: int = 1) -> float:
        """Return the value in a round.

        Parameters
        ----------
        round : int
            t, from 0.
        n_rounds : int
            Rounds planned in all.
        step, n_steps : int, default=0, 1
            Local iteration within the round, and their number in a round. Only
            :class:`InverseTimeDecay` uses them.

        Returns
        -------
        float
            The value, absolute.

        Raises
        ------
        ValueError
            If a parameter is out of range.
        """
        check_params(self)
        try:
            with np.errstate(all="ignore"):  # numpy's numbers warn where Python's do not
                value = float(self._at(round, n_rounds, step, n_steps))
        except OverflowError as error:
            raise ValueError(f"{self!r} is too large in round {round}: lower it.") from error
        if math.isnan(value):
            raise ValueError(
                f"{self!r} has no value in round {round}: its parameters must be finite."
            )
        return value

    @abstractmethod
    def _at(self, round: int, n_rounds: int, step: int, n_steps: int) -> float:
        """Return the value; ``at`` has checked the parameters."""


Scheduled = float | BaseSchedule | Callable[[int], float]


class Constant(BaseSchedule):
    """The same value in every round.

    Parameters
    ----------
    value : float
        The value.
    """

    _parameter_constraints = {"value": [_NON_NEGATIVE]}

    def __init__(self, value):
        self.value = value

    def _at(self, round, n_rounds, step, n_steps):
        return self.value


class _StartToEnd(BaseSchedule):
    """From ``start`` to ``end`` over the planned rounds, along the curve of a subclass."""

    _parameter_constraints = {"start": [_NON_NEGATIVE], "end": [_NON_NEGATIVE]}

    def __init__(self, start, end=0.0):
        self.start = start
        self.end = end

    def _at(self, round, n_rounds, step, n_steps):
        progress = min(round / (n_rounds - 1), 1.0) if n_rounds > 1 else 0.0
        done = self._done(progress)
        return (1 - done) * self.start + done * self.end  # exact at both ends

    @abstractmethod
    def _done(self, progress: float) -> float:
        """Return the share of the change that is done after a share of the rounds."""


class LinearDecay(_StartToEnd):
    """From ``start`` in the first round to ``end`` in the last, in equal steps.

    Parameters
    ----------
    start : float
        Value in round 0.
    end : float, default=0.0
        Value in round n_rounds - 1, and after it.
    """

    def _done(self, progress):
        return progress


class CosineDecay(_StartToEnd):
    """From ``start`` in the first round to ``end`` in the last, along half a cosine.

    Parameters
    ----------
    start : float
        Value in round 0.
    end : float, default=0.0
        Value in round n_rounds - 1, and after it.
    """

    def _done(self, progress):
        return (1 - math.cos(math.pi * progress)) / 2


class ExponentialDecay(BaseSchedule):
    """``start * factor ** t``.

    Parameters
    ----------
    start : float
        Value in round 0.
    factor : float
        The value is multiplied by it each round.
    """

    _parameter_constraints = {"start": [_NON_NEGATIVE], "factor": [_POSITIVE]}

    def __init__(self, start, factor):
        self.start = start
        self.factor = factor

    def _at(self, round, n_rounds, step, n_steps):
        return self.start * self.factor**round


class StepDecay(BaseSchedule):
    """``start``, multiplied by ``factor`` at each milestone.

    Power-of-choice halves the learning rate after rounds 150 and 300, and adapow-d halves d every
    5000 rounds, or changes it from K to m at half of the rounds (its appendix F).

    Parameters
    ----------
    start : float
        Value in round 0.
    factor : float, default=0.5
        The value is multiplied by it at each milestone.
    milestones : int or sequence of int or float, default=(0.5,)
        Rounds from which the value is lower; a float in (0, 1) is a share of all rounds. An int
        n stands for every n rounds.
    """

    _parameter_constraints = {
        "start": [_NON_NEGATIVE],
        "factor": [_NON_NEGATIVE],
        "milestones": ["array-like", Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, start, factor=0.5, milestones=(0.5,)):
        self.start = start
        self.factor = factor
        self.milestones = milestones

    def _at(self, round, n_rounds, step, n_steps):
        if isinstance(self.milestones, Integral):
            passed = round // self.milestones
        else:
            passed = sum(round >= self._milestone(m, n_rounds) for m in self.milestones)
        return self.start * self.factor**passed

    @staticmethod
    def _milestone(milestone, n_rounds):
        if isinstance(milestone, Integral) and int(milestone) >= 0:
            return int(milestone)
        if isinstance(milestone, Real) and 0 < float(milestone) < 1:
            return float(milestone) * n_rounds
        raise ValueError(
            f"milestones has {milestone!r}: name a round (an int), or a share of all rounds (a "
            "float in (0, 1))."
        )


class InverseTimeDecay(BaseSchedule):
    """``numerator / (mu * (t + gamma))`` with t in local iterations, as in both theorems.

    FedALIGN's Theorem 1 takes numerator 2 and gamma = max(8 L / mu, E); power-of-choice's
    Theorem 3.1 takes numerator 1 and gamma = 4 L / mu. As ``lr_schedule``, t counts local
    iterations: minibatch steps with ``local_steps``, else epochs. As ``eps`` or ``d``, t counts
    rounds.

    Parameters
    ----------
    numerator : float
        2 for FedALIGN, 1 for power-of-choice.
    mu : float
        Strong convexity of the local objectives.
    gamma : float
        Shift of t.
    """

    _parameter_constraints = {"numerator": [_POSITIVE], "mu": [_POSITIVE], "gamma": [_POSITIVE]}

    def __init__(self, numerator, mu, gamma):
        self.numerator = numerator
        self.mu = mu
        self.gamma = gamma

    def _at(self, round, n_rounds, step, n_steps):
        return self.numerator / (self.mu * (round * n_steps + step + self.gamma))


def value_at(
    scheduled: Scheduled, name: str, round: int, n_rounds: int, step: int = 0, n_steps: int = 1
) -> float:
    """Return the value of a scheduled parameter in a round; raise if it is not >= 0."""
    value: Any
    if isinstance(scheduled, BaseSchedule):
        value = scheduled.at(round, n_rounds, step, n_steps)
    else:
        value = _called(scheduled, name, round) if callable(scheduled) else scheduled
    if not isinstance(value, Real) or not float(value) >= 0:
        raise ValueError(f"{name} is {value!r} in round {round}: it must be a number >= 0.")
    return float(value)


def _called(schedule: Callable[[int], float], name: str, round: int) -> Any:
    """Call a schedule of the user, with a note on its errors."""
    try:
        return schedule(round)
    except Exception as error:
        error.add_note(f"{name} was called with round {round}")
        raise

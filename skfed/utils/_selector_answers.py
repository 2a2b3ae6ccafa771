"""Whether a cohort depends on what a client answers, and on what it reported before."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from skfed.selection import BaseSelector, Cohort
from skfed.selection._mock_round import MockRound
from skfed.utils._selector_rounds import N_CLIENTS, Setting, make_round, shuffled_losses

_EXTREMES = (10.0, 0.01)  # far above and below the other losses
_N_POLLS = 6  # in each setting


def influence(selector: BaseSelector, setting: Setting) -> tuple[set[int], bool]:
    """Return who is chosen by a report in place of an answer, and whether no answer matters.

    The latter only if there is a choice among those polled: a rule may train all of them.
    """
    by_answer: set[int] = set()
    by_report: set[int] = set()
    chooses = False
    for seed in range(_N_POLLS):
        poll = Poll(selector, setting, seed, shuffled_losses(seed))
        chooses |= poll.tells_apart()
        for k in poll.polled - by_answer:
            if poll.depends_on_answer(k):
                by_answer.add(k)
            elif poll.depends_on_report(k):
                by_report.add(k)
    return by_report - by_answer, chooses and not by_answer


class Poll:
    """A round of given losses in which a selector polls; ``polled`` are the clients asked."""

    def __init__(
        self, selector: BaseSelector, setting: Setting, seed: int, losses: dict[str, np.ndarray]
    ):
        self.selector, self.setting, self.seed, self.losses = selector, setting, seed, losses
        view = make_round(setting, seed, **losses)
        self.cohort = selector.select(view)
        self.polled = set(polled(view))

    def depends_on_answer(self, k: int) -> bool:
        """Return whether the cohort is another one if client k answers otherwise."""
        others = (self._with("losses", k, answer) for answer in _EXTREMES)
        return any(not same(self.cohort, other.cohort) for other in others)

    def depends_on_report(self, k: int) -> bool:
        """Return whether another report of k alone makes another cohort, whatever it answers."""
        others = (self._with("reported", k, report) for report in _EXTREMES)
        return any(
            other.polled == self.polled
            and not same(self.cohort, other.cohort)
            and not other.depends_on_answer(k)
            for other in others
        )

    def tells_apart(self) -> bool:
        """Return whether some, not all, were chosen of polled clients of the same setting."""
        chosen = set(self.cohort.clients.tolist())
        groups = [self.polled & set(group.tolist()) for group in self.setting.groups()]
        return any(group & chosen and group - chosen for group in groups)

    def _with(self, name: str, k: int, value: float) -> "Poll":
        """Return the same round with another loss of client k."""
        changed = np.where(np.arange(N_CLIENTS) == k, value, self.losses[name])
        return Poll(self.selector, self.setting, self.seed, self.losses | {name: changed})


def polled(view: MockRound) -> list[int]:
    """Return the clients that were polled in a round."""
    return [k for clients, *_ in view.polls for k in clients]


def same(one: Cohort, other: Cohort) -> bool:
    """Return whether two cohorts are equal in every field."""
    return (
        same_memory(one.memory, other.memory)
        and np.array_equal(one.clients, other.clients)
        and np.array_equal(one.weights, other.weights)
        and one.unbiased == other.unbiased
        and np.array_equal(one.objective, other.objective, equal_nan=True)
    )


def same_memory(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Return whether two memories have the same names and values."""
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(
        np.array_equal(value, other[name], equal_nan=isinstance(value, float | np.ndarray))
        for name, value in one.items()
    )

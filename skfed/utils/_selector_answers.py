"""Whether a cohort depends on what a client answers, and on what it reported before."""

from collections.abc import Sequence

import numpy as np

from skfed.selection import BaseSelector, Cohort
from skfed.selection._mock_round import MockRound
from skfed.utils._selector_rounds import N_CLIENTS, Setting, make_round, shuffled_losses

_ANSWERS = (10.0, 0.01, np.nan)  # far above the other losses, far below, none
_REPORTS = (10.0, 0.01)
_N_POLLS = 6  # in each setting


def influence(selector: BaseSelector, setting: Setting) -> tuple[set[int], bool]:
    """Return who is chosen by a report in place of an answer, and whether no answer matters.

    The latter only if there is a choice among those polled: a rule may train all of them.
    """
    by_answer: set[int] = set()
    by_report: set[int] = set()
    chooses = False
    for seed in range(_N_POLLS):
        poll = Poll(selector, setting, seed)
        chooses |= poll.tells_apart()
        for k in poll.polled - by_answer:
            if poll.depends_on_answer(k):
                by_answer.add(k)
            elif poll.depends_on_report(k):
                by_report.add(k)
    return by_report - by_answer, chooses and not by_answer


class Poll:
    """A round in which a selector polls, and the same round with other losses of one client.

    The losses are drawn by ``seed``; ``polled`` are the clients asked, ``cohort`` the outcome.
    """

    def __init__(self, selector: BaseSelector, setting: Setting, seed: int):
        self.selector, self.setting, self.seed = selector, setting, seed
        self.losses = shuffled_losses(seed)
        self.cohort, self.polled = self._select(self.losses)

    def depends_on_answer(self, k: int) -> bool:
        """Return whether the cohort is another one if client k answers otherwise."""
        outcomes = self._with_others("losses", k, _ANSWERS)
        return any(not same(self.cohort, cohort) for cohort, _ in outcomes)

    def depends_on_report(self, k: int) -> bool:
        """Return whether it is another one, of the same polls, if k has reported otherwise."""
        outcomes = self._with_others("reported", k, _REPORTS)
        return any(
            polled == self.polled and not same(self.cohort, cohort) for cohort, polled in outcomes
        )

    def tells_apart(self) -> bool:
        """Return whether some, not all, were chosen of polled clients of the same setting."""
        chosen = set(self.cohort.clients.tolist())
        groups = [self.polled & set(group.tolist()) for group in self.setting.groups()]
        return any(group & chosen and group - chosen for group in groups)

    def _with_others(
        self, name: str, k: int, values: Sequence[float]
    ) -> list[tuple[Cohort, set[int]]]:
        """Return the outcomes with each of some values for client k."""
        at_k = np.arange(N_CLIENTS) == k
        changed = [np.where(at_k, value, self.losses[name]) for value in values]
        return [self._select(self.losses | {name: losses}) for losses in changed]

    def _select(self, losses: dict[str, np.ndarray]) -> tuple[Cohort, set[int]]:
        view = make_round(self.setting, self.seed, **losses)
        return self.selector.select(view), set(polled(view))


def polled(view: MockRound) -> list[int]:
    """Return the clients that were polled in a round."""
    return [k for clients, *_ in view.polls for k in clients]


def same(one: Cohort, other: Cohort) -> bool:
    """Return whether two cohorts are equal in every field."""
    return (
        np.array_equal(one.clients, other.clients)
        and np.array_equal(one.weights, other.weights)
        and one.unbiased == other.unbiased
        and np.array_equal(one.objective, other.objective, equal_nan=True)
    )

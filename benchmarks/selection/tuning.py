"""Every rule is tuned by the same number of trials, in the same way, random selection too.

A trial is a run on clients, and with an initialisation, that no reported run has. What counts is
the accuracy of validation rows at its end. First come the four rates of the model's grid, then two
trials more at the best one: two further values of the rule's own parameter or, for a rule without,
two further rates, halfway to the best one's neighbours in the grid.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from benchmarks.selection.models import GRIDS
from benchmarks.selection.rules import Rule

N_TRIALS = 6
SEED = 100  # of trials; reported runs begin with 0


@dataclass(frozen=True)
class Candidate:
    """A rule with a learning rate and a value of its own parameter; None: its default."""

    rule: str
    lr: float
    value: Any = None

    @property
    def name(self) -> str:
        """The name of its runs."""
        own = "" if self.value is None else f", own={self.value}"
        return f"{self.rule}, lr={self.lr:g}{own}"

    def params(self, rule: Rule, m: int) -> dict[str, Any]:
        """Return parameters of FederatedClassifier."""
        return {"selector": rule.selector(m, self.value), "lr_schedule": self.lr}


def first_trials(name: str, model: str) -> list[Candidate]:
    """Return the trials of the grid."""
    return [Candidate(name, lr) for lr in GRIDS[model]]


def further_trials(name: str, rule: Rule, model: str, lr: float) -> list[Candidate]:
    """Return the trials after those of the grid, of which ``lr`` was the best."""
    if rule.parameter is not None:
        return [Candidate(name, lr, value) for value in rule.values]
    return [Candidate(name, rate) for rate in _beside(lr, GRIDS[model])]


def _beside(lr: float, grid: tuple[float, ...]) -> list[float]:
    """Return the geometric means of a rate and its neighbours; a missing one is made up.

    At an end of the grid, it is as far away as the neighbour on the other side.
    """
    i = grid.index(lr)
    lower = grid[i - 1] if i > 0 else lr * lr / grid[i + 1]
    upper = grid[i + 1] if i + 1 < len(grid) else lr * lr / grid[i - 1]
    return [float(f"{sqrt(lr * other):.2g}") for other in (lower, upper)]


def all_candidates(name: str, rule: Rule, model: str) -> list[Candidate]:
    """Return every candidate that any outcome of the first trials may lead to."""
    first = first_trials(name, model)
    return [
        *first,
        *(one for best in first for one in further_trials(name, rule, model, best.lr)),
    ]


def best(candidates: list[Candidate], scores: Mapping[str, float]) -> Candidate:
    """Return the candidate of the highest score by its name, the first of equal ones.

    NaN, of a run that diverged, is below all others.
    """

    def key(one: Candidate) -> float:
        score = scores[one.name]
        return score if score == score else float("-inf")

    return max(candidates, key=key)

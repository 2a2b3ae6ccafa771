"""The rules that are compared, each as a function of m."""

from collections.abc import Callable

from skfed import (
    ActiveFLSelector,
    ClusteredSelector,
    FedCSSelector,
    LossProportionalSelector,
    OptimalSelector,
    PowerOfChoice,
    RandomSelector,
    RoundRobinSelector,
    UcbSelector,
)
from skfed.selection import BaseSelector

RULES: dict[str, Callable[[int], BaseSelector]] = {
    "random": RandomSelector,
    "round robin": RoundRobinSelector,
    "clustered by size": lambda m: ClusteredSelector("size", m),
    "clustered by updates": lambda m: ClusteredSelector("updates", m),
    "optimal": OptimalSelector,
    "power-of-choice, d = 2 m": lambda m: PowerOfChoice(2 * m, m),
    "loss-proportional": LossProportionalSelector,
    "AFL": ActiveFLSelector,
    "UCB-CS": UcbSelector,
    "FedCS": FedCSSelector,
}

"""The rules that are compared, each as a function of m."""

from collections.abc import Callable
from functools import partial

from skfed import (
    ActiveFLSelector,
    ClusteredSelector,
    DivFLSelector,
    FedAlignSelector,
    FedCorSelector,
    FedCSSelector,
    HicsFLSelector,
    KVibSelector,
    LossProportionalSelector,
    OortSelector,
    OptimalSelector,
    PowerOfChoice,
    RandomSelector,
    RoundRobinSelector,
    TiflSelector,
    UcbSelector,
)
from skfed.selection import BaseSelector

RULES: dict[str, Callable[[int], BaseSelector]] = {
    "random": RandomSelector,
    "round robin": RoundRobinSelector,
    "clustered by size": partial(ClusteredSelector, "size"),
    "clustered by updates": partial(ClusteredSelector, "updates"),
    "optimal": OptimalSelector,
    "K-Vib": KVibSelector,
    "power-of-choice, d = 2 m": lambda m: PowerOfChoice(2 * m, m),
    "FedALIGN, m priority clients": lambda m: FedAlignSelector(),
    "loss-proportional": LossProportionalSelector,
    "AFL": ActiveFLSelector,
    "UCB-CS": UcbSelector,
    "Oort": OortSelector,
    "FedCS": FedCSSelector,
    "TiFL": TiflSelector,
    "DivFL": DivFLSelector,
    "FedCor": FedCorSelector,
    "HiCS-FL": HicsFLSelector,
}

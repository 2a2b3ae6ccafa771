"""The rules that are compared, what of each is tuned, and the controls."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import clone

from benchmarks.rules import RULES as OF_M
from benchmarks.selection.conditions import Condition
from skfed import FedAlignSelector, PowerOfChoice, RandomSelector
from skfed.selection import BaseSelector, Cohort
from skfed.utils.selector_checks import check_selector

RANDOM = "random"
TWIN = "random under another name"
LOWEST = "lowest losses"
CONTROLS = (TWIN, LOWEST)


@dataclass(frozen=True)
class Rule:
    """A rule as a function of m, and the parameter of it that is tuned.

    Parameters
    ----------
    make : callable
        Takes m; returns the selector.
    parameter : str, default=None
        The parameter that is tuned beside the learning rate; None: none is.
    values : tuple, default=()
        Two values to try beside the selector's own; "2m" is twice m.
    for_devices, for_priority : bool, default=False
        Whether it is for conditions with devices, or with priority clients, alone.
    with_priority : bool, default=False
        Whether it takes part where there are priority clients too. Most rules do not heed them.
    """

    make: Callable[[int], BaseSelector]
    parameter: str | None = None
    values: tuple[Any, ...] = ()
    for_devices: bool = False
    for_priority: bool = False
    with_priority: bool = False

    def suits(self, condition: Condition) -> bool:
        """Return whether it takes part in a condition."""
        if condition.has_priority:
            return self.for_priority or self.with_priority
        return not self.for_priority and (condition.has_devices or not self.for_devices)

    def selector(self, m: int, value: Any = None) -> BaseSelector:
        """Return the selector for m clients a round, with a value of its parameter or its own."""
        selector = self.make(m)
        if value is None:
            return selector
        if isinstance(value, str) and value.endswith("m"):
            value = int(value[:-1]) * m
        return selector.set_params(**{str(self.parameter): value})


class Twin(RandomSelector):
    """Random selection whose draws are others, since one is thrown away before them."""

    def _select(self, round):
        round.rng.random()
        return super()._select(round)


class LowestLosses(PowerOfChoice):
    """The opposite of power-of-choice: of d candidates the m of the lowest loss train."""

    def _select(self, round):
        d, m = self._counts(round)
        candidates = round.rng.permutation(round.draw(d))
        losses = round.poll(candidates)
        lowest = np.argsort(np.where(np.isfinite(losses), losses, np.inf), kind="stable")
        return Cohort.mean(candidates[lowest[:m]])


def _of_twice_as_many(cls: type[PowerOfChoice], m: int) -> PowerOfChoice:
    """Return a selector of m of 2 m candidates."""
    return cls(2 * m, m)


def _for(selector: BaseSelector, m: int) -> BaseSelector:
    """Return a copy of a selector that trains m clients a round, unless it says how many."""
    copy = clone(selector)
    if copy.get_params().get("clients_per_round", m) is None:
        copy.set_params(clients_per_round=m)
    return copy


RULES: dict[str, Rule] = {
    RANDOM: Rule(partial(RandomSelector, ignore_priority=True), with_priority=True),
    TWIN: Rule(Twin),
    LOWEST: Rule(partial(_of_twice_as_many, LowestLosses), "d", ("3m", "4m")),
    "round robin": Rule(OF_M["round robin"]),
    "clustered by size": Rule(OF_M["clustered by size"]),
    "clustered by updates": Rule(OF_M["clustered by updates"]),
    "optimal": Rule(OF_M["optimal"]),
    "K-Vib": Rule(OF_M["K-Vib"]),
    "power-of-choice": Rule(partial(_of_twice_as_many, PowerOfChoice), "d", ("3m", "4m")),
    "loss-proportional": Rule(OF_M["loss-proportional"]),
    "AFL": Rule(OF_M["AFL"], "alpha3", (0.3, 0.5)),
    "UCB-CS": Rule(OF_M["UCB-CS"], "gamma", (0.5, 0.9)),
    "Oort": Rule(OF_M["Oort"], "exploration", (0.3, 0.6)),
    "FedCS": Rule(OF_M["FedCS"], for_devices=True),
    "TiFL": Rule(OF_M["TiFL"], "n_tiers", (2, 3), for_devices=True),
    "DivFL": Rule(OF_M["DivFL"]),
    "FedCor": Rule(OF_M["FedCor"], "discount", (0.8, 0.9)),
    "HiCS-FL": Rule(OF_M["HiCS-FL"], "gamma", (1.0, 10.0)),
    "FedALIGN": Rule(partial(_for, FedAlignSelector()), "eps", (0.05, 0.8), for_priority=True),
    "FedAvg on priority": Rule(partial(_for, FedAlignSelector(eps=0)), for_priority=True),
}


def outside_rule(text: str) -> tuple[str, Rule]:
    """Return the name and the rule of ``package.module:MySelector()``, which is checked first.

    If its ``clients_per_round`` is None, it becomes m.
    """
    module, _, expression = text.partition(":")
    if not expression:
        raise ValueError(f"--rule must be like mypackage:MySelector(), got {text!r}.")
    selector = eval(expression, vars(import_module(module)))
    if not isinstance(selector, BaseSelector):
        raise TypeError(f"--rule {text}: {selector!r} is no BaseSelector.")
    check_selector(selector)
    rule = Rule(partial(_for, selector), with_priority=selector.uses_priority)
    return type(selector).__name__, rule

"""Parameters of components are validated when they have changed."""

import weakref
from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.base import BaseEstimator

from skfed.schedules import LinearDecay
from skfed.selection import Cohort, PowerOfChoice
from skfed.selection._base import BaseSelector
from skfed.utils import _checks
from skfed.utils._checks import Count, check_params


@pytest.fixture
def n_validations(monkeypatch):
    """Return a function that says how often components were validated."""
    validated = []
    validate = BaseEstimator._validate_params

    def count(self):
        validated.append(self)
        validate(self)

    monkeypatch.setattr(BaseEstimator, "_validate_params", count)
    return lambda: len(validated)


def test_only_what_has_changed_is_validated_again(n_validations):
    selector = PowerOfChoice(d=6)
    for _ in range(3):
        check_params(selector)
    assert n_validations() == 1
    check_params(selector.set_params(d=8))
    assert n_validations() == 2
    check_params(PowerOfChoice(d=8))
    assert n_validations() == 3


def test_a_parameter_that_becomes_wrong_is_found():
    selector, schedule = PowerOfChoice(d=6), LinearDecay(1.0)
    check_params(selector)
    with pytest.raises(ValueError, match="'d' parameter.*-1"):
        check_params(selector.set_params(d=-1))
    with pytest.raises(ValueError, match="'d' parameter.*-1"):  # and each time
        check_params(selector)
    assert schedule.at(0, 3) == 1.0
    schedule.start = "high"
    with pytest.raises(ValueError, match="'start' parameter.*high"):
        schedule.at(0, 3)


@dataclass
class First(BaseSelector):
    """A selector that cannot be hashed, since it is compared by its fields."""

    n: int = 1

    def _select(self, round):
        return Cohort.mean(np.arange(self.n))


def test_a_component_without_hash_is_checked_and_not_kept():
    selector = First()
    check_params(selector)
    assert vars(selector) == {"n": 1}  # not changed
    key = id(selector)
    assert key in _checks._valid
    del selector
    assert key not in _checks._valid


class Slotted(BaseSelector):
    """A selector whose parameter is not in its ``__dict__``."""

    __slots__ = ("n",)
    _parameter_constraints = {"n": [Count()]}

    def __init__(self, n=1):
        self.n = n

    def _select(self, round):
        return Cohort.mean(np.arange(self.n))


class OwnRule(BaseSelector):
    """A selector that looks into its parameter by itself."""

    def __init__(self, weights):
        self.weights = weights

    def _validate_params(self):
        if min(self.weights) < 0:
            raise ValueError("weights must not be negative")

    def _select(self, round):
        return Cohort.mean(np.arange(1))


def test_slots_and_validation_of_its_own_are_checked_too():
    slotted, own = Slotted(), OwnRule([1.0, 2.0])
    for selector in (slotted, own):
        check_params(selector)
    slotted.n = -1
    own.weights[0] = -1.0
    with pytest.raises(ValueError, match="'n' parameter.*-1"):
        check_params(slotted)
    with pytest.raises(ValueError, match="weights must not be negative"):
        check_params(own)


def test_other_attributes_are_not_kept():
    selector = First()
    selector.found = np.zeros(3)
    found = weakref.ref(selector.found)
    check_params(selector)
    selector.found = None
    assert found() is None

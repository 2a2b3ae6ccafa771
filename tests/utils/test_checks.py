"""Parameters of components are validated when they change."""

from dataclasses import dataclass

import numpy as np
import pytest

from skfed.schedules import LinearDecay
from skfed.selection import Cohort, PowerOfChoice
from skfed.selection._base import BaseSelector
from skfed.utils import _checks
from skfed.utils._checks import check_params


@pytest.fixture
def n_validations(monkeypatch):
    """Return a function that says how often components were validated."""
    validated = []
    validate = PowerOfChoice._validate_params

    def count(self):
        validated.append(self)
        validate(self)

    monkeypatch.setattr(PowerOfChoice, "_validate_params", count)
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


def test_any_component_can_be_checked_and_none_is_kept():
    selector = First()
    check_params(selector)
    assert vars(selector) == {"n": 1}  # not changed
    key = id(selector)
    assert key in _checks._valid
    del selector
    assert key not in _checks._valid

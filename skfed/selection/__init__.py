"""Who trains in a round: selectors, and the view of a round that they choose from."""

from skfed.selection._active import ActiveFLSelector
from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._fedalign import FedAlignSelector
from skfed.selection._power_of_choice import PowerOfChoice
from skfed.selection._random import RandomSelector

__all__ = [
    "ActiveFLSelector",
    "BaseSelector",
    "Cohort",
    "FedAlignSelector",
    "PowerOfChoice",
    "RandomSelector",
    "Round",
]

"""Selectors, which choose the clients of a round, and the view of a round that they choose from.

To add a selector, subclass :class:`BaseSelector` in a new file here and name the class below.
"""

from skfed.selection._active import ActiveFLSelector
from skfed.selection._base import BaseSelector
from skfed.selection._clustered import ClusteredSelector
from skfed.selection._cohort import Cohort
from skfed.selection._divfl import DivFLSelector
from skfed.selection._fedalign import FedAlignSelector
from skfed.selection._fedcor import FedCorSelector
from skfed.selection._fedcs import FedCSSelector
from skfed.selection._hics import HicsFLSelector
from skfed.selection._kvib import KVibSelector
from skfed.selection._loss_proportional import LossProportionalSelector
from skfed.selection._oort import OortSelector
from skfed.selection._optimal import OptimalSelector
from skfed.selection._past import Past
from skfed.selection._power_of_choice import PowerOfChoice
from skfed.selection._random import RandomSelector
from skfed.selection._round import Reports, Round, Trial
from skfed.selection._round_robin import RoundRobinSelector
from skfed.selection._tifl import TiflSelector
from skfed.selection._ucb import UcbSelector

__all__ = [
    "ActiveFLSelector",
    "BaseSelector",
    "ClusteredSelector",
    "Cohort",
    "DivFLSelector",
    "FedAlignSelector",
    "FedCSSelector",
    "FedCorSelector",
    "HicsFLSelector",
    "KVibSelector",
    "LossProportionalSelector",
    "OortSelector",
    "OptimalSelector",
    "Past",
    "PowerOfChoice",
    "RandomSelector",
    "Reports",
    "Round",
    "RoundRobinSelector",
    "TiflSelector",
    "Trial",
    "UcbSelector",
]

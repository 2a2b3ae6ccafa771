"""What clients' updates were worth.

A method values the clients of a round by v(S), the gain of the model that is aggregated over a
subset S of them. Methods differ in the subsets that they ask for, and in how they weigh these.
"""

from skfed.contribution._banzhaf import DataBanzhaf
from skfed.contribution._base import BaseContribution, Gains, Values
from skfed.contribution._gtg_shapley import GTGShapley
from skfed.contribution._leave_one_out import LeaveOneOut
from skfed.contribution._shapley import ExactShapley

__all__ = [
    "BaseContribution",
    "DataBanzhaf",
    "ExactShapley",
    "GTGShapley",
    "Gains",
    "LeaveOneOut",
    "Values",
]

"""What clients' updates were worth."""

from skfed.contribution._base import BaseContribution, Gains, Values
from skfed.contribution._sums import sum_contributions

__all__ = ["BaseContribution", "Gains", "Values", "sum_contributions"]

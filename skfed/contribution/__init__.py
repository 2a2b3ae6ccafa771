"""What clients' updates were worth."""

from skfed.contribution._base import BaseContribution, Gains, Values

__all__ = ["BaseContribution", "Gains", "Values"]

"""Quantities of both papers' theory: inclusion, heterogeneity, selection skew and bounds."""

from skfed.diagnostics._bounds import (
    fedalign_bound,
    power_of_choice_bound,
    power_of_choice_bound_fixed,
)
from skfed.diagnostics._inclusion import alignment, inclusion_trace, selection_frequency
from skfed.diagnostics._optima import heterogeneity, optima
from skfed.diagnostics._skew import selection_skew, skew_range

__all__ = [
    "alignment",
    "fedalign_bound",
    "heterogeneity",
    "inclusion_trace",
    "optima",
    "power_of_choice_bound",
    "power_of_choice_bound_fixed",
    "selection_frequency",
    "selection_skew",
    "skew_range",
]

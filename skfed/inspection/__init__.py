"""Plots of a federation, in scikit-learn's Display convention (extra ``plot``)."""

from skfed.inspection._clients import ClientsDisplay
from skfed.inspection._convergence import ConvergenceDisplay
from skfed.inspection._selection import SelectionDisplay
from skfed.inspection._tradeoff import TradeoffDisplay

__all__ = ["ClientsDisplay", "ConvergenceDisplay", "SelectionDisplay", "TradeoffDisplay"]

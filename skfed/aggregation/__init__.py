"""How the updates of a cohort become the next global model."""

from skfed.aggregation._base import BaseAggregator
from skfed.aggregation._mean import WeightedMean
from skfed.aggregation._robust import CoordinateMedian, NormClipping, TrimmedMean
from skfed.aggregation._scaffold import Scaffold
from skfed.aggregation._server_optimizer import ServerOptimizer

__all__ = [
    "BaseAggregator",
    "CoordinateMedian",
    "NormClipping",
    "Scaffold",
    "ServerOptimizer",
    "TrimmedMean",
    "WeightedMean",
]

"""skfed: federated learning by client selection that feels like scikit-learn."""

from importlib.metadata import version

from skfed._classifier import FederatedClassifier
from skfed._regressor import FederatedRegressor
from skfed._saving import load, save
from skfed.pipeline import make_pipeline
from skfed.selection import (
    ActiveFLSelector,
    ClusteredSelector,
    DivFLSelector,
    FedAlignSelector,
    FedCorSelector,
    FedCSSelector,
    HicsFLSelector,
    KVibSelector,
    LossProportionalSelector,
    OortSelector,
    OptimalSelector,
    PowerOfChoice,
    RandomSelector,
    RoundRobinSelector,
    TiflSelector,
    UcbSelector,
)

__version__ = version("skfed")
__all__ = [
    "ActiveFLSelector",
    "ClusteredSelector",
    "DivFLSelector",
    "FedAlignSelector",
    "FedCSSelector",
    "FedCorSelector",
    "FederatedClassifier",
    "FederatedRegressor",
    "HicsFLSelector",
    "KVibSelector",
    "LossProportionalSelector",
    "OortSelector",
    "OptimalSelector",
    "PowerOfChoice",
    "RandomSelector",
    "RoundRobinSelector",
    "TiflSelector",
    "UcbSelector",
    "load",
    "make_pipeline",
    "save",
]

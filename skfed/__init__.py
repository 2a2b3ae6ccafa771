"""skfed: federated learning by client selection that feels like scikit-learn."""

from importlib.metadata import version

from skfed._classifier import FederatedClassifier
from skfed._regressor import FederatedRegressor
from skfed._saving import load, save
from skfed.pipeline import make_pipeline
from skfed.selection import ActiveFLSelector, FedAlignSelector, PowerOfChoice, RandomSelector

__version__ = version("skfed")
__all__ = [
    "ActiveFLSelector",
    "FedAlignSelector",
    "FederatedClassifier",
    "FederatedRegressor",
    "PowerOfChoice",
    "RandomSelector",
    "load",
    "make_pipeline",
    "save",
]

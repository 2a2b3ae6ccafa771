"""How clients are trained and polled."""

from skfed.engines._client import LocalTraining, Update, evaluate
from skfed.engines._loop import LoopEngine

__all__ = ["LocalTraining", "LoopEngine", "Update", "evaluate"]

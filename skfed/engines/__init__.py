"""How clients are trained and polled."""

from skfed.engines._loop import LocalTraining, LoopEngine, Update, evaluate

__all__ = ["LocalTraining", "LoopEngine", "Update", "evaluate"]

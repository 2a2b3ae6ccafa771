"""How clients are trained and polled."""

from skfed.engines._loop import LoopEngine, Update, evaluate

__all__ = ["LoopEngine", "Update", "evaluate"]

"""How clients are trained and polled."""

from skfed.engines._choose import make_engine
from skfed.engines._client import evaluate
from skfed.engines._loop import LoopEngine
from skfed.engines._replies import (
    Engine,
    EvaluateRequest,
    Evaluation,
    LocalTraining,
    Polls,
    TrainRequest,
    Updates,
)
from skfed.engines._sampling import Draws, batch_size, numbered
from skfed.engines._stacked import StackedEngine
from skfed.engines._weights import row_weights

__all__ = [
    "Draws",
    "Engine",
    "EvaluateRequest",
    "Evaluation",
    "LocalTraining",
    "LoopEngine",
    "Polls",
    "StackedEngine",
    "TrainRequest",
    "Updates",
    "batch_size",
    "evaluate",
    "make_engine",
    "numbered",
    "row_weights",
]

"""How clients are trained and polled."""

from skfed.engines._choose import make_engine
from skfed.engines._client import evaluate
from skfed.engines._loop import LoopEngine
from skfed.engines._replies import (
    Engine,
    EvaluateRequest,
    Evaluation,
    Evaluator,
    LocalTraining,
    TrainRequest,
    Updates,
)
from skfed.engines._sampling import Draws, batch_size, enumerate_copies
from skfed.engines._stacked import StackedEngine
from skfed.engines._weights import row_weights

__all__ = [
    "Draws",
    "Engine",
    "EvaluateRequest",
    "Evaluation",
    "Evaluator",
    "LocalTraining",
    "LoopEngine",
    "StackedEngine",
    "TrainRequest",
    "Updates",
    "batch_size",
    "enumerate_copies",
    "evaluate",
    "make_engine",
    "row_weights",
]

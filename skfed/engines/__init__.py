"""How clients are trained and polled."""

from skfed.engines._choose import make_engine
from skfed.engines._client import evaluate
from skfed.engines._draws import Draws, batch_size, numbered
from skfed.engines._loop import LoopEngine
from skfed.engines._stacked import StackedEngine
from skfed.engines._updates import (
    Engine,
    Evaluation,
    LocalTraining,
    Order,
    Polls,
    Question,
    Updates,
)
from skfed.engines._weights import row_weights

__all__ = [
    "Draws",
    "Engine",
    "Evaluation",
    "LocalTraining",
    "LoopEngine",
    "Order",
    "Polls",
    "Question",
    "StackedEngine",
    "Updates",
    "batch_size",
    "evaluate",
    "make_engine",
    "numbered",
    "row_weights",
]

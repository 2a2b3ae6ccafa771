"""How clients are trained and polled."""

from skfed.engines._batching import Batching, enumerate_copies, first_copy_of_trial
from skfed.engines._choose import make_engine
from skfed.engines._data import clients_with_weight, row_weights
from skfed.engines._loop import LoopEngine, evaluate
from skfed.engines._replies import (
    Engine,
    Evaluation,
    Evaluator,
    Late,
    ReplyTimes,
    Report,
    Updates,
    extras_of,
    update_norms,
)
from skfed.engines._requests import (
    CURRENT_MODEL,
    EvaluateRequest,
    LocalTraining,
    SketchRequest,
    TrainRequest,
)
from skfed.engines._stacked import StackedEngine

__all__ = [
    "CURRENT_MODEL",
    "Batching",
    "Engine",
    "EvaluateRequest",
    "Evaluation",
    "Evaluator",
    "Late",
    "LocalTraining",
    "LoopEngine",
    "ReplyTimes",
    "Report",
    "SketchRequest",
    "StackedEngine",
    "TrainRequest",
    "Updates",
    "clients_with_weight",
    "enumerate_copies",
    "evaluate",
    "extras_of",
    "first_copy_of_trial",
    "make_engine",
    "row_weights",
    "update_norms",
]

"""How clients are trained and polled."""

from skfed.engines._batching import Batching, enumerate_copies, first_copy_of_trial
from skfed.engines._choose import make_engine
from skfed.engines._combinations import combine
from skfed.engines._data import Dataset, clients_with_weight, row_weights
from skfed.engines._loop import LoopEngine, Trained, evaluate
from skfed.engines._replies import (
    Engine,
    Evaluation,
    Evaluator,
    Late,
    ReplyTimes,
    Report,
    Updates,
    collect,
    extras_of,
    merge,
    update_norms,
)
from skfed.engines._requests import (
    CURRENT_MODEL,
    CombinationsRequest,
    EvaluateRequest,
    LocalTraining,
    SketchRequest,
    TrainRequest,
)
from skfed.engines._stacked import StackedEngine
from skfed.engines.workers._tasks import balanced_tree, fold
from skfed.engines.workers._worker_data import ClientData
from skfed.engines.workers._workers import Workers

__all__ = [
    "CURRENT_MODEL",
    "Batching",
    "ClientData",
    "CombinationsRequest",
    "Dataset",
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
    "Trained",
    "Updates",
    "Workers",
    "balanced_tree",
    "clients_with_weight",
    "collect",
    "combine",
    "enumerate_copies",
    "evaluate",
    "extras_of",
    "first_copy_of_trial",
    "fold",
    "make_engine",
    "merge",
    "row_weights",
    "update_norms",
]

"""The server's side of a fit: its state, its rounds, and what it sends to clients."""

from skfed.server._config import RoundConfig, selector_of
from skfed.server._cross_evaluation import cross_evaluate
from skfed.server._exchanges import make_clock, make_exchanges
from skfed.server._fitting import (
    open_rounds,
    reset_on_failure,
)
from skfed.server._fixed import Fixed
from skfed.server._held_out import (
    HeldOutEvaluation,
    HeldOutEvaluator,
    HeldOutRequest,
    HeldOutRows,
)
from skfed.server._moments import (
    SENT,
    Moments,
    Norms,
    Pooled,
    class_shares,
    client_moments,
    client_norms,
    safe_rate,
)
from skfed.server._requests import make_train_request
from skfed.server._rounds import Rounds
from skfed.server._standardize import (
    Wanted,
    ask_priority_clients,
    is_renewable,
    start_fit,
    warn_of_large_values,
)
from skfed.server._state import Best, Memory, ServerState
from skfed.server._statistics import (
    ClientMoments,
    LocalStatistics,
    RateLimits,
    StatisticsSource,
    mean_and_scale,
    rows_a_step,
)
from skfed.server._validation import Validation, is_due, make_validation
from skfed.server._warm_start import has_more_rounds, new_state, resumed_state

__all__ = [
    "SENT",
    "Best",
    "ClientMoments",
    "Fixed",
    "HeldOutEvaluation",
    "HeldOutEvaluator",
    "HeldOutRequest",
    "HeldOutRows",
    "LocalStatistics",
    "Memory",
    "Moments",
    "Norms",
    "Pooled",
    "RateLimits",
    "RoundConfig",
    "Rounds",
    "ServerState",
    "StatisticsSource",
    "Validation",
    "Wanted",
    "ask_priority_clients",
    "class_shares",
    "client_moments",
    "client_norms",
    "cross_evaluate",
    "has_more_rounds",
    "is_due",
    "is_renewable",
    "make_clock",
    "make_exchanges",
    "make_train_request",
    "make_validation",
    "mean_and_scale",
    "new_state",
    "open_rounds",
    "reset_on_failure",
    "resumed_state",
    "rows_a_step",
    "safe_rate",
    "selector_of",
    "start_fit",
    "warn_of_large_values",
]

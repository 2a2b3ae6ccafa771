"""What the server asks of clients, and what comes back: the unit in which a fit is charged."""

from skfed.exchanges._ask import Answers, Exchanges, Send, plan_exchange
from skfed.exchanges._clock import Clock
from skfed.exchanges._exchange import (
    NO_ANSWER,
    TOO_LATE,
    Exchange,
    ModelHolders,
    Outcome,
    failed_clients,
    in_one_line,
    late_clients,
)
from skfed.exchanges._failures import NOT_FINITE, FailureLog
from skfed.exchanges._fixed import FixedTensors
from skfed.exchanges._kinds import (
    EVALUATION,
    KINDS,
    POLL,
    REPORT,
    SKETCH,
    STATISTICS,
    TRAINING,
    TRIAL,
    UPLOAD,
    VALUATION,
    Kind,
)
from skfed.exchanges._limits import Limits
from skfed.exchanges._log import (
    COLUMNS,
    contributions_of,
    evaluation_table,
    exchange_table,
    pack_contributions,
    pack_evaluations,
    pack_exchanges,
    pack_losses,
    reported_losses,
    sum_contributions,
)
from skfed.exchanges._messages import Message, Messages, bytes_of
from skfed.exchanges._noise import LossPrivatizer
from skfed.exchanges._past import PastRecords, checked_columns, missing_clients

__all__ = [
    "COLUMNS",
    "EVALUATION",
    "KINDS",
    "NOT_FINITE",
    "NO_ANSWER",
    "POLL",
    "REPORT",
    "SKETCH",
    "STATISTICS",
    "TOO_LATE",
    "TRAINING",
    "TRIAL",
    "UPLOAD",
    "VALUATION",
    "Answers",
    "Clock",
    "Exchange",
    "Exchanges",
    "FailureLog",
    "FixedTensors",
    "Kind",
    "Limits",
    "LossPrivatizer",
    "Message",
    "Messages",
    "ModelHolders",
    "Outcome",
    "PastRecords",
    "Send",
    "bytes_of",
    "checked_columns",
    "contributions_of",
    "evaluation_table",
    "exchange_table",
    "failed_clients",
    "in_one_line",
    "late_clients",
    "missing_clients",
    "pack_contributions",
    "pack_evaluations",
    "pack_exchanges",
    "pack_losses",
    "plan_exchange",
    "reported_losses",
    "sum_contributions",
]

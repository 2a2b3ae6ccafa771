"""Reads what clients answer in a round."""

from collections import Counter

import numpy as np
from flwr.app import MetricRecord, RecordDict

from skfed.engines import EvaluateRequest, TrainRequest
from skfed.flower._messages import get_number, get_numbers, get_record
from skfed.flower._replies import Size, size_of_states


def size_of_updates(request: TrainRequest) -> Size:
    """Return the size of a client's updates of a training, of all of its copies."""
    n_copies = max(Counter(request.cohort.clients.tolist()).values(), default=1)
    n_states = n_copies if request.corrections is None else 2 * n_copies
    return size_of_states(request.sent_back, n_states)


def get_spread(request: TrainRequest, record: MetricRecord, loss: float) -> dict[str, np.ndarray]:
    """Return the spread of losses that a client reports, if it is needed."""
    names = ("loss_std", "loss_rms") if "spread" in request.needs else ()
    values = {name: get_number(record, name) for name in names}
    for name, value in values.items():
        if not value >= 0 and np.isfinite(loss):  # or else it has failed by its loss
            raise ValueError(f"its {name}={value} must be a number that is not negative.")
    return {name: np.array([value]) for name, value in values.items()}


def get_values(content: RecordDict, metric: str, n_models: int) -> list[float]:
    """Return the values of the models of one message."""
    return get_numbers(get_record(content, "metrics", MetricRecord), metric, n_models)


def get_metrics(content: RecordDict, names: list[str]) -> list[float]:
    """Return the metrics that a client sends; those that are not finite are a failure."""
    record = get_record(content, "metrics", MetricRecord)
    return [get_number(record, name) for name in names]


def get_value(content: RecordDict, request: EvaluateRequest) -> float | None:
    """Return the value that a polled client sends; None if it is above the bound."""
    bound = request.at_most
    if not content and bound is not None:
        return None
    value = get_number(get_record(content, "metrics", MetricRecord), str(request.metric))
    if not np.isfinite(value) or (bound is not None and value > bound):
        raise ValueError(f"its {request.metric}={value} is not finite, or above the bound.")
    return value

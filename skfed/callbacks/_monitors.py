"""Callbacks that monitor a value, such as EarlyStopping: called only in rounds that have the value.

A round has no objective if no client was polled for it, and no validation scores if it was not
validated. A NaN in their place would count against a callback's patience.
"""

from collections.abc import Callable, Sequence
from typing import Any

from skorch import NeuralNet
from skorch.callbacks import Callback, Checkpoint, EpochScoring, LRScheduler, PassthroughScoring
from torch.optim.lr_scheduler import ReduceLROnPlateau

NamedCallbacks = Sequence[tuple[str, Callback]]

# Sources of columns.
_ROUND, _TRAIN, _VALID = "a round", "training rows", "validation data"
_OWNERS = "each client's validation rows"
#: Columns of history_ that are copied to the net's history, and their source.
COPIED_COLUMNS = {
    "objective": _ROUND,
    "val_loss": _VALID,
    "val_score": _VALID,
    "val_score_worst": _OWNERS,
    "n_aggregated": _ROUND,
    "bytes_down": _ROUND,
    "bytes_up": _ROUND,
}
_MISSING = {
    _TRAIN: "the server has none",
    _VALID: "there is none: pass X_val and y_val to fit",
    _OWNERS: "their clients are not known: pass clients_val, too, to fit",
}


def monitor_of(callback: Callback) -> str | Callable[[NeuralNet], Any] | None:
    """Return what a callback monitors: a column of the net's history, or a function of the net."""
    if isinstance(callback, LRScheduler) and not _is_plateau_of_rounds(callback):
        return None  # it has a default monitor that it does not use
    monitor = getattr(callback, "monitor", None)
    is_function = callable(monitor) and isinstance(callback, LRScheduler | Checkpoint)
    return monitor if is_function or isinstance(monitor, str) else None


def check_monitors(
    callbacks: NamedCallbacks, has_train: bool, has_valid: bool, has_owners: bool
) -> dict[str, str]:
    """Check that the monitored columns can exist; return the source of each known column."""
    available = {_ROUND: True, _TRAIN: has_train, _VALID: has_valid, _OWNERS: has_owners}
    sources = {"epoch": _ROUND, "dur": _ROUND} | COPIED_COLUMNS
    # A callback of the user's own class may record any column.
    all_known = all(type(cb).__module__.partition(".")[0] == "skorch" for _, cb in callbacks)
    for name, callback in callbacks:
        monitor = monitor_of(callback)
        if isinstance(monitor, str) and (monitor in sources or all_known):
            _check_monitor(name, monitor, sources, available)
        sources |= _recorded_columns(callback)
    return sources


def _check_monitor(
    name: str, monitor: str, sources: dict[str, str], available: dict[str, bool]
) -> None:
    source = sources.get(monitor)
    if source is None:
        reason = "which no callback before it records"
    elif available[source]:
        return
    else:
        reason = f"which is measured on {source}, and {_MISSING[source]}"
    columns = [column for column, source in sources.items() if available[source]]
    raise ValueError(
        f"estimator's callback {name} monitors {monitor!r}, {reason}; or set "
        f"callbacks__{name}__monitor to one of {columns}."
    )


def _recorded_columns(callback: Callback) -> dict[str, str]:
    """Return the columns that a callback of skorch records, and their sources."""
    source = _TRAIN if getattr(callback, "on_train", False) else _VALID
    if isinstance(callback, EpochScoring):
        name = callback.name_
    elif isinstance(callback, PassthroughScoring):  # averages the losses in the round's history
        name, source = callback.name, _ROUND if callback.on_train else _VALID
    else:
        event = getattr(callback, "event_name", None)
        return {} if event is None else {event: _ROUND}
    best = {} if callback.lower_is_better is None else {f"{name}_best": source}
    return {name: source} | best


def call_on_epoch_end(
    callback: Callback, net: NeuralNet, sources: dict[str, str], **data: Any
) -> bool:
    """Call a callback if the round has what it monitors; return whether it was called.

    A monitor that is a function raises KeyError, as the history does, if the round lacks its value.
    """
    monitor: Any = monitor_of(callback)
    if isinstance(monitor, str) and monitor in sources and monitor not in net.history[-1]:
        return _skip(callback, net)
    if not callable(monitor):
        callback.on_epoch_end(net, **data)
        return True
    try:
        value = monitor(net)
    except KeyError:
        return _skip(callback, net)
    callback.monitor = lambda net: value  # the function is called once a round
    try:
        callback.on_epoch_end(net, **data)
    finally:
        callback.monitor = monitor
    return True


def _skip(callback: Callback, net: NeuralNet) -> bool:
    if isinstance(callback, Checkpoint) and callback.event_name is not None:
        # Checkpoint finds the round that it saved by this event in each row of the history.
        net.history.record(callback.event_name, False)
    return False


def _is_plateau_of_rounds(scheduler: LRScheduler) -> bool:
    policy = scheduler.policy_
    is_plateau = isinstance(policy, type) and issubclass(policy, ReduceLROnPlateau)
    return is_plateau and scheduler.step_every == "epoch"

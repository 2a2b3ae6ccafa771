"""Callbacks that monitor a value, such as EarlyStopping: they see the rounds that have it.

A round has no objective where nobody was polled for it, and no validation between two of them.
Recording NaN would count such a round against a callback's patience.
"""

from collections.abc import Callable, Sequence
from typing import Any

from skorch import NeuralNet
from skorch.callbacks import Callback, Checkpoint, EpochScoring, LRScheduler, PassthroughScoring
from torch.optim.lr_scheduler import ReduceLROnPlateau

Named = Sequence[tuple[str, Callback]]

_ROUND, _TRAIN, _VALID = "a round", "training rows", "validation data"  # what is measured on what
#: Columns of history_ that the net's history gets, for TensorBoard, PrintLog and monitors.
SHOWN = {
    "objective": _ROUND,
    "val_loss": _VALID,
    "val_score": _VALID,
    "n_aggregated": _ROUND,
    "bytes_down": _ROUND,
    "bytes_up": _ROUND,
}
_COLUMNS = {"epoch": _ROUND, "dur": _ROUND} | SHOWN
_REMEDY = {
    _TRAIN: "the server holds none",
    _VALID: "there is none: pass X_val and y_val to fit",
}


def monitor_of(callback: Callback) -> str | Callable[[NeuralNet], Any] | None:
    """Return what a callback monitors: a column of the net's history, or a function of the net."""
    if isinstance(callback, LRScheduler) and not _is_plateau_of_rounds(callback):
        return None  # it has a monitor by default, and does not look at it
    monitor = getattr(callback, "monitor", None)
    is_function = callable(monitor) and isinstance(callback, LRScheduler | Checkpoint)
    return monitor if is_function or isinstance(monitor, str) else None


def check_monitors(callbacks: Named, has_train: bool, has_valid: bool) -> dict[str, str]:
    """Check that what is monitored can be there; return what each known column is measured on.

    Raises
    ------
    ValueError
        If no round can have it.
    """
    known, there = dict(_COLUMNS), {_ROUND: True, _TRAIN: has_train, _VALID: has_valid}
    all_known = all(type(cb).__module__.partition(".")[0] == "skorch" for _, cb in callbacks)
    for name, callback in callbacks:
        monitor = monitor_of(callback)
        if isinstance(monitor, str) and (monitor in known or all_known):
            possible = [column for column, source in known.items() if there[source]]
            _check(name, monitor, known.get(monitor), possible, there)
        known |= _recorded(callback)
    return known


def _check(
    name: str, monitor: str, source: str | None, possible: list[str], there: dict[str, bool]
) -> None:
    if source is not None and there[source]:
        return
    why = "which no callback before it records"
    if source is not None:
        why = f"which is measured on {source}, and {_REMEDY[source]}"
    raise ValueError(
        f"estimator's callback {name} monitors {monitor!r}, {why}; or let it monitor one of "
        f"{possible} (callbacks__{name}__monitor)."
    )


def _recorded(callback: Callback) -> dict[str, str]:
    """Return the columns that a callback of skorch records, and what they are measured on."""
    source = _TRAIN if getattr(callback, "on_train", False) else _VALID
    if isinstance(callback, EpochScoring):
        name = callback.name_
    elif isinstance(callback, PassthroughScoring):  # of the losses that a round has
        name, source = callback.name, _ROUND if callback.on_train else _VALID
    else:
        event = getattr(callback, "event_name", None)
        return {} if event is None else {event: _ROUND}
    best = {} if callback.lower_is_better is None else {f"{name}_best": source}
    return {name: source} | best


def end_round(callback: Callback, net: NeuralNet, known: dict[str, str], **data: Any) -> bool:
    """Show a callback a round, unless this lacks what it monitors; tell whether it was shown.

    A round lacks what a function monitors if that raises KeyError, as the history does.
    """
    monitor: Any = monitor_of(callback)
    if isinstance(monitor, str) and monitor in known and monitor not in net.history[-1]:
        return _hide(callback, net)
    if not callable(monitor):
        callback.on_epoch_end(net, **data)
        return True
    try:
        value = monitor(net)
    except KeyError:
        return _hide(callback, net)
    callback.monitor = lambda net: value  # asked once
    try:
        callback.on_epoch_end(net, **data)
    finally:
        callback.monitor = monitor
    return True


def _hide(callback: Callback, net: NeuralNet) -> bool:
    if isinstance(callback, Checkpoint) and callback.event_name is not None:
        # It counts these events to find the round that it saved.
        net.history.record(callback.event_name, False)
    return False


def _is_plateau_of_rounds(scheduler: LRScheduler) -> bool:
    policy = scheduler.policy_
    is_plateau = isinstance(policy, type) and issubclass(policy, ReduceLROnPlateau)
    return is_plateau and scheduler.step_every == "epoch"

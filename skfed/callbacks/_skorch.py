"""The wrapped net's epoch-level callbacks, once a round: a round is an epoch of the global net.

Batch-level callbacks are called at the clients instead (``nets.NetPool``).
"""

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from inspect import signature
from typing import Any, Protocol

import numpy as np
from skorch import NeuralNet
from skorch.callbacks import BatchScoring, Callback, EpochScoring, LRScheduler, PrintLog
from skorch.history import History

from skfed.callbacks._monitors import (
    COPIED_COLUMNS,
    NamedCallbacks,
    call_on_epoch_end,
    check_monitors,
    monitor_of,
)
from skfed.callbacks._stops import stops_rounds
from skfed.utils._files import to_json
from skfed.utils._seeding import torch_seeded
from skfed.utils._warnings import warn

Rows = tuple[Any, np.ndarray]  # X and y as the net takes them
CallbackState = dict[str, dict[str, Any]]

_BATCH_HOOKS = "on_batch_begin", "on_batch_end", "on_grad_computed"
_ROUND_HOOKS = "on_epoch_end", "on_train_end"
_BEGIN_HOOKS = "on_train_begin", "on_epoch_begin"


def _hooks(callback: Callback, *names: str) -> list[str]:
    """Return those of the hooks that the callback implements."""
    return [name for name in names if getattr(type(callback), name) != getattr(Callback, name)]


def acts_on_batches(callback: Callback) -> bool:
    """Return whether a callback is called at the clients, for their batches."""
    if isinstance(callback, EpochScoring):  # its batch hooks only cache predictions
        return False
    if isinstance(callback, BatchScoring):
        return callback.on_train
    if isinstance(callback, LRScheduler) and callback.step_every != "batch":
        return False
    return bool(_hooks(callback, *_BATCH_HOOKS))


def acts_on_rounds(callback: Callback) -> bool:
    """Return whether a callback is called with the global net after each round."""
    if isinstance(callback, BatchScoring):  # the global net has no batches
        return False
    return bool(_hooks(callback, *_ROUND_HOOKS))


def _user_callbacks(net: NeuralNet) -> NamedCallbacks:
    """Return the callbacks that are not skorch's defaults."""
    defaults = {name for name, _ in net.get_default_callbacks()}
    return [(name, callback) for name, callback in net.callbacks_ if name not in defaults]


def idle_callbacks(net: NeuralNet) -> list[str]:
    """Return the names of the user's callbacks or hooks that have no effect, with the reason."""
    callbacks = _user_callbacks(net)
    at_clients = [callback for _, callback in callbacks if acts_on_batches(callback)]
    only_scores = all(isinstance(callback, BatchScoring) for callback in at_clients)
    idle = []
    for name, callback in callbacks:
        if isinstance(callback, BatchScoring) and not callback.on_train:
            idle.append(f"{name} (no client has validation batches: use EpochScoring)")
        elif isinstance(callback, BatchScoring) and only_scores:
            idle.append(
                f"{name} (its scores stay with the clients, where no other callback sees them: "
                "use EpochScoring)"
            )
        elif not (acts_on_batches(callback) or acts_on_rounds(callback)):
            idle += [f"{name}.{hook}" for hook in _hooks(callback, *_BEGIN_HOOKS)]
    return idle


class ValidationData(Protocol):
    """The validation data of a fit."""

    @property
    def rows(self) -> Rows | None:
        """X and y as the net takes them; None if callbacks get none."""

    @property
    def owners(self) -> np.ndarray | None:
        """The client of each row; None if they are not known."""

    def is_due(self, t: int) -> bool:
        """Return whether the net is validated after round t."""


class RoundCallbacks:
    """Calls the epoch-level callbacks of a net, if the user gave any."""

    def __init__(self, net: NeuralNet, train: Rows | None, validation: ValidationData | None):
        self.net = net
        self.callbacks = _round_callbacks(net)
        valid = None if validation is None else validation.rows
        self.n_valid = 0 if valid is None else len(valid[1])
        self.is_due = validation.is_due if validation and self.n_valid else lambda t: False
        has_owners = validation is not None and validation.owners is not None
        self.sources = check_monitors(
            self.callbacks, train is not None, valid is not None, has_owners
        )
        self.called: dict[str, bool] = {}  # whether any round had what a callback monitors
        if self.callbacks:
            # Callbacks may compute with X, which is read whole where it is a memory map.
            datasets = [
                None if rows is None else net.get_dataset(rows[0][:], rows[1])
                for rows in (train, valid)
            ]
            self.data = {"dataset_train": datasets[0], "dataset_valid": datasets[1]}

    def begin(
        self, callback_state: CallbackState | None = None, restarted: Collection[str] = ()
    ) -> None:
        """Call on_train_begin in the first fit of a net, and restore ``callback_state``, if given.

        skorch would call it in each fit, and an LRScheduler takes a step there. Only callbacks
        whose names are in ``restarted`` begin again in a later fit.
        """
        is_first = callback_state is not None or not self.net.history
        beginning = [(name, cb) for name, cb in self.callbacks if is_first or name in restarted]
        rates = [dict(group) for group in self.net.optimizer_.param_groups]
        history, self.net.history = self.net.history, History()
        self._call("on_train_begin", beginning, X=None, y=None)
        self.net.history = history or self.net.history
        if callback_state is None:
            return
        _restore(self.callbacks, callback_state)
        if not any(isinstance(cb, LRScheduler) and name in restarted for name, cb in beginning):
            for group, rate in zip(self.net.optimizer_.param_groups, rates, strict=True):
                group.update(rate)  # a scheduler sets the rates in on_train_begin

    def kept(self) -> Callable[[], None]:
        """Return a function that restores the callbacks, the net's history and rates as of now.

        Of a callback's attributes those that a file can hold, and all that have a state_dict.
        """
        if not self.callbacks:
            return lambda: None
        net, history, n_epochs = self.net, self.net.history, len(self.net.history)
        groups = net.optimizer_.param_groups
        before = [(one, dict(one)) for one in (*groups, *(vars(cb) for _, cb in self.callbacks))]
        state = {
            name: {a: deepcopy(entry) for a, _, entry, is_plain in _attributes(callback)
                   if is_plain or entry[0] == "state"}
            for name, callback in self.callbacks
        }  # fmt: skip

        def restore() -> None:
            net.history = history
            del history[n_epochs:]
            for one, values in before:
                one.clear()
                one.update(values)
            _restore(self.callbacks, state)

        return restore

    def begin_round(self) -> None:
        """Call on_epoch_begin."""
        if self.callbacks:
            self.net.history.new_epoch()
            self.net.history.record("epoch", len(self.net.history))
            self._call("on_epoch_begin", self.callbacks, **self.data)

    def end_round(self, row: dict[str, Any]) -> bool:
        """Call on_epoch_end with the round's row of history_; return whether to stop."""
        if not self.callbacks:
            return False
        is_validated = self.is_due(row["round"])
        self._record(row, is_validated)
        data = self.data if is_validated else self.data | {"dataset_valid": None}
        try:
            with self._isolated():
                for name, callback in self.callbacks:
                    if isinstance(callback, PrintLog) and len(self.net.history) > 1:
                        # It prints its header again if the columns differ from the last round's.
                        one, other = self.net.history[-2:]
                        callback.first_iteration_ |= one.keys() != other.keys()
                    called = call_on_epoch_end(callback, self.net, self.sources, **data)
                    self.called[name] = self.called.get(name, False) or called
        except KeyboardInterrupt as error:
            if not stops_rounds(error):
                raise
            return True
        return False

    def _record(self, row: dict[str, Any], is_validated: bool) -> None:
        """Record a round in the net's history, as skorch does for an epoch of one batch."""
        epoch = self.net.history[-1]  # once, since each access copies the list of all epochs
        epoch["dur"] = row["round_seconds"]
        measured = {"val_loss", "val_score"} if is_validated else set()
        for name in COPIED_COLUMNS:  # a measured loss may be infinite
            if name in measured or np.isfinite(row.get(name, np.nan)):
                epoch[name] = row[name]
        batch = {"train_batch_size": max(row["samples_trained"], 1)}
        if np.isfinite(row["train_loss"]):
            batch["train_loss"] = row["train_loss"]
        if is_validated:
            batch |= {"valid_loss": row["val_loss"], "valid_batch_size": self.n_valid}
        epoch["batches"].append(batch)

    def end(self, complete: bool) -> None:
        """Call on_train_end; if all rounds were run, warn of monitors that no round had."""
        self._call("on_train_end", self.callbacks, X=None, y=None)
        skipped = [
            f"{name} (monitor={monitor_of(callback)!r})"
            for name, callback in self.callbacks
            if not self.called.get(name, True)
            and not any(monitor_of(callback) in row for row in self.net.history)
        ]
        if skipped and complete:
            warn(
                "estimator's callbacks monitor what no round of this fit had, so they had no "
                f"effect: {', '.join(skipped)}. history_ shows what the rounds have; the objective "
                "needs a selector that polls all available priority clients, as FedAlignSelector "
                "does after its warm-up."
            )

    def _call(self, hook: str, callbacks: NamedCallbacks, **kwargs: Any) -> None:
        if callbacks:
            with self._isolated():
                for _, callback in callbacks:
                    getattr(callback, hook)(self.net, **kwargs)

    @contextmanager
    def _isolated(self) -> Iterator[None]:
        """Keep callbacks' random draws from the fit, and suppress warnings that do not apply."""
        caching, self.net.use_caching = self.net.use_caching, False  # there are no batches
        try:
            # A DataLoader draws from torch's global generator.
            seeded = torch_seeded(np.random.default_rng(0), self.net.device)
            with seeded, warnings.catch_warnings():
                # Clients take the optimizer's steps, not the global net.
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                yield
        finally:
            self.net.use_caching = caching


def _round_callbacks(net: NeuralNet) -> NamedCallbacks:
    """Return the callbacks that are called once a round: none, unless the user gave some."""
    users = [(name, cb) for name, cb in _user_callbacks(net) if acts_on_rounds(cb)]
    # skorch's defaults record the scores that other callbacks use; PrintLog is opt-in.
    kept = {name for name, _ in net.get_default_callbacks()} - {"print_log", "epoch_timer"}
    defaults = [(name, callback) for name, callback in net.callbacks_ if name in kept]
    return [*defaults, *users] if users else []


def get_callback_state(net: NeuralNet) -> tuple[CallbackState, list[str]]:
    """Return the state of a net's callbacks, and the names of attributes that are not in it.

    The state maps callback and attribute to ("plain", value) or, for objects with a
    ``state_dict``, to ("state", state). Parameters are not in it.
    """
    state: CallbackState = {}
    unsaved: list[str] = []
    for name, callback in _round_callbacks(net):
        state[name] = {}
        for attribute, value, entry, is_plain in _attributes(callback):
            if is_plain:
                state[name][attribute] = entry
            elif not callable(value):
                unsaved.append(f"{name}.{attribute}")
    return state, sorted(unsaved)


def _attributes(callback: Callback) -> Iterator[tuple[str, Any, tuple[str, Any], bool]]:
    """Yield attributes that are no parameters: name, value, entry, and whether a file can hold it.

    The entry is ("plain", value) or ("state", what ``state_dict`` returns).
    """
    params = signature(type(callback)).parameters  # skorch's get_params has more
    for name in vars(callback).keys() - params.keys():
        value = getattr(callback, name)
        entry = ("state", value.state_dict()) if _has_state(value) else ("plain", value)
        try:
            to_json(entry, {})
        except TypeError:
            yield name, value, entry, False
        else:
            yield name, value, entry, True


def warn_of_unsaved(attributes: list[str]) -> None:
    """Warn of attributes that are not in the file that training continues from."""
    warn(
        "attributes of estimator's callbacks are reset when training continues from a file: "
        f"{', '.join(attributes)}. Plain values are saved, and objects that have a state_dict and "
        "exist after on_train_begin."
    )


def _restore(callbacks: NamedCallbacks, state: CallbackState) -> None:
    """Set the callbacks' attributes; warn of objects that do not exist after on_train_begin."""
    missing = []
    for name, callback in callbacks:
        for attribute, (kind, value) in state.get(name, {}).items():
            current: Any = getattr(callback, attribute, None)
            if kind == "plain":
                setattr(callback, attribute, value)
            elif _has_state(current):
                current.load_state_dict(value)
            else:
                missing.append(f"{name}.{attribute}")
    if missing:
        warn_of_unsaved(missing)


def _has_state(value: Any) -> bool:
    return hasattr(value, "load_state_dict") and not isinstance(value, type)

"""The wrapped net's epoch-level callbacks, once a round: a round is an epoch of the global net.

Batch-level hooks act on every client's batches instead (``nets.NetPool``).
"""

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any, Protocol

import numpy as np
from skorch import NeuralNet
from skorch.callbacks import BatchScoring, Callback, EpochScoring, LRScheduler, PrintLog
from skorch.history import History

from skfed.callbacks._monitors import SHOWN, Named, check_monitors, end_round, monitor_of
from skfed.utils._files import to_json
from skfed.utils._seeding import torch_seeded
from skfed.utils._warnings import warn

Rows = tuple[np.ndarray, np.ndarray]

_BATCH_HOOKS = "on_batch_begin", "on_batch_end", "on_grad_computed"
_ROUND_HOOKS = "on_epoch_end", "on_train_end"
_BEGINNINGS = "on_train_begin", "on_epoch_begin"


def _hooks(callback: Callback, *names: str) -> list[str]:
    """Return those of the hooks that the callback implements."""
    return [name for name in names if getattr(type(callback), name) != getattr(Callback, name)]


def acts_on_batches(callback: Callback) -> bool:
    """Tell whether a callback is for the clients' batches."""
    if isinstance(callback, EpochScoring):  # only to cache predictions
        return False
    if isinstance(callback, BatchScoring):
        return callback.on_train
    if isinstance(callback, LRScheduler) and callback.step_every != "batch":
        return False
    return bool(_hooks(callback, *_BATCH_HOOKS))


def acts_on_rounds(callback: Callback) -> bool:
    """Tell whether a callback is for the global net after each round."""
    if isinstance(callback, BatchScoring):  # it has no batches of its own
        return False
    return bool(_hooks(callback, *_ROUND_HOOKS))


def idle_callbacks(net: NeuralNet) -> list[str]:
    """Name those of the user's callbacks that have no effect, with what they would have done."""
    own = {name for name, _ in net.get_default_callbacks()}
    given = [(name, callback) for name, callback in net.callbacks_ if name not in own]
    of_clients = [callback for _, callback in given if acts_on_batches(callback)]
    only_scores = all(isinstance(callback, BatchScoring) for callback in of_clients)
    idle = []
    for name, callback in given:
        if isinstance(callback, BatchScoring) and not callback.on_train:
            idle.append(f"{name} (no client has validation batches: use EpochScoring)")
        elif isinstance(callback, BatchScoring) and only_scores:
            idle.append(
                f"{name} (its scores stay with the clients, where no other callback sees them: "
                "use EpochScoring)"
            )
        elif not (acts_on_batches(callback) or acts_on_rounds(callback)):
            idle += [f"{name}.{hook}" for hook in _hooks(callback, *_BEGINNINGS)]
    return idle


class HeldOut(Protocol):
    """What callbacks need to know of validation data."""

    @property
    def rows(self) -> Rows | None:
        """X and y as the net takes them; None shows callbacks none."""

    def is_due(self, t: int) -> bool:
        """Tell whether the net is measured on them after round t."""


class RoundCallbacks:
    """Runs the epoch-level callbacks of a net; nothing if the user gave none.

    Parameters
    ----------
    net : NeuralNet
        Holds the global model.
    train : tuple of ndarray, or None
        X and y as the net takes them.
    validation : HeldOut or None
        The validation data, and the rounds after which the net is measured on them.

    Raises
    ------
    ValueError
        If a callback monitors what no round can have.
    """

    def __init__(
        self,
        net: NeuralNet,
        train: Rows | None,
        validation: HeldOut | None,
    ):
        self.net = net
        self.callbacks = _of_rounds(net)
        valid = None if validation is None else validation.rows
        self.n_valid = 0 if valid is None else len(valid[1])
        self.validation = validation
        self.known = check_monitors(self.callbacks, train is not None, valid is not None)
        self.blind: dict[str, bool] = {}  # who has seen no round that has what it monitors
        if self.callbacks:
            datasets = [None if rows is None else net.get_dataset(*rows) for rows in (train, valid)]
            self.data = {"dataset_train": datasets[0], "dataset_valid": datasets[1]}

    def begin(self, remembered: dict[str, Any] | None = None, anew: Collection[str] = ()) -> None:
        """Start the training; a warm start or another partial_fit goes on with it.

        skorch would begin anew, and an LRScheduler then take a step more at each beginning. With
        what another process ``remembered``, the training goes on from there. Callbacks that are to
        begin ``anew`` are given by name.
        """
        is_first = remembered is not None or not self.net.history
        beginning = [(name, one) for name, one in self.callbacks if is_first or name in anew]
        rates = [dict(group) for group in self.net.optimizer_.param_groups]
        history, self.net.history = self.net.history, History()
        self._notify("on_train_begin", beginning, X=None, y=None)
        self.net.history = history or self.net.history
        if remembered is None:
            return
        lost = [
            f"{name}.{attribute}"
            for name, callback in self.callbacks
            for attribute in _remind(callback, remembered.get(name, {}))
        ]
        if not any(isinstance(one, LRScheduler) and name in anew for name, one in self.callbacks):
            for group, rate in zip(self.net.optimizer_.param_groups, rates, strict=True):
                group.update(rate)  # which schedulers set when they begin
        if lost:
            warn_of_lost(lost)

    def begin_round(self) -> None:
        """Start a round."""
        if self.callbacks:
            self.net.history.new_epoch()
            self.net.history.record("epoch", len(self.net.history))
            self._notify("on_epoch_begin", **self.data)

    def end_round(self, row: dict[str, Any]) -> bool:
        """Show the callbacks a round; tell whether one of them wants to stop."""
        if not self.callbacks:
            return False
        history = self.net.history
        history.record("dur", row["round_seconds"])
        validated = self._is_validated(row["round"])
        measured = {"val_loss", "val_score"} if validated else set()
        for name in SHOWN:  # a loss that was measured may be infinite
            if name in measured or np.isfinite(row.get(name, np.nan)):
                history.record(name, row[name])
        history.new_batch()
        if np.isfinite(row["train_loss"]):
            history.record_batch("train_loss", row["train_loss"])
        history.record_batch("train_batch_size", max(row["samples_trained"], 1))
        if validated:
            history.record_batch("valid_loss", row["val_loss"])
            history.record_batch("valid_batch_size", self.n_valid)
        data = self.data if validated else self.data | {"dataset_valid": None}
        try:
            with self._apart():
                for name, callback in self.callbacks:
                    self._show(name, callback, data)
        except KeyboardInterrupt:  # how skorch's EarlyStopping stops
            return True
        return False

    def _is_validated(self, t: int) -> bool:
        """Tell whether callbacks see what was measured on validation data after round t."""
        return self.validation is not None and self.n_valid > 0 and self.validation.is_due(t)

    def _show(self, name: str, callback: Callback, data: dict[str, Any]) -> None:
        """Show a callback a round, if this has what it monitors."""
        history = self.net.history
        if isinstance(callback, PrintLog) and len(history) > 1:
            # Its columns are those of the round: another header where they are others.
            callback.first_iteration_ |= history[-1].keys() != history[-2].keys()
        shown = end_round(callback, self.net, self.known, **data)
        self.blind[name] = self.blind.get(name, True) and not shown

    def end(self, complete: bool) -> None:
        """End a fit; if all its rounds were run, say which callbacks had nothing to monitor."""
        self._notify("on_train_end", X=None, y=None)
        blind = [(name, monitor_of(cb)) for name, cb in self.callbacks if self.blind.get(name)]
        told = [
            f"{name} (monitor={monitor!r})"
            for name, monitor in blind
            if not any(monitor in row for row in self.net.history)
        ]
        if told and complete:
            warn(
                "estimator's callbacks monitor what no round of this fit had, and so did nothing: "
                f"{', '.join(told)}. history_ shows what the rounds have; the objective takes "
                "a selector that polls all priority clients in reach, as FedAlignSelector does "
                "after its warm-up."
            )

    def _notify(self, hook: str, callbacks: Named | None = None, **given: Any) -> None:
        callbacks = self.callbacks if callbacks is None else callbacks
        if callbacks:
            with self._apart():
                for _, callback in callbacks:
                    getattr(callback, hook)(self.net, **given)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Keep what callbacks do from the rest: draws, and warnings that mean nothing here."""
        caching, self.net.use_caching = self.net.use_caching, False  # there are no batches
        try:
            # Seeded, since a DataLoader draws from torch's global generator.
            with (
                torch_seeded(np.random.default_rng(0), self.net.device),
                warnings.catch_warnings(),
            ):
                # Clients take the optimizer's steps, not the global net.
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                yield
        finally:
            self.net.use_caching = caching


def _of_rounds(net: NeuralNet) -> Named:
    """Return the callbacks that are told of rounds: none, unless the user has given some."""
    own = {name for name, _ in net.get_default_callbacks()}
    given = [(name, cb) for name, cb in net.callbacks_ if name not in own and acts_on_rounds(cb)]
    # skorch's own keep the scores that the others look at; its log is ours to print.
    kept = own - {"print_log", "epoch_timer"}
    defaults = [(name, callback) for name, callback in net.callbacks_ if name in kept]
    return [*defaults, *given] if given else []


def memory_of(net: NeuralNet) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return what a net's callbacks remember, by callback and attribute, for another process.

    That are their plain attributes, beyond their parameters, as ("plain", value), and the states
    of what has a ``state_dict``, as ("state", value). What else they keep is named.
    """
    memory: dict[str, dict[str, Any]] = {}
    left_out: list[str] = []
    for name, callback in _of_rounds(net):
        params = signature(type(callback)).parameters  # skorch's get_params has more
        memory[name] = {}
        for attribute in vars(callback).keys() - params.keys():
            value = getattr(callback, attribute)
            kept = ("state", value.state_dict()) if _has_state(value) else ("plain", value)
            try:
                to_json(kept, {})
            except TypeError:
                left_out += [] if callable(value) else [f"{name}.{attribute}"]
            else:
                memory[name][attribute] = kept
    return memory, sorted(left_out)


def warn_of_lost(names: list[str]) -> None:
    """Say what of callbacks does not go through a file."""
    warn(
        "estimator's callbacks keep what begins anew when the training goes on from a file: "
        f"{', '.join(names)}. Plain values that are there from on_train_begin on go on, and "
        "objects with a state_dict."
    )


def _remind(callback: Callback, memory: dict[str, Any]) -> list[str]:
    """Give a callback its memory; return what of it finds no place."""
    homeless = []
    for name, (kind, value) in memory.items():
        current: Any = getattr(callback, name, None)
        if kind == "plain":
            setattr(callback, name, value)
        elif _has_state(current):
            current.load_state_dict(value)
        else:  # an object that the callback makes later than on_train_begin
            homeless.append(name)
    return homeless


def _has_state(value: Any) -> bool:
    return hasattr(value, "load_state_dict") and not isinstance(value, type)

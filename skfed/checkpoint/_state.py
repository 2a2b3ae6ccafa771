"""The server's state as it is in a file: a dict of plain values and tensors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from skorch import NeuralNet
from skorch.history import History

from skfed._problem import Guess
from skfed.callbacks._skorch import get_callback_state, warn_of_unsaved
from skfed.exchanges import PastRecords, checked_columns
from skfed.nets import State, get_state, set_shift, set_state, shift_of, standardize_layers
from skfed.selection._cohort import copied_memory
from skfed.server import Best, Fixed, Memory, Pooled, ServerState
from skfed.utils._files import checksum


class _Field(NamedTuple):
    """A field's type, and its default in a file that was written before the field was added."""

    kind: Any
    default: Callable[[], Any] | None = None  # None: every file has the field


# A new field is a line here, one in state_to_dict and one in restore.
_FIELDS = {
    "model": _Field(dict),
    "seed": _Field(int),
    "past": _Field(dict | None, lambda: None),
    "reported": _Field(dict, dict),  # until there was a past, its columns "reported" and "waited"
    "seconds": _Field(dict, dict),
    "memory": _Field(list, lambda: ["", {}]),
    "optimizer_state": _Field(dict | None, lambda: None),
    "variates": _Field(list, lambda: [{}, {}]),  # the server's, and the clients' by digest
    "told": _Field(list, list),  # failures that were logged
    "messages": _Field(dict, dict),
    "private_rounds": _Field(tuple, tuple),
    "begun": _Field(int, int),
    "stopped": _Field(int, int),
    "proven": _Field(dict | None, lambda: None),
    "best": _Field(tuple | None, lambda: None),  # of "proven": its loss, round and name
    "columns": _Field(tuple | None, lambda: None),  # the moments of X
    "shift": _Field(np.ndarray | None, lambda: None),
    "rate": _Field(float | None, lambda: None),
    "guess": _Field(tuple | None, lambda: None),
    "net_history": _Field(list, list),
    "net_rates": _Field(list | None, lambda: None),  # None: those of the new net
    "callbacks": _Field(dict | None, lambda: None),
    "target_scale": _Field(tuple | None, lambda: None),
    "fixed": _Field(dict, dict),  # version and digest of what training leaves alone, by name
}


def state_to_dict(server: ServerState) -> dict[str, Any]:
    """Return all of a server's state but the rows of the history."""
    return {
        "model": get_state(server.net),
        "seed": server.seed,
        "past": server.past.to_columns(),
        "memory": [server.memory.owner, dict(server.memory.values)],
        "optimizer_state": server.optimizer_state,
        "variates": [server.variate, server.variates],
        "told": sorted(server.logged),
        "messages": {
            (key, *message): n
            for key, messages in server.messages.items()
            for message, n in messages.items()
        },
        "private_rounds": server.private_rounds,
        "begun": server.begun,
        "stopped": server.stopped,
        # A fit that diverges later has to keep the same model as without the interruption.
        "proven": server.best and server.best.state,
        "best": server.best and (server.best.loss, server.best.round, server.best.name),
        "columns": server.columns and tuple(server.columns),
        "shift": shift_of(server.net),
        "rate": server.rate,
        "guess": server.guess and tuple(server.guess),
        "net_history": server.net.history.to_list(),
        "net_rates": [_rates(group) for group in server.net.optimizer_.param_groups],
        "callbacks": server.current_callback_state(),
        "target_scale": server.target_scale,
        "fixed": {n: (v, server.fixed.digests[n]) for n, v in server.fixed.versions.items()},
    }


def restore(server: ServerState, given: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Set the state of a server whose net is newly initialised, after checks of all its fields."""
    try:
        state = _with_defaults(given)
        _check_types(state, rows)
        for model in (state["model"], state["proven"] or state["model"]):
            _check_shapes(get_state(server.net), model)
        groups = server.net.optimizer_.param_groups
        rates = [{}] * len(groups) if state["net_rates"] is None else state["net_rates"]
        pairs = list(zip(groups, rates, strict=True))
        messages, logged = _messages(state["messages"]), set(state["told"])
        variate, variates = state["variates"]
        best, columns = _best(state), _columns(state, server.net)
        past = PastRecords(checked_columns(_past(state)))
        owner, values = state["memory"]
        memory = Memory(str(owner), copied_memory(values, "the file"))
        set_state(server.net, state["model"])
        for group, one in pairs:
            group.update(one)
        server.net.history = History(state["net_history"])
        server.seed, server.rows = state["seed"], rows
        server.past, server.memory = past, memory
        server.optimizer_state, server.logged = state["optimizer_state"], logged
        server.variate, server.variates = variate, variates
        server.messages, server.private_rounds = messages, state["private_rounds"]
        server.begun, server.stopped = state["begun"], state["stopped"]
        server.callback_state = state["callbacks"]
        server.best, server.columns = best, columns
        server.target_scale, server.rate = state["target_scale"], state["rate"]
        server.guess = state["guess"] and Guess(*state["guess"])
        server.fixed = _fixed(state["fixed"])
        set_shift(server.net, state["shift"])
        server.succeeded = True  # only such a state is written
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"it holds no valid state: {error!r}") from error


def _past(state: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of clients, of a file of an older format too."""
    if state["past"] is not None:
        return state["past"]
    reported, waited = state["reported"], state["seconds"]
    clients = tuple(reported | waited)
    return {
        "clients": clients,
        "reported": np.array([reported.get(key, np.inf) for key in clients], dtype=float),
        "waited": np.array([waited.get(key, np.nan) for key in clients], dtype=float),
    }


def _best(state: dict[str, Any]) -> Best | None:
    """Return the model of the lowest loss; in a file of an older format it has none."""
    if state["best"] is None or state["proven"] is None:
        return None
    loss, t, name = state["best"]
    return Best(float(loss), int(t), state["proven"], str(name))


def _columns(state: dict[str, Any], net: NeuralNet) -> Pooled | None:
    """Return the moments of X, after a check of them and of what is subtracted from X."""
    columns, shift = state["columns"], state["shift"]
    columns = None if columns is None else Pooled(*columns)
    arrays = [] if columns is None else list(columns[1:])
    arrays += [] if shift is None else [shift]
    shape = next((tuple(layer.mean.shape) for layer in standardize_layers(net)), None)
    for array in arrays:
        is_float = isinstance(array, np.ndarray) and array.dtype == np.float64
        if not is_float or array.shape != shape or not np.isfinite(array).all():
            raise TypeError("columns, or the shift of columns")
    return columns


def _fixed(known: dict[str, tuple[int, str]]) -> Fixed:
    """Return when what training leaves alone had its values first."""
    versions = {name: int(version) for name, (version, _) in known.items()}
    return Fixed(versions, {name: str(digest) for name, (_, digest) in known.items()})


def _messages(counts: dict[tuple[bytes, str, float], int]) -> dict[bytes, Any]:
    """Return the messages of each client, by its digest."""
    messages: dict[bytes, dict[tuple[str, float], int]] = {}
    for (key, kind, multiplier), n in counts.items():
        messages.setdefault(key, {})[kind, multiplier] = n
    return messages


def _with_defaults(state: dict[str, Any]) -> dict[str, Any]:
    """Add the fields that an older file lacks."""
    if unknown := sorted(map(str, state.keys() - _FIELDS.keys())):
        raise ValueError(
            f"it has fields that this version of skfed does not know, {', '.join(unknown)}: a "
            "later version wrote it; read it with that one."
        )
    defaults = {name: field.default() for name, field in _FIELDS.items() if field.default}
    return defaults | state


def _check_types(state: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Check what would otherwise fail in a later round."""
    for name, field in _FIELDS.items():
        if not isinstance(state[name], field.kind):
            raise TypeError(f"{name} is {state[name]!r}")
    rates = [rate for group in state["net_rates"] or () for rate in group.values()]
    told = (*state["reported"].values(), *state["seconds"].values())
    if state["seed"] < 0 or not all(isinstance(value, float) for value in (*told, *rates)):
        raise TypeError("seed, reported, seconds or net_rates")
    if not all(isinstance(k, bytes) and isinstance(text, str) for k, text in state["told"]):
        raise TypeError(f"told is {state['told']!r}")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError("rows")


def _check_shapes(net: State, saved: dict[str, torch.Tensor]) -> None:
    own, other = (
        {name: tuple(tensor.shape) for name, tensor in state.items()} for state in (net, saved)
    )
    if own != other:
        wrong = sorted(name for name in own | other if own.get(name) != other.get(name))[0]
        raise ValueError(
            f"estimator's net has {wrong} of shape {own.get(wrong)}, what was saved "
            f"{other.get(wrong)}: give the net that was saved."
        )


def _rates(group: dict[str, Any]) -> dict[str, float]:
    return {name: float(group[name]) for name in ("lr", "initial_lr") if name in group}


def warn_of_lost_state(server: ServerState) -> None:
    """Warn of attributes of the net's callbacks that a file cannot hold."""
    if unsaved := get_callback_state(server.net)[1]:
        warn_of_unsaved(unsaved)


def position(model: State, seed: int, n_rounds: int) -> str:
    """Describe the number of rounds, the seed and the model of a server."""
    return f"round {n_rounds}, seed {seed}, model {checksum('', model)[:32]}"

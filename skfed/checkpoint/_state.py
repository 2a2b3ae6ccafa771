"""What the server remembers, as plain values and tensors: to be written, and taken up again."""

from collections import Counter
from typing import Any

import torch
from skorch.history import History

from skfed.aggregation._scaffold import Variates
from skfed.callbacks._skorch import memory_of, warn_of_lost
from skfed.nets import State, get_state, set_state
from skfed.server._divergence import in_doubt
from skfed.server._state import ServerState
from skfed.utils._files import checksum

_KINDS: dict[str, Any] = {
    "seed": int,
    "reported": dict,
    "optimizer_state": dict | None,
    "stopped": int,
    "proven": dict | None,
    "callbacks": dict | None,
}


def state_of(server: ServerState) -> dict[str, Any]:
    """Return all but the rows of the history."""
    return {
        "model": get_state(server.net),
        "seed": server.seed,
        "reported": server.reported,
        "optimizer_state": server.optimizer_state,
        "variates": [server.variates.server, server.variates.clients],
        "told": sorted(server.told),
        "messages": dict(server.messages),
        "private_rounds": server.private_rounds,
        "stopped": server.stopped,
        # It would double the file, and is of use only to a fit that diverges.
        "proven": server.proven if in_doubt(server.rows) else None,
        # What the wrapped net's callbacks have seen and changed.
        "net_history": server.net.history.to_list(),
        "net_rates": [_rates(group) for group in server.net.optimizer_.param_groups],
        "callbacks": server.memory(),
    }


def _check_kinds(state: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Check what a state would have told only rounds later."""
    for name, kind in _KINDS.items():
        if not isinstance(state[name], kind):
            raise TypeError(f"{name} is {state[name]!r}")
    given = [*state["reported"].values(), *(v for g in state["net_rates"] for v in g.values())]
    if state["seed"] < 0 or not all(isinstance(value, float) for value in given):
        raise TypeError("seed, reported or net_rates")
    if not all(isinstance(k, bytes) and isinstance(text, str) for k, text in state["told"]):
        raise TypeError(f"told is {state['told']!r}")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError("rows")


def tell_what_is_lost(server: ServerState) -> None:
    """Warn of what the net's callbacks keep and a file cannot hold."""
    if lost := memory_of(server.net)[1]:
        warn_of_lost(lost)


def restore(server: ServerState, state: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Bring a server, whose net is newly initialised, to a state.

    Raises
    ------
    ValueError
        If the state is of another net, or is none.
    """
    try:
        _check_kinds(state, rows)
        for model in (state["model"], state["proven"] or state["model"]):
            _check_fits(get_state(server.net), model)
        variates = Variates(*state["variates"])
        told = set(state["told"])
        groups = zip(server.net.optimizer_.param_groups, state["net_rates"], strict=True)
        set_state(server.net, state["model"])
        for group, rates in groups:
            group.update(rates)
        server.net.history = History(state["net_history"])
        server.seed, server.rows = state["seed"], rows
        server.reported, server.optimizer_state = state["reported"], state["optimizer_state"]
        server.variates, server.told = variates, told
        server.messages = Counter(state["messages"])
        server.private_rounds = state["private_rounds"]
        server.stopped, server.reminder = state["stopped"], state["callbacks"]
        server.proven = state["proven"]
        server.succeeded = True  # else nothing would have been written
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"it is no state of a federation: {error!r}") from error


def position(model: State, seed: int, n_rounds: int) -> str:
    """Return in words where a server stands: the same for the same model, seed and round."""
    return f"round {n_rounds}, seed {seed}, model {checksum('', model)[:32]}"


def _rates(group: dict[str, Any]) -> dict[str, float]:
    return {name: float(group[name]) for name in ("lr", "initial_lr") if name in group}


def _check_fits(model: dict[str, torch.Tensor], given: dict[str, torch.Tensor]) -> None:
    shapes, others = (
        {name: tuple(tensor.shape) for name, tensor in one.items()} for one in (model, given)
    )
    if shapes != others:
        wrong = sorted(name for name in shapes | others if shapes.get(name) != others.get(name))[0]
        raise ValueError(
            f"estimator's net has {wrong} of shape {shapes.get(wrong)}, what was saved "
            f"{others.get(wrong)}: give the net that was saved."
        )

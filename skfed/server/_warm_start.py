"""What of the estimator has changed since the last round, for a fit that goes on from it."""

from typing import Any

import numpy as np
from skorch import NeuralNet
from skorch.callbacks import Callback, LRScheduler
from torch import nn

from skfed._problem import Problem
from skfed.checkpoint._describe import describe
from skfed.checkpoint._describe_code import Indescribable, shown
from skfed.nets import get_state
from skfed.server._state import ServerState
from skfed.utils._warnings import warn

_OF_RATES = "", "lr", "param_groups"  # of an optimizer, its class among them
_ABSENT = "not given"

Settings = dict[str, Any]


def _settings(estimator: Any) -> Settings:
    """Return what the estimator parameter says, by the names that ``set_params`` takes."""
    if not isinstance(estimator, NeuralNet):
        return {"estimator": estimator}
    params = estimator.get_params(deep=False)
    if isinstance(params["callbacks"], list):
        params["callbacks"] = [(one, _params(one)) for one in params["callbacks"]]
    return {"estimator": type(estimator)} | {f"estimator__{k}": v for k, v in params.items()}


def new_state(problem: Problem, estimator: Any, X: np.ndarray, seed: int) -> ServerState:
    """Return the state before round 0 for the ``estimator`` parameter and data like X."""
    net = problem.make_net(estimator, X, seed)
    return ServerState(net, seed, settings=_settings(estimator))


def resumed_state(
    server: ServerState, problem: Problem, estimator: Any, X: np.ndarray
) -> ServerState:
    """Return the state of the last fit, its net with the present settings of ``estimator``.

    A new learning rate, optimizer or scheduler starts anew, with the schedulers that set the rate;
    so does each callback that is new or has other parameters. All else continues.

    Raises
    ------
    ValueError
        If the module has changed, or a criterion whose parameters are trained.
    """
    given = _settings(estimator)
    changed = [
        name
        for name in sorted(server.settings.keys() | given.keys())
        if not _same(server.settings.get(name, _ABSENT), given.get(name, _ABSENT), name)
    ]
    if changed:
        _check(server, given, changed)
        new = problem.make_net(estimator, X, server.seed)
        _check_criteria(server.net, new, changed)
        _take(server, new, {name.removeprefix("estimator__") for name in changed})
    server.settings = given
    server.succeeded = False
    return server


def has_more_rounds(server: ServerState, n_rounds: int) -> bool:
    """Tell whether a warm start has rounds to add; warn if it has none.

    Raises
    ------
    ValueError
        If more than ``n_rounds`` rounds are finished.
    """
    if n_rounds < server.round:
        raise ValueError(
            f"n_rounds={n_rounds} is less than the {server.round} rounds already trained with "
            "warm_start=True: n_rounds counts all rounds; raise it, or set warm_start=False."
        )
    if server.round < n_rounds and server.stopped < n_rounds:
        return True
    reason = f"n_rounds={n_rounds} rounds are trained already"
    if server.round < n_rounds:
        reason = f"a callback stopped after {server.round} of n_rounds={n_rounds} rounds"
    warn(f"{reason} (warm_start=True), so fit adds none: raise n_rounds.")
    return False


def _same(one: Any, other: Any, name: str) -> bool:
    if one is other:
        return True
    if type(one) is type(other) and type(one) in (list, tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_same(a, b, name) for a, b in pairs)
    of_callback = "callbacks" in name
    try:
        return describe(one, of_callback) == describe(other, of_callback)
    except Indescribable:
        return False


def _check(server: ServerState, given: Settings, changed: list[str]) -> None:
    """Check that the net is still the one that is trained."""
    fixed = {"", "compile", *server.net._modules}
    for name in changed:
        if name.removeprefix("estimator").removeprefix("__").partition("__")[0] in fixed:
            _refuse(server, given, name)


def _check_criteria(net: NeuralNet, new: NeuralNet, changed: list[str]) -> None:
    names = [name for name in changed if _head(name) in net._criteria]
    trained = {_head(name) for one in (net, new) for name in get_state(one)}
    if names and not trained.isdisjoint(net._criteria):
        raise ValueError(
            f"{names[0]} has changed since the last fit, and the criterion has parameters that are "
            "trained: set it back, or fit anew with warm_start=False."
        )


def _refuse(server: ServerState, given: Settings, name: str) -> None:
    was, now = (shown(of[name]) if name in of else _ABSENT for of in (server.settings, given))
    raise ValueError(
        f"{name} has changed since the last fit, from {was} to {now}, but warm_start=True and "
        f"partial_fit go on with the net of the {server.round} rounds so far: set it back, or fit "
        "anew with warm_start=False. Learning rate, batch size, optimizer, criterion, callbacks "
        "and device may change."
    )


def _head(name: str) -> str:
    """Return the first part of the name of a setting or of a tensor."""
    return name.removeprefix("estimator__").replace(".", "__").partition("__")[0]


def _take(server: ServerState, new: NeuralNet, changed: set[str]) -> None:
    """Give a server's net the changed settings of a new one, and what they are made to."""
    net = server.net
    for name in changed:
        vars(net).pop(name, None)
        if name in vars(new):
            vars(net)[name] = vars(new)[name]
    if any(_head(name) in net._criteria for name in changed):
        for name in net._criteria:
            vars(net)[f"{name}_"] = vars(new)[f"{name}_"]
    for name in (*net._modules, *net._criteria):
        if isinstance(part := getattr(net, f"{name}_"), nn.Module):
            part.to(net.device)
    _take_optimizer(server, new, changed)


def _take_optimizer(server: ServerState, new: NeuralNet, changed: set[str]) -> None:
    """Take optimizer and callbacks: where none is about the rate, the rates go on."""
    net, heads = server.net, set(map(_head, changed))
    old, now = dict(net.callbacks_), dict(net.callbacks_)
    begun: set[str] = set()
    if "callbacks" in heads:
        now = dict(new.callbacks_)
        begun = {name for name in now if not _same_callback(old.get(name), now[name])}
    schedulers = {k for k, v in (*old.items(), *now.items()) if isinstance(v, LRScheduler)}
    gone = old.keys() - now.keys()
    if any(_is_of_rates(net, name) for name in changed) or schedulers & (begun | gone):
        begun |= schedulers - gone
        net.initialize_optimizer()
        server.rates = server.rates_now()
    elif not heads.isdisjoint(net._optimizers):
        _take_options(net, new)
    net.callbacks_ = [(k, one if k in begun else old[k]) for k, one in now.items()]
    server.restarted |= begun
    if server.callback_state is not None:
        server.callback_state = {k: v for k, v in server.callback_state.items() if k not in begun}


def _is_of_rates(net: NeuralNet, name: str) -> bool:
    """Tell whether a setting says by what rates, or by what optimizer, which weights move."""
    head, _, option = name.partition("__")
    return head == "lr" or (head in net._optimizers and option in _OF_RATES)


def _take_options(net: NeuralNet, new: NeuralNet) -> None:
    """Take the optimizers' options but for the rates, which callbacks may have set."""
    for name in net._optimizers:
        optimizer, of_new = getattr(net, f"{name}_"), getattr(new, f"{name}_")
        for group, one in zip(optimizer.param_groups, of_new.param_groups, strict=True):
            options = one.keys() - {"params", "lr", "initial_lr"}
            group.update({option: one[option] for option in options})
        optimizer.defaults = of_new.defaults


def _same_callback(one: Callback | None, other: Callback) -> bool:
    is_same = type(one) is type(other)
    return is_same and _same([_params(one)], [_params(other)], "callbacks")


def _params(callback: Any) -> Any:
    """Return the parameters of a callback, or of its pair of name and callback."""
    callback = callback[1] if isinstance(callback, tuple) else callback
    return None if isinstance(callback, type) else sorted(callback.get_params(deep=False).items())

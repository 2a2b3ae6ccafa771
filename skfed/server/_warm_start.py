"""The state at the start of a fit: new, or that of the last fit with changed settings."""

from typing import Any

import numpy as np
from skorch import NeuralNet
from skorch.callbacks import Callback, LRScheduler
from torch import nn

from skfed._problem import Problem
from skfed.callbacks._sklearn import check_callbacks_of_net
from skfed.nets import cast, get_state, left_alone
from skfed.server._state import ServerState
from skfed.utils._describe import describe
from skfed.utils._warnings import warn

# Options of an optimizer that set its learning rates; "" is its class.
_RATE_OPTIONS = "", "lr", "param_groups"
_NOT_GIVEN = "not given"

Settings = dict[str, Any]


def _settings(estimator: Any) -> Settings:
    """Return the parameters of the ``estimator`` parameter, by the names of ``set_params``."""
    if not isinstance(estimator, NeuralNet):
        return {"estimator": estimator}
    params = estimator.get_params(deep=False)
    check_callbacks_of_net(params["callbacks"])
    if isinstance(params["callbacks"], list):
        # Their parameters too, since callbacks may be changed in place.
        params["callbacks"] = [(cb, _callback_params(cb)) for cb in params["callbacks"]]
    return {"estimator": type(estimator)} | {f"estimator__{k}": v for k, v in params.items()}


def new_state(problem: Problem, estimator: Any, X: np.ndarray, seed: int) -> ServerState:
    """Return the state before round 0 for the ``estimator`` parameter and data like X."""
    net = problem.make_net(estimator, X, seed)
    known = left_alone(net, cast(net, X[:1]))
    return ServerState(net, seed, settings=_settings(estimator), left_alone=known)


def resumed_state(
    server: ServerState, problem: Problem, estimator: Any, X: np.ndarray
) -> ServerState:
    """Return the state of the last fit, its net with the present settings of ``estimator``.

    A new learning rate, optimizer or scheduler starts anew, with the schedulers that set the rate;
    so does each callback that is new or has other parameters. All else continues. A change of the
    module, or of a criterion whose parameters are trained, is an error.
    """
    settings = _settings(estimator)
    changed = [
        name
        for name in sorted(server.settings.keys() | settings.keys())
        if not _equal(server.settings.get(name, _NOT_GIVEN), settings.get(name, _NOT_GIVEN), name)
    ]
    if changed:
        _check_module(server, settings, changed)
        new_net = problem.make_net(estimator, X, server.seed)
        _check_criteria(server.net, new_net, changed)
        _apply_changes(server, new_net, {name.removeprefix("estimator__") for name in changed})
    server.settings = settings
    server.left_alone = left_alone(server.net, cast(server.net, X[:1]))
    server.succeeded = False
    return server


def has_more_rounds(server: ServerState, n_rounds: int) -> bool:
    """Tell whether a warm start has rounds to add; warn if it has none."""
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


def _equal(one: Any, other: Any, name: str) -> bool:
    """Tell whether two values of a setting have the same description."""
    if one is other:
        return True
    if type(one) is type(other) and type(one) in (list, tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_equal(a, b, name) for a, b in pairs)
    try:
        return describe(one, name) == describe(other, name)
    except TypeError:
        return False


def _check_module(server: ServerState, settings: Settings, changed: list[str]) -> None:
    """Check that the net has the class and the modules of the trained one."""
    fixed = {"", "compile", *server.net._modules}
    for name in changed:
        if name.removeprefix("estimator").removeprefix("__").partition("__")[0] not in fixed:
            continue
        before, now = (
            f"{values[name]!r:.60}" if name in values else _NOT_GIVEN
            for values in (server.settings, settings)
        )
        raise ValueError(
            f"{name} has changed since the last fit, from {before} to {now}, but warm_start=True "
            f"and partial_fit continue with the net of the {server.round} rounds that are "
            "finished: set it back, or fit anew with warm_start=False. Learning rate, batch size, "
            "optimizer, criterion, callbacks and device may change."
        )


def _check_criteria(net: NeuralNet, new_net: NeuralNet, changed: list[str]) -> None:
    """Check that no criterion with trained parameters has changed."""
    names = [name for name in changed if _prefix(name) in net._criteria]
    trained = {_prefix(name) for either in (net, new_net) for name in get_state(either)}
    if names and not trained.isdisjoint(net._criteria):
        raise ValueError(
            f"{names[0]} has changed since the last fit, and the criterion has parameters that are "
            "trained: set it back, or fit anew with warm_start=False."
        )


def _prefix(name: str) -> str:
    """Return the first part of the name of a setting or of a tensor."""
    return name.removeprefix("estimator__").replace(".", "__").partition("__")[0]


def _apply_changes(server: ServerState, new_net: NeuralNet, changed: set[str]) -> None:
    """Set the changed settings, and the objects that depend on them, as in ``new_net``."""
    net = server.net
    for name in changed:
        vars(net).pop(name, None)
        if name in vars(new_net):
            vars(net)[name] = vars(new_net)[name]
    if any(_prefix(name) in net._criteria for name in changed):
        for name in net._criteria:
            vars(net)[f"{name}_"] = vars(new_net)[f"{name}_"]
    for name in (*net._modules, *net._criteria):
        if isinstance(module := getattr(net, f"{name}_"), nn.Module):
            module.to(net.device)
    _change_optimizer_and_callbacks(server, new_net, changed)


def _change_optimizer_and_callbacks(
    server: ServerState, new_net: NeuralNet, changed: set[str]
) -> None:
    """Set optimizers and callbacks; learning rates are kept unless a change concerns them."""
    net, prefixes = server.net, set(map(_prefix, changed))
    old, new = dict(net.callbacks_), dict(net.callbacks_)
    restarted: set[str] = set()
    if "callbacks" in prefixes:
        new = dict(new_net.callbacks_)
        restarted = {name for name in new if not _equal_callbacks(old.get(name), new[name])}
    schedulers = {k for k, cb in (*old.items(), *new.items()) if isinstance(cb, LRScheduler)}
    removed = old.keys() - new.keys()
    if any(_sets_rates(net, name) for name in changed) or schedulers & (restarted | removed):
        restarted |= schedulers - removed
        net.initialize_optimizer()
        server.rates = server.rates_now()
    elif not prefixes.isdisjoint(net._optimizers):
        _change_options(net, new_net)
    net.callbacks_ = [(k, cb if k in restarted else old[k]) for k, cb in new.items()]
    server.restarted |= restarted
    if server.callback_state is not None:
        callback_state = server.callback_state.items()
        server.callback_state = {k: v for k, v in callback_state if k not in restarted}


def _sets_rates(net: NeuralNet, name: str) -> bool:
    """Tell whether a setting is the class of an optimizer, or one of its learning rates."""
    prefix, _, option = name.partition("__")
    return prefix == "lr" or (prefix in net._optimizers and option in _RATE_OPTIONS)


def _change_options(net: NeuralNet, new_net: NeuralNet) -> None:
    """Set the optimizers' options except the learning rates, which callbacks may have changed."""
    for name in net._optimizers:
        optimizer, new = getattr(net, f"{name}_"), getattr(new_net, f"{name}_")
        for group, new_group in zip(optimizer.param_groups, new.param_groups, strict=True):
            options = new_group.keys() - {"params", "lr", "initial_lr"}
            group.update({option: new_group[option] for option in options})
        optimizer.defaults = new.defaults


def _equal_callbacks(one: Callback | None, other: Callback) -> bool:
    if type(one) is not type(other):
        return False
    return _equal([_callback_params(one)], [_callback_params(other)], "callbacks")


def _callback_params(callback: Any) -> Any:
    """Return the parameters of a callback, or of its pair of name and callback."""
    callback = callback[1] if isinstance(callback, tuple) else callback
    return None if isinstance(callback, type) else sorted(callback.get_params(deep=False).items())

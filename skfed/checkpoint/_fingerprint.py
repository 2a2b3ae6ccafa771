"""Fingerprints of parameters and data: the same in every process, others for other values."""

import inspect
from collections.abc import Mapping
from typing import Any

from skfed._federation import Federation
from skfed.utils._describe import describe

FORMAT = 3  # of fingerprints. Raise it when a default of skfed changes, since they omit defaults.
# These change how a fit runs, but not its result.
_WITHOUT_EFFECT = {"checkpoint", "checkpoint_every", "n_jobs", "verbose", "warm_start"}


def describe_parameters(kind: type, params: Mapping[str, Any]) -> dict[str, str]:
    """Describe the class of an estimator, and parameters that are not at their defaults."""
    left_out = _WITHOUT_EFFECT | ({"n_rounds"} if params["warm_start"] else set())  # it may grow
    described = {"type": describe(kind)}
    at_default: tuple[str, ...] = ()  # components, whose own parameters are left out
    for name in sorted(params.keys() - left_out):
        if "___" in name or name.startswith(at_default):  # skorch's own has three
            continue
        owner, _, own = name.rpartition("__")
        defaults = _defaults(type(params.get(owner)) if owner else kind)
        value, default = params[name], defaults.get(own, inspect.Parameter.empty)
        is_component = hasattr(value, "get_params") and not isinstance(value, type)
        is_default = type(value) is type(default) and describe(value, name) == describe(default)
        at_default += (f"{name}__",) if is_default and is_component else ()
        if not is_default or name == "n_rounds":
            described[name] = describe(type(value) if is_component else value, name)
    return described


def _defaults(kind: type) -> dict[str, Any]:
    """Return the defaults of a constructor, and of base classes to which it passes keywords."""
    constructors = [vars(one).get("__init__") for one in reversed(kind.__mro__)]
    found = [inspect.signature(one) for one in constructors if inspect.isfunction(one)]
    return {p.name: p.default for one in found for p in one.parameters.values()}


def describe_data(data: Mapping[str, Any], federation: Federation) -> dict[str, str]:
    """Describe the arrays that a fit is given, by name, and the clients."""
    described = {name: describe(value) for name, value in data.items() if value is not None}
    digests = b"".join(map(federation.digest, range(len(federation))))
    clients = [digests, federation.order, federation.offsets, federation.priority_weights]
    return described | {"clients": f"{len(federation)} clients, {describe(clients)}"}


def fingerprint(description: dict[str, str]) -> str:
    """Return 32 hexadecimal digits for a description, after the number of its format."""
    return f"v{FORMAT}-{describe(description).rpartition(' ')[2]}"

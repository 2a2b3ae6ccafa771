"""Fingerprint of parameters and data."""

from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from skfed._federation import Federation
from skfed.checkpoint._describe import defaults_of, describe, digest_of
from skfed.checkpoint._describe_code import Indescribable, hex_of, shown

# The format of descriptions. Raise it when a default of skfed changes, since they omit defaults.
FORMAT = 2

# These change how a fit runs, but not its result.
_WITHOUT_EFFECT = {"checkpoint", "checkpoint_every", "n_jobs", "verbose", "warm_start"}
_SHOWN = 60

Description = dict[str, str]


def describe_parameters(kind: type, params: Mapping[str, Any]) -> Description:
    """Describe the class of an estimator, and parameters that are not at their defaults.

    ``params`` has nested parameters too. With ``warm_start``, ``n_rounds`` is left out, since it
    may grow from fit to fit; else it is described, at its default too.
    """
    left_out = _WITHOUT_EFFECT | ({"n_rounds"} if params["warm_start"] else set())
    described = {"type": describe(kind)}
    at_default: set[str] = set()  # their own parameters are left out with them
    for name in sorted(params.keys() - left_out):
        owner, _, own = name.rpartition("__")
        if owner in at_default or "___" in name:  # skorch's own
            at_default.add(name)
            continue
        defaults = _defaults(params.get(owner)) if owner else defaults_of(kind)
        text, is_default = _describe(name, params[name], defaults.get(own, Parameter.empty))
        if not is_default or name == "n_rounds":
            described[name] = text
        elif _has_params(params[name]):
            at_default.add(name)
    return described


def _describe(name: str, value: Any, default: Any) -> tuple[str, bool]:
    """Describe a parameter, a component by its type; tell whether the value is the default."""
    of_callback = "callbacks" in name.split("__")
    try:
        is_default = value is default or (
            type(value) is type(default)
            and describe(value, of_callback) == describe(default, of_callback)
        )
        return describe(type(value) if _has_params(value) else value, of_callback), is_default
    except Indescribable as error:
        raise TypeError(
            f"checkpoint cannot describe {name}={shown(value)}: {error}. Pass a value that is "
            "written in Python or can be pickled: a function, a schedule, a class with attributes. "
            "Or fit without checkpoint."
        ) from error


def _defaults(owner: Any) -> dict[str, Any]:
    return defaults_of(type(owner)) if _has_params(owner) else {}


def _has_params(value: Any) -> bool:
    return hasattr(value, "get_params") and not isinstance(value, type)


def describe_data(data: Mapping[str, Any], federation: Federation) -> Description:
    """Describe the arrays that a fit is given, by name, and the clients."""
    described = {name: describe(value) for name, value in data.items() if value is not None}
    digests = b"".join(federation.digest(k) for k in range(len(federation)))
    rows = digest_of(federation.order, federation.offsets, federation.priority_weights)
    return described | {"clients": f"{len(federation)} clients, {hex_of(digests)} {rows}"}


def fingerprint(description: Description) -> str:
    """Return 32 hexadecimal digits for a description, after the number of its format."""
    text = "\n".join(f"{k}: {v}" for k, v in sorted(description.items()))
    return f"v{FORMAT}-{hex_of(text.encode())}"


def differences(one: Description, other: Description) -> list[str]:
    """Name the differing parts of two descriptions, with the text of ``other``, then of ``one``."""
    return [
        f"{name} ({_short(other.get(name))}, now {_short(one.get(name))})"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


def _short(text: str | None) -> str:
    if text is None:
        return "default"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

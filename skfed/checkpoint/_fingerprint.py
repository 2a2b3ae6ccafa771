"""What tells one run from another: its parameters and data, in words short enough to compare."""

from collections.abc import Mapping
from typing import Any

from skfed._federation import Federation
from skfed.checkpoint._contents import Indescribable
from skfed.checkpoint._descriptions import describe
from skfed.checkpoint._digests import digest_of, hex_of, shown

# What changes how a fit runs, but not its result.
_IDLE = {"checkpoint", "checkpoint_every", "n_jobs", "verbose", "warm_start"}
_DATA = "X", "y", "sample_weight", "X_val", "y_val", "classes"
_SHOWN = 60

Description = dict[str, str]


def describe_parameters(kind: type, params: Mapping[str, Any]) -> Description:
    """Describe the class of an estimator and each of its parameters, nested ones included.

    With ``warm_start``, ``n_rounds`` is left out, since it may grow from fit to fit.

    Raises
    ------
    TypeError
        If a parameter cannot be described.
    """
    idle = _IDLE | ({"n_rounds"} if params["warm_start"] else set())
    told = {name: _told(name, params[name]) for name in sorted(params.keys() - idle)}
    return told | {"type": describe(kind)}


def _told(name: str, value: Any) -> str:
    """Describe a parameter; its own parameters, if it has some, are in the list themselves."""
    of_callback = "callbacks" in name.split("__")
    try:
        return describe(type(value) if _has_params(value) else value, of_callback)
    except Indescribable as error:
        raise TypeError(
            f"checkpoint cannot tell {name}={shown(value)} from another: {error}. Pass what is "
            "written in Python or can be pickled: a function, a schedule, a class with attributes. "
            "Or fit without checkpoint."
        ) from error


def _has_params(value: Any) -> bool:
    return hasattr(value, "get_params") and not isinstance(value, type)


def describe_data(data: Mapping[str, Any], federation: Federation) -> Description:
    """Describe the arrays that a fit is given, by name, and the clients."""
    told = {name: describe(data.get(name)) for name in _DATA}
    digests = b"".join(federation.digest(k) for k in range(len(federation)))
    rows = digest_of(federation.order, federation.offsets, federation.priority_weights)
    return told | {"clients": f"{len(federation)} clients, {hex_of(digests)} {rows}"}


def fingerprint(description: Description) -> str:
    """Return 32 hexadecimal digits that stand for a description."""
    return hex_of("\n".join(f"{k}: {v}" for k, v in sorted(description.items())).encode())


def differences(one: Description, other: Description) -> list[str]:
    """Say where two descriptions differ, as ``other`` has it and as ``one`` has it."""
    return [
        f"{name} ({_short(other.get(name))}, now {_short(one.get(name))})"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


def _short(text: str | None) -> str:
    if text is None:
        return "not there"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

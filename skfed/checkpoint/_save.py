"""A fitted estimator in one file of safetensors and JSON, without its parameters."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from skfed.checkpoint._state import restore, state_to_dict
from skfed.history import to_frame
from skfed.server import ServerState
from skfed.utils import _files
from skfed.utils._checks import naming

Result = TypeVar("Result")

_PRIVATE = {"_indicator", "_sample_shape", "_target_shape"}
_BY_CLIENT = {"clients_", "priority_", "sizes_", "fractions_"}
_FROM_STATE = {"net_", "history_", "n_rounds_"}  # made of the server's state


def fitted_state(attributes: Mapping[str, Any], server: ServerState) -> dict[str, Any]:
    """Return the fitted attributes among ``attributes`` and the state of the server, plain."""
    return {
        "attributes": {name: v for name, v in attributes.items() if is_saved(name)},
        "state": state_to_dict(server),
        "rows": server.rows,
    }


def from_fitted_state(
    fitted: Mapping[str, Any], make_server: Callable[[dict[str, Any], int], ServerState]
) -> dict[str, Any]:
    """Return the attributes that are made of the state of the server.

    ``make_server`` is called with the other fitted attributes and the seed, and returns a server
    with a newly initialised net.
    """
    try:
        attributes = {name: v for name, v in fitted["attributes"].items() if is_saved(name)}
        _check_by_client(attributes)
        server = make_server(attributes, fitted["state"]["seed"])
        restore(server, fitted["state"], fitted["rows"])
        history = to_frame(server.rows)
    except (KeyError, TypeError, AttributeError, IndexError, MemoryError, RuntimeError) as error:
        raise ValueError(f"it holds no fitted estimator: {error!r}.") from error
    return {"_server": server, "net_": server.net, "history_": history, "n_rounds_": server.round}


def _check_by_client(attributes: dict[str, Any]) -> None:
    """Check that the attributes with one entry a client have the same clients."""
    n_clients = len(attributes["clients_"])
    for name in sorted(_BY_CLIENT & attributes.keys()):
        if np.shape(attributes[name]) != (n_clients,):
            raise ValueError(
                f"its {name} has shape {np.shape(attributes[name])}, but clients_ has {n_clients} "
                "clients: it was changed since it was written."
            )


def write_fitted(path: str | os.PathLike, kind: str, fitted: Mapping[str, Any]) -> None:
    """Write a fitted state with the name of the estimator's class."""
    _files.write(_file(path), {"kind": kind, **fitted})


def read_fitted(
    path: str | os.PathLike, kind: str, use: Callable[[dict[str, Any]], Result]
) -> Result:
    """Return what ``use`` makes of the fitted state in a file; its ValueErrors name the file."""
    path = _file(path)
    fitted = _files.read(path)
    try:
        if not isinstance(fitted, dict) or "kind" not in fitted:
            raise ValueError("it holds no fitted estimator.")
        if fitted["kind"] != kind:
            raise ValueError(f"it holds a {fitted['kind']}: load it with one.")
        return use(fitted)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def is_saved(name: str) -> bool:
    """Tell whether an attribute is written to the file by its name."""
    is_fitted = name.endswith("_") and not name.startswith("_") and name not in _FROM_STATE
    return is_fitted or name in _PRIVATE


def _file(path: str | os.PathLike) -> Path:
    with naming("path"):
        file = Path(path)
    if not file.name or "\0" in str(file):
        raise ValueError(f"path={path!r} names no file: name one.")
    return file

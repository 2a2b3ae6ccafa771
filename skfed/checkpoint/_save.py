"""A fitted estimator in one file of safetensors and JSON, without its parameters."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skfed.checkpoint._state import restore, state_to_dict, warn_of_lost_state
from skfed.history import to_frame
from skfed.server._state import ServerState
from skfed.utils import _files
from skfed.utils._checks import naming

_PRIVATE = {"_sample_shape", "_target_shape"}
_FROM_STATE = {"net_", "history_", "n_rounds_"}  # made of the server's state


def save(
    path: str | os.PathLike, kind: str, attributes: Mapping[str, Any], server: ServerState
) -> None:
    """Write the fitted attributes among ``attributes`` and the state of the server.

    ``kind`` is the name of the estimator's class.
    """
    path = _file(path)
    fitted = {
        "kind": kind,
        "attributes": {name: v for name, v in attributes.items() if is_saved(name)},
        "state": state_to_dict(server),
        "rows": server.rows,
    }
    _files.write(path, fitted)
    warn_of_lost_state(server)


def load(
    path: str | os.PathLike, kind: str, make_server: Callable[[dict[str, Any], int], ServerState]
) -> dict[str, Any]:
    """Return the attributes that are made of the state of the server in a file.

    ``make_server`` is called with the other fitted attributes and the seed, and returns a server
    with a newly initialised net.
    """
    path = _file(path)
    fitted = _files.read(path)
    try:
        if fitted["kind"] != kind:
            raise ValueError(f"it holds a {fitted['kind']}: load it with one.")
        attributes = {name: v for name, v in fitted["attributes"].items() if is_saved(name)}
        server = make_server(attributes, fitted["state"]["seed"])
        restore(server, fitted["state"], fitted["rows"])
        history = to_frame(server.rows)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError, MemoryError, RuntimeError) as error:
        raise ValueError(f"{path} holds no fitted estimator: {error!r}.") from error
    return {"_server": server, "net_": server.net, "history_": history, "n_rounds_": server.round}


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

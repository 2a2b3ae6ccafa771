"""A fitted estimator in one file of safetensors and JSON; its parameters stay in the code."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skfed.checkpoint._state import restore, state_to_dict, warn_of_lost_state
from skfed.history import to_frame
from skfed.server._state import ServerState
from skfed.server._warm_start import settings_of
from skfed.utils import _files
from skfed.utils._checks import naming

if TYPE_CHECKING:
    from skfed._estimator import BaseFederated

_SHAPES = "_sample_shape", "_target_shape"
_MADE_ANEW = {"net_", "history_", "n_rounds_"}


def save(model: "BaseFederated", path: str | os.PathLike) -> None:
    """Write what fit has learned."""
    check_is_fitted(model)
    path = _file(path)
    fitted = {
        "kind": type(model).__name__,
        "attributes": {n: v for n, v in vars(model).items() if _is_kept(n)},
        "state": state_to_dict(model._server),
        "rows": model._server.rows,
    }
    _files.write(path, fitted)
    warn_of_lost_state(model._server)


def load(model: "BaseFederated", path: str | os.PathLike) -> None:
    """Give an estimator what another of the same parameters has learned."""
    path = _file(path)
    fitted = _files.read(path)
    try:
        _take(model, fitted)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError, MemoryError, RuntimeError) as error:
        raise ValueError(f"{path} holds no fitted estimator: {error!r}.") from error


def _file(path: str | os.PathLike) -> Path:
    with naming("path"):
        file = Path(path)
    if not file.name or "\0" in str(file):
        raise ValueError(f"path={path!r} names no file: name one.")
    return file


def _take(model: "BaseFederated", fitted: dict[str, Any]) -> None:
    kind, attributes, state = fitted["kind"], fitted["attributes"], fitted["state"]
    if kind != type(model).__name__:
        raise ValueError(f"it holds a {kind}: load it with one.")
    sample = np.zeros((1, *attributes["_sample_shape"]), dtype=np.int64)
    for name in [name for name in vars(model) if _is_kept(name)]:  # of an earlier fit
        delattr(model, name)
    model.__dict__.update({n: v for n, v in attributes.items() if _is_kept(n)})
    net = model._make_net(sample, state["seed"])
    server = ServerState(net, state["seed"], given=settings_of(model.estimator))
    restore(server, state, fitted["rows"])
    told: dict[str, Any] = {"history_": to_frame(server.rows), "n_rounds_": server.round}
    model.__dict__.update(told, _server=server, net_=server.net)


def _is_kept(name: str) -> bool:
    """Tell whether an attribute is in the file by itself, and not made of the server's state."""
    if name in _SHAPES:
        return True
    return name.endswith("_") and not name.startswith("_") and name not in _MADE_ANEW

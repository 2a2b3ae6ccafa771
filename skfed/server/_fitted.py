"""The fitted attributes that tell where the rounds have come."""

from dataclasses import replace
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed.history import to_frame
from skfed.nets import NetPool, cast, get_state, linear_attributes, set_state
from skfed.server._state import ServerState


def fitted(
    server: ServerState, federation: Federation, output_shape: tuple[int, ...]
) -> dict[str, Any]:
    """Return the attributes by name; ``output_shape`` is that of the outputs for one row."""
    return {
        "_server": server,
        "net_": server.net,
        "clients_": federation.ids,
        "priority_": federation.priority,
        "sizes_": federation.sizes,
        "fractions_": federation.fractions,
        "history_": to_frame(server.rows),
        "n_rounds_": server.round,
        **linear_attributes(server.net, output_shape),
    }


def snapshot_attributes(
    server: ServerState, federation: Federation, output_shape: tuple[int, ...], X: np.ndarray
) -> dict[str, Any]:
    """Return the attributes for an estimator of its own, with the model as it is now."""
    net = NetPool(server.net, cast(server.net, X[:1])).set_up()
    set_state(net, get_state(server.net))
    alone = replace(server, net=net, rows=list(server.rows))
    return fitted(alone, federation, output_shape)

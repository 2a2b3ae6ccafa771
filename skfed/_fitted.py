"""The fitted attributes that tell where the rounds have come."""

from dataclasses import replace
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed._linear_model import linear_attributes
from skfed._nets import Workbench, cast, get_model, set_model
from skfed._server import Server
from skfed.history import to_frame


def fitted(server: Server, federation: Federation, output_shape: tuple[int, ...]) -> dict[str, Any]:
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


def so_far(
    server: Server, federation: Federation, output_shape: tuple[int, ...], X: np.ndarray
) -> dict[str, Any]:
    """Return the attributes for an estimator of its own, with the model as it is now."""
    net = Workbench(server.net, cast(server.net, X[:1])).set_up()
    set_model(net, get_model(server.net))
    alone = replace(server, net=net, rows=list(server.rows))
    return fitted(alone, federation, output_shape)

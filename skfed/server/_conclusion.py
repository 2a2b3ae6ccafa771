"""The end of a fit: what its rounds show is told, and the last model of use is kept."""

from collections.abc import Mapping

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skfed._federation import Federation
from skfed.nets import set_state
from skfed.server._config import RoundConfig
from skfed.server._divergence import idle_rounds, loses_finiteness, told_of_divergence
from skfed.server._state import ServerState
from skfed.utils._warnings import warn


def conclude(
    server: ServerState,
    federation: Federation,
    rules: RoundConfig,
    until: int,
    overflows: Mapping[int, Exception],
) -> None:
    """Warn of what went wrong in the rounds up to ``until``; keep the last finite model.

    With partial_fit each round is an end. Of its divergence it warns once; all else waits for the
    last round that is planned.

    ``overflows`` are the rounds whose aggregate was not finite, and what is said of it.
    """
    is_last = until >= rules.n_rounds or server.stopped > 0
    noisy = rules.loss_privacy is not None
    text = told_of_divergence(server.rows, len(federation), overflows, noisy)
    if text is not None and (is_last or (b"", "diverged") not in server.told):
        server.told.add((b"", "diverged"))
        warn(text, ConvergenceWarning)
    if not is_last:
        return
    _keep_proven(server, len(federation), overflows)
    # Losses that have diverged match nobody, and say nothing of what else would be better.
    if text is None and (until == rules.n_rounds or server.stopped):
        free = federation.names(np.flatnonzero(~federation.priority))
        text = rules.selector.warning_after(server.rows, free, rules.n_rounds)
        if text is not None:
            warn(text)


def _keep_proven(server: ServerState, n_clients: int, overflows: Mapping[int, Exception]) -> None:
    """Go back from a model that no client could train to a finite loss to the last one they could.

    The aggregate of finite updates need not have a finite loss. The server sees that only in the
    next round, when all clients that it asks fail.
    """
    idle = idle_rounds(server.rows, n_clients, overflows)
    if loses_finiteness(idle) and server.proven is not None:
        set_state(server.net, server.proven)
    server.proven = None  # it is another model to hold

"""What asks the clients of a fit: in each round, and before the first."""

from functools import partial

import numpy as np

from skfed._federation import Federation
from skfed.engines import Batching
from skfed.exchanges import Clock, Exchanges, FailureLog, LossPrivatizer, ModelHolders
from skfed.nets import batch_size, model_bytes
from skfed.server._config import RoundConfig
from skfed.server._state import ServerState
from skfed.utils._seeding import Purpose, stream


def make_clock(
    server: ServerState, federation: Federation, config: RoundConfig, measured: bool
) -> Clock:
    """Return the clock of a fit; raise if its devices do not fit the clients."""
    devices = config.devices and config.devices.bound(federation, config.deadline)
    batching = Batching(federation, server.seed, batch_size(server.net))
    return Clock(devices, measured, config.limits, batching, model_bytes(server.net))


def make_exchanges(
    server: ServerState,
    federation: Federation,
    config: RoundConfig,
    clock: Clock,
    clients_add_noise: bool = False,
) -> Exchanges:
    """Return what asks clients in the server's round; they may add the noise of losses."""
    noise = None if clients_add_noise else config.loss_privacy
    return Exchanges(
        round=server.round,
        clock=clock,
        holders=ModelHolders(len(federation)),
        fixed=server.fixed_tensors,
        failures=FailureLog(federation, not config.drop_failing, server.round, server.logged),
        privatizer=LossPrivatizer(noise, partial(noise_stream, server, federation)),
    )


def noise_stream(
    server: ServerState, federation: Federation, purpose: Purpose, k: int, copy: int
) -> np.random.Generator:
    """Return the generator of the noise that a client adds in this round."""
    return stream(server.seed, purpose, server.round, federation.digest(k), copy)

"""What the server remembers between rounds, and by what rules it runs them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from skorch import NeuralNet

from skfed.aggregation._scaffold import Variates
from skfed.callbacks._skorch import get_callback_state
from skfed.nets import State
from skfed.utils._seeding import Purpose, stream


@dataclass
class ServerState:
    """All that the server remembers between rounds."""

    net: NeuralNet  # holds the global model
    seed: int
    reported: dict[bytes, float] = field(default_factory=dict)  # by client digest
    optimizer_state: dict[str, Any] | None = None
    variates: Variates = field(default_factory=Variates)
    rows: list[dict[str, Any]] = field(default_factory=list)  # the history, one a round
    told: set[tuple] = field(default_factory=set)  # failures that were logged
    # What clients have sent under noise: by digest, "update" or "loss", and noise multiplier.
    messages: Counter[tuple[bytes, str, float]] = field(default_factory=Counter)
    private_rounds: tuple[int, ...] = ()  # which these were
    first_scalars: int = 0  # sent by clients before round 0, and charged to it
    # The last model from which a client has trained to a finite loss and update.
    proven: State | None = None
    stopped: int = 0  # the number of rounds that were planned when a callback stopped them
    succeeded: bool = False  # some client, in some round of this fit
    reminder: dict[str, Any] | None = None  # of what the net's callbacks knew, read from a file
    given: dict[str, Any] = field(default_factory=dict)  # what the estimator said, by its names
    begun: set[str] = field(default_factory=set)  # callbacks that begin anew with the next fit

    def __post_init__(self) -> None:
        self.rates = self.rates_now()  # of each parameter group, before any callback

    def __getstate__(self) -> dict[str, Any]:
        # skorch pickles a scheduler apart from the optimizer whose rates it sets.
        return vars(self) | {"reminder": self.memory()}

    def rates_now(self) -> tuple[float, ...]:
        """Return the learning rate of each parameter group, as callbacks have left it."""
        return tuple(float(group["lr"]) for group in self.net.optimizer_.param_groups)

    @property
    def own_rate(self) -> float:
        """The net's own learning rate, that of groups that say none."""
        return float(self.net.optimizer_.defaults["lr"])

    def memory(self) -> dict[str, Any]:
        """Return what the net's callbacks remember."""
        return get_callback_state(self.net)[0] if self.reminder is None else self.reminder

    @property
    def round(self) -> int:
        """The number of finished rounds, t."""
        return len(self.rows)

    def stream(self, purpose: Purpose) -> np.random.Generator:
        """Return the generator of this round's draws of one kind."""
        return stream(self.seed, purpose, self.round)

"""The state of the server between rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from skorch import NeuralNet

from skfed._problem import Guess
from skfed.callbacks._skorch import get_callback_state
from skfed.exchanges import Exchange, FixedTensors, PastRecords
from skfed.nets import State, bytes_of, parameter_names
from skfed.server._fixed import Fixed
from skfed.server._moments import Pooled
from skfed.utils._seeding import Purpose, stream

TRAINING_LOSS = "training loss"


class Best(NamedTuple):
    """The model of which the lowest loss was reported."""

    loss: float
    round: int  # in which clients had it
    state: State
    name: str  # of the loss: "objective", TRAINING_LOSS, or "loss" of the mean of the targets

    @property
    def is_exact(self) -> bool:
        """Whether the loss is that of the model, and not of what clients have made of it."""
        return self.name != TRAINING_LOSS


class Memory(NamedTuple):
    """What a rule remembers from round to round."""

    owner: str = ""  # a description of the rule and the clients
    values: Mapping[str, Any] = {}


@dataclass
class ServerState:
    """All that the server keeps between rounds.

    What it knows of clients is in dicts by their digests. A round replaces the values of fields,
    so that ``LastRound`` can restore them; but it adds to ``rows``, and to ``logged``.
    """

    net: NeuralNet  # holds the global model
    seed: int
    past: PastRecords = field(default_factory=PastRecords)  # of clients; a round can be undone
    memory: Memory = field(default_factory=Memory)
    # Names of the tensors that no pass in training mode changes, whether the optimizer does or not.
    left_alone: frozenset[str] = frozenset()
    fixed: Fixed = field(
        default_factory=Fixed
    )  # those of them that the optimizer does not change either
    fixed_tensors: FixedTensors | None = None  # who has received them, in the present round
    variates: dict[bytes, State] = field(default_factory=dict)  # SCAFFOLD's c_k
    # Numbers of messages sent under noise, by kind, "update" or "loss", and noise multiplier.
    messages: dict[bytes, Mapping[tuple[str, float], int]] = field(default_factory=dict)
    optimizer_state: dict[str, Any] | None = None
    variate: State = field(default_factory=dict)  # SCAFFOLD's c
    rows: list[dict[str, Any]] = field(default_factory=list)  # the history, one a round
    # Failures and warnings that were logged: the client's digest (b"" if none) and the text.
    logged: set[tuple[bytes, str]] = field(default_factory=set)
    private_rounds: tuple[int, ...] = ()  # rounds in which clients sent messages under noise
    first_exchanges: list[Exchange] = field(default_factory=list)  # charged to the next round
    columns: Pooled | None = None  # moments of X, by which the net standardises it
    rate: float | None = None  # from which the default regressor's falls; None: another schedule
    guess: Guess | None = None  # None: no such loss is known
    # What is subtracted from targets, and by what they are divided.
    target_scale: tuple[list[float], list[float]] | None = None
    best: Best | None = None  # of the models from which clients have trained
    begun: int = 0  # the number of rounds before the fit
    stopped: int = 0  # the number of rounds that were planned when a callback stopped them
    succeeded: bool = False  # some client, in some round of this fit
    callback_state: dict[str, Any] | None = None  # of the net's callbacks, read from a file
    settings: dict[str, Any] = field(default_factory=dict)  # the estimator's, by parameter name
    restarted: set[str] = field(default_factory=set)  # callbacks that start anew in the next fit

    def __post_init__(self) -> None:
        self.rates = self.rates_now()  # of each parameter group, before any callback

    def __getstate__(self) -> dict[str, Any]:
        # skorch pickles a scheduler apart from the optimizer whose rates it sets.
        fixed = {"fixed": self.fixed._replace(state={}), "fixed_tensors": None}
        return vars(self) | {"callback_state": self.current_callback_state()} | fixed

    def note_fixed(self, state: State) -> int:
        """Note what training leaves alone, given w_t; return the bytes of what travels of it.

        It is done in each round, as callbacks may freeze parameters, or change frozen ones.
        """
        self.fixed = self.fixed.of(state, self.left_alone - set(parameter_names(self.net)))
        self.fixed_tensors = self.fixed.tensors(self.past)
        return bytes_of({name: w for name, w in state.items() if name not in self.fixed.state})

    def rates_now(self) -> tuple[float, ...]:
        """Return the learning rate of each parameter group, as callbacks have left it."""
        return tuple(float(group["lr"]) for group in self.net.optimizer_.param_groups)

    @property
    def own_rate(self) -> float:
        """The net's own learning rate, that of groups that have none."""
        return float(self.net.optimizer_.defaults["lr"])

    def current_callback_state(self) -> dict[str, Any]:
        """Return the state of the net's callbacks."""
        return (
            get_callback_state(self.net)[0] if self.callback_state is None else self.callback_state
        )

    @property
    def round(self) -> int:
        """The number of finished rounds, t."""
        return len(self.rows)

    def stream(self, purpose: Purpose) -> np.random.Generator:
        """Return the generator of this round's draws of one kind."""
        return stream(self.seed, purpose, self.round)

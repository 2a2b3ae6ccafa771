"""What the server asks of clients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from skfed._mechanism import GaussianMechanism
from skfed.aggregation import BaseAggregator
from skfed.nets import State
from skfed.selection import Cohort
from skfed.selection._poll_metrics import PollMetric

#: The name of w_t among the models that a client keeps in a round.
CURRENT_MODEL = "current"


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains in a round."""

    epochs: int = 1  # E
    steps: int | None = None  # tau; used instead of epochs when given
    proximal_mu: float = 0.0  # FedProx's mu
    # Of each iteration the learning rate of each parameter group; None: the net's own.
    rates: tuple[tuple[float, ...], ...] | None = None
    max_norm: float | None = None  # to which the gradient of each step is clipped
    trial: int | None = None  # the number of a trial in its round; None: the round's training

    @property
    def n_iterations(self) -> int:
        """Local iterations of a round: steps where they are given, else epochs."""
        return self.epochs if self.steps is None else self.steps


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A request to train a cohort."""

    round: int
    state: State  # w_t
    parameters: Sequence[str]  # names of the trained tensors
    cohort: Cohort
    training: LocalTraining
    aggregator: BaseAggregator
    corrections: Sequence[State] | None = None  # SCAFFOLD's c - c_k of each member of the cohort
    privacy: GaussianMechanism | None = None  # by which members clip their updates and add noise
    noise: Sequence[np.random.Generator] | None = None  # of each member
    # By what the rates of each member are multiplied, where ``training`` has rates.
    rate_factors: np.ndarray | None = None
    needs: frozenset[str] = frozenset()  # "updates", "last_layer", "norms" or "spread" of each
    seed: int = 0  # of the projection of updates
    last_layer: str = ""  # the name of the tensor that stands for it, if it is needed
    keeps_models: bool = False  # whether each member's model is needed, beside what is aggregated
    fixed: frozenset[str] = frozenset()  # names of what training leaves alone; nobody sends it

    @property
    def sent_back(self) -> State:
        """The tensors of w_t that members send back after training."""
        if not self.fixed:
            return self.state
        return {name: w for name, w in self.state.items() if name not in self.fixed}

    def subset(self, members: np.ndarray) -> "TrainRequest":
        """Return the request to some members alone."""
        cohort = self.cohort
        cohort = replace(cohort, clients=cohort.clients[members], weights=cohort.weights[members])
        corrections = self.corrections and [self.corrections[i] for i in members]
        noise = self.noise and [self.noise[i] for i in members]
        factors = None if self.rate_factors is None else self.rate_factors[members]
        return replace(
            self, cohort=cohort, corrections=corrections, noise=noise, rate_factors=factors
        )


class EvaluateRequest(NamedTuple):
    """A request to evaluate a state on the data of some clients."""

    round: int
    state: State  # w
    clients: np.ndarray
    metric: str | PollMetric = "loss"  # a key of POLL_METRICS, or another
    max_samples: int | str | None = None  # rows of a client; "batch": as many as of a minibatch
    at_most: float | None = None  # a client whose value is above does not reply
    model: str = CURRENT_MODEL  # under which a client keeps the state in this round


class CombinationsRequest(NamedTuple):
    """A request to evaluate linear combinations of models on the data of some clients."""

    round: int
    state: State  # w; what ``models`` lacks is that of w in all combinations
    models: State  # some tensors of models, along a leading axis
    coefficients: np.ndarray  # of shape (n_combinations, n_models)
    clients: np.ndarray
    metric: str = "loss"  # a key of POLL_METRICS


class SketchRequest(NamedTuple):
    """A request for projections of the gradients of some clients."""

    round: int
    state: State  # w
    clients: np.ndarray
    seed: int  # of the projection

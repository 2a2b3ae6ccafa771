"""What passes between a round and the engine that runs its clients."""

import pickle
from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from skfed.aggregation import BaseAggregator
from skfed.aggregation._tensors import changed_names, finite_where_changed, real
from skfed.nets import State, by_member
from skfed.privacy import GaussianMechanism
from skfed.selection import Cohort


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains in a round."""

    epochs: int = 1  # E
    steps: int | None = None  # tau; wins over epochs when given
    proximal_mu: float = 0.0  # FedProx's mu
    # Of each iteration the learning rate of each parameter group; None: the net's own.
    rates: tuple[tuple[float, ...], ...] | None = None

    @property
    def n_iterations(self) -> int:
        """Local iterations of a round: steps where they are given, else epochs."""
        return self.epochs if self.steps is None else self.steps


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A request to train a cohort."""

    round: int
    state: State  # w_t
    parameters: Sequence[str]  # names of what is trained; the model's other tensors are buffers
    cohort: Cohort
    training: LocalTraining
    aggregator: BaseAggregator
    corrections: Sequence[State] | None = None  # SCAFFOLD's c - c_k, one a member of the cohort
    privacy: GaussianMechanism | None = None  # what members do to their updates
    noise: Sequence[np.random.Generator] | None = None  # with what, one a member

    def subset(self, members: np.ndarray) -> "TrainRequest":
        """Return the request to some members alone."""
        chosen = self.cohort
        cohort = replace(chosen, clients=chosen.clients[members], weights=chosen.weights[members])
        corrections = self.corrections and [self.corrections[i] for i in members]
        noise = self.noise and [self.noise[i] for i in members]
        return replace(self, cohort=cohort, corrections=corrections, noise=noise)


@dataclass(frozen=True)
class Updates:
    """What some members of a cohort send back after training.

    Parameters
    ----------
    members : ndarray of shape (n_members,)
        Their positions in the cohort.
    losses : ndarray of shape (n_members,)
        Mean minibatch loss over the local steps of each.
    n_samples : ndarray of shape (n_members,)
        Rows seen in the local steps, repeats counted.
    finite : ndarray of shape (n_members,), dtype=bool
        Whether all that a member has changed is finite; False for one whose training raised.
    part : object
        What the aggregation rule collected of the models of those that are finite.
    variates : list of (dict of str to Tensor or None)
        SCAFFOLD's new c_k of each; None where it has not moved.
    changed : collection of str
        Names of the tensors that some of those that are finite have changed.
    error : Exception, default=None
        What the training of these members raised.
    """

    members: np.ndarray
    losses: np.ndarray
    n_samples: np.ndarray
    finite: np.ndarray
    part: Any
    variates: Sequence[State | None]
    changed: Collection[str] = ()
    error: Exception | None = None

    @classmethod
    def of_failed(cls, members: np.ndarray, error: Exception) -> "Updates":
        """Return what is left of members whose training raised: nothing."""
        n = len(members)
        nothing = np.full(n, np.nan), np.zeros(n, dtype=int), np.zeros(n, dtype=bool)
        return cls(members, *nothing, None, [None] * n, error=error)


def sendable(error: Exception) -> Exception:
    """Return an exception that comes out of another process as it is, so that n_jobs is no matter.

    One that has no pickle would end the fit there, and one that cannot be unpickled the process.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a class of the user's does
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class EvaluateRequest(NamedTuple):
    """A request to evaluate a state on the data of some clients."""

    round: int
    state: State  # w
    clients: np.ndarray
    metric: str = "loss"  # or "error"
    max_samples: int | str | None = None  # rows that a client uses; "batch": those of a minibatch
    at_most: float | None = None  # above, a client says nothing


class Evaluation(NamedTuple):
    """The replies to a poll, in the order of the request's clients."""

    values: np.ndarray  # of the metric; NaN from a client that raised or did not reply
    n_samples: np.ndarray  # rows that each client evaluated
    raised: dict[int, Exception] = {}  # by position
    silent: np.ndarray | np.bool = np.False_  # mask of the clients that did not reply


class Evaluator(Protocol):
    """Evaluates a state on clients' data."""

    #: Whether clients add noise, and compare with the bound, themselves.
    clients_add_noise: bool

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Evaluate the request's metric on each client's rows."""


class Engine(Evaluator, Protocol):
    """Trains and evaluates clients."""

    def train(self, request: TrainRequest) -> Iterable[Updates]:
        """Train a cohort from the request's state; a client that stands twice trains twice."""


def collect(
    request: TrainRequest,
    members: np.ndarray,
    stack: State,
    losses: np.ndarray,
    n_samples: np.ndarray,
    variates: Sequence[State | None],
) -> Updates:
    """Let the rule take what it needs of the members' models, stacked along a leading axis.

    ``request`` is for these members alone.
    """
    if request.privacy is not None and request.noise is not None:
        noise = deepcopy(request.noise)  # for who has to train once more
        stack = request.privacy.of_updates(request.state, stack, request.parameters, noise)
    part = request.aggregator.collect(
        request.state, stack, request.cohort.weights, request.parameters
    )
    clean = part is not stack and _is_finite(part)
    changed: Collection[str] = changed_names(request.state, stack, with_nan=not clean)
    finite = np.isfinite(losses)
    if not clean and (part is stack or not _is_finite(part, request.state.keys() - set(changed))):
        finite &= _finite_members(request.state, stack, changed)
    for i, variate in enumerate(variates):
        finite[i] &= all(tensor.isfinite().all() for tensor in (variate or {}).values())
    if not finite.all():
        part, changed = _of_finite(request, stack, finite)
    if isinstance(part, dict):
        again = {_address(tensor) for tensor in stack.values()}  # whose memory is used again
        part = {n: (t.clone() if _address(t) in again else t).cpu() for n, t in part.items()}
    return Updates(members, losses, n_samples, finite, part, variates, changed)


def _of_finite(
    request: TrainRequest, stack: State, finite: np.ndarray
) -> tuple[Any, Collection[str]]:
    """Let the rule take what it needs of the finite members alone; say what they have changed."""
    if not finite.any():
        return None, ()
    kept = {name: tensor[torch.from_numpy(finite)] for name, tensor in stack.items()}
    weights = request.cohort.weights[finite]
    part = request.aggregator.collect(request.state, kept, weights, request.parameters)
    return part, changed_names(request.state, kept)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_finite(part: Any, unchanged: Collection[str] = ()) -> bool:
    """Tell whether a rule surely collected finite tensors; it cannot if a change is not."""
    return isinstance(part, dict) and all(
        name in unchanged or tensor.sum().isfinite() for name, tensor in part.items()
    )


def _finite_members(state: State, stack: State, changed: Collection[str]) -> np.ndarray:
    """Return whose changes are all finite."""
    finite = np.ones(len(next(iter(stack.values()))), dtype=bool)
    for name in changed:
        # A sum is not finite if a term is not; the other way round only if it overflows.
        suspect = ~by_member(real(stack[name])).sum(1).isfinite()
        for k in suspect.nonzero().flatten().tolist():
            finite[k] &= finite_where_changed(stack[name][k], state[name])
    return finite

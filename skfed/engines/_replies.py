"""What clients reply: updates after training, and values of a poll's metric."""

from cmath import isfinite  # of complex numbers too
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from skfed.aggregation import BaseAggregator
from skfed.aggregation._tensors import changed_names, finite_where_changed, real
from skfed.engines._projection import project
from skfed.engines._requests import (
    CombinationsRequest,
    EvaluateRequest,
    SketchRequest,
    TrainRequest,
)
from skfed.nets import RowSquares, State, by_member, moved


class Late(TimeoutError):
    """A client has not replied before the end of the exchange."""


class ReplyTimes(NamedTuple):
    """Measured seconds of an exchange; NaN where there are none."""

    seconds: np.ndarray  # of each client, from the message to its reply
    computing: np.ndarray  # of them, those in which the client says to have computed
    duration: float  # from the messages to the end of the exchange

    @classmethod
    def of_nobody(cls) -> "ReplyTimes":
        """Return the times of an exchange with no client."""
        return cls(np.zeros(0), np.zeros(0), 0.0)


@dataclass(frozen=True)
class Report:
    """What some members of a cohort report after training.

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
    variates : list of (dict of str to Tensor or None)
        SCAFFOLD's new c_k of each; None where it has not moved.
    error : Exception, default=None
        Raised by the training of these members; :class:`Late` if they have not replied in time.
    times : ReplyTimes, default=None
        Of these members, where the engine measures them.
    extras : dict of str to ndarray of shape (n_members, ...)
        What the request needs beside, by name: "updates", "last_layer", "norms".
    """

    members: np.ndarray
    losses: np.ndarray
    n_samples: np.ndarray
    finite: np.ndarray
    variates: Sequence[State | None]
    error: Exception | None = None
    times: ReplyTimes | None = None
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Updates:
    """What some members of a cohort send back after training.

    Parameters
    ----------
    reports : list of Report
        Of these members, in any order.
    parts : list of (ndarray of int, object)
        What the aggregator collected of the states of those that are finite; accumulated where
        updates were merged.
    changed : frozenset of str
        Names of the tensors that some of those that are finite have changed.
    models : list of (ndarray of int, dict of str to Tensor)
        The tensors that those that are finite have changed, where the request keeps their models.
    """

    reports: list[Report]
    parts: list[tuple[np.ndarray, Any]]
    changed: frozenset[str]
    models: list[tuple[np.ndarray, State]] = field(default_factory=list)

    @classmethod
    def of_failed(cls, members: np.ndarray, error: Exception) -> "Updates":
        """Return the updates of members whose training raised."""
        n = len(members)
        nothing = np.full(n, np.nan), np.zeros(n, dtype=int), np.zeros(n, dtype=bool), [None] * n
        return cls([Report(members, *nothing, error)], [], frozenset())


def merge(aggregator: BaseAggregator, updates: Updates, more: Updates) -> Updates:
    """Return the updates of the members of both, accumulated in this order."""
    parts: list[tuple[np.ndarray, Any]] = []
    for members, part in (*updates.parts, *more.parts):
        aggregator.accumulate(parts, members, part)
    changed, models = updates.changed | more.changed, [*updates.models, *more.models]
    return Updates([*updates.reports, *more.reports], parts, changed, models)


class Evaluation(NamedTuple):
    """The replies to a poll, in the order of the request's clients."""

    # Of the metric; NaN from a client that raised or did not reply. One a client, or a row of them.
    values: np.ndarray
    n_samples: np.ndarray  # rows that each client evaluated
    raised: dict[int, Exception] = {}  # by position; Late if it has not replied in time
    silent: np.ndarray | np.bool = np.False_  # mask of the clients that did not reply
    times: ReplyTimes | None = None  # where the engine measures them


class Evaluator(Protocol):
    """Evaluates a state on clients' data."""

    #: Whether clients add noise, and compare with the bound, themselves.
    clients_add_noise: bool
    #: Whether the engine measures the seconds of replies, and decides who is late.
    measures_time: bool

    @property
    def validation_rows(self) -> int | None:
        """Rows of a batch of validation at the server; None: as the net's iterator has them."""

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Evaluate the request's metric on each client's rows."""

    def evaluate_combinations(self, request: CombinationsRequest) -> Evaluation:
        """Evaluate each combination of models on all rows of each client.

        The values are of shape (n_clients, n_combinations). Combination j has, of each tensor in
        ``models``, the sum over i of ``coefficients[j, i]`` times that of model i, added in float64
        and cast; a row that is a unit vector has the tensor itself. Models with coefficient 0 have
        no part in it. A client that raises for one combination has no value of any.
        """

    def sketch(self, request: SketchRequest) -> tuple[Evaluation, np.ndarray]:
        """Return clients' replies, and projections of their gradients, (n_clients, 64)."""


class Engine(Evaluator, Protocol):
    """Trains and evaluates clients."""

    def train(self, request: TrainRequest) -> Updates:
        """Train a cohort, which is not empty, from the request's state.

        A client that is listed twice trains twice. Updates are merged along a tree that depends on
        the cohort and its rows alone.
        """

    def upload(
        self, request: TrainRequest, parts: Sequence[tuple[np.ndarray, Any]], members: np.ndarray
    ) -> Updates:
        """Return the updates of some members that have trained; ``parts`` are kept of them."""


def kept_updates(parts: Sequence[tuple[np.ndarray, Any]], members: np.ndarray) -> Updates:
    """Return the updates of some members of which the models are kept in this process."""
    asked = set(members.tolist())
    found = [(own, part) for own, part in parts if asked & set(own.tolist())]
    return Updates([], found, frozenset())


def collect(
    request: TrainRequest,
    members: np.ndarray,
    stack: State,
    losses: np.ndarray,
    n_samples: np.ndarray,
    variates: Sequence[State | None],
    spread: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Updates:
    """Return the updates of some members, given what they send back along a leading axis.

    ``request`` is for these members alone.
    """
    if request.privacy is not None and request.noise is not None:
        noise = deepcopy(request.noise)  # kept, since a member that fails trains again
        stack = request.privacy.of_updates(request.state, stack, request.parameters, noise)
    extras = {**extras_of(request, stack), **spread}
    model = request.sent_back
    part = request.aggregator.collect(model, stack, request.cohort.weights, request.parameters)
    is_sum = part is not stack
    clean = is_sum and _is_finite(part)
    changed = changed_names(model, stack, with_nan=not clean)
    finite = np.isfinite(losses)
    if not clean and not (is_sum and _is_finite(part, model.keys() - changed)):
        finite &= _finite_members(request.state, stack, changed)
    for i, variate in enumerate(variates):
        if variate is not None:
            finite[i] &= all(tensor.isfinite().all() for tensor in variate.values())
    if not finite.all():
        part, changed = _of_finite(request, stack, finite)
    if isinstance(part, dict):
        # Memory that the next chunk uses again.
        reused = set(map(_address, stack.values()))
        kept = {n: t.clone() if _address(t) in reused else t for n, t in part.items()}
        part = {name: moved(tensor, "cpu") for name, tensor in kept.items()}
    parts = [(members[finite], part)] if finite.any() else []
    report = Report(members, losses, n_samples, finite, variates, extras=extras)
    models = []
    if request.keeps_models and finite.any():
        # Copies, since the next chunk uses the memory again.
        rows = torch.from_numpy(np.flatnonzero(finite))
        own = {name: moved(stack[name][rows.to(stack[name].device)], "cpu") for name in changed}
        models = [(members[finite], own)]
    return Updates([report], parts, changed, models)


def _changes(request: TrainRequest, stack: State, i: int) -> list[torch.Tensor]:
    """Return the update of a member, of each trained tensor."""
    return [stack[name][i] - request.state[name].to(stack[name]) for name in request.parameters]


def _projections(request: TrainRequest, stack: State) -> np.ndarray:
    """Return a random projection of each update."""
    members = range(len(request.cohort.clients))
    return np.array([project(_changes(request, stack, i), request.seed) for i in members])


def update_norms(request: TrainRequest, stack: State) -> np.ndarray:
    """Return the norm of each member's update."""
    members = range(len(request.cohort.clients))
    squares = [
        sum(float(change.double().square().sum()) for change in _changes(request, stack, i))
        for i in members
    ]
    return np.sqrt(squares)


def _last_layers(request: TrainRequest, stack: State) -> np.ndarray:
    """Return the update of the last layer's bias; without one, the row means of its weights."""
    name = request.last_layer
    changes = (stack[name] - request.state[name].to(stack[name])).double().cpu()
    return (changes if changes.dim() < 3 else changes.flatten(2).mean(2)).numpy()


def extras_of(request: TrainRequest, stack: State) -> dict[str, np.ndarray]:
    """Return what else a request needs of the members in a stack, by name."""
    names = sorted(request.needs - {"spread"})
    return {name: _EXTRAS[name](request, stack) for name in names}


def spread_of(losses: np.ndarray, squares: RowSquares | None) -> dict[str, np.ndarray]:
    """Return the spread of losses of (step, member), NaN after a member's last step.

    Without ``squares``, those of rows, the mean square is over steps.
    """
    taken = ~np.isnan(losses)
    n_steps, known = taken.sum(0), np.where(taken, losses, 0.0)
    mean = known.sum(0) / n_steps
    variance = np.where(taken, np.square(losses - mean), 0.0).sum(0) / n_steps
    rms = np.sqrt(np.square(known).sum(0) / n_steps) if squares is None else squares.root()
    return {"loss_std": np.sqrt(variance), "loss_rms": rms}


#: What else a request may need of each member.
_EXTRAS = {"updates": _projections, "last_layer": _last_layers, "norms": update_norms}


def _of_finite(
    request: TrainRequest, stack: State, finite: np.ndarray
) -> tuple[Any, frozenset[str]]:
    """Return what the aggregator collects of the finite members, and what they have changed."""
    if not finite.any():
        return None, frozenset()
    kept = {name: tensor[torch.from_numpy(finite)] for name, tensor in stack.items()}
    weights = request.cohort.weights[finite]
    part = request.aggregator.collect(request.sent_back, kept, weights, request.parameters)
    return part, changed_names(request.sent_back, kept)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_finite(part: Any, unchanged: Collection[str] = ()) -> bool:
    """Tell whether a part is finite for certain; then so are the updates that it is made of."""
    return isinstance(part, dict) and all(
        name in unchanged or isfinite(tensor.sum().item()) for name, tensor in part.items()
    )


def _finite_members(state: State, stack: State, changed: Collection[str]) -> np.ndarray:
    """Return a mask of the members whose changes are all finite."""
    finite = np.ones(len(next(iter(stack.values()))), dtype=bool)
    for name in changed:
        # A sum is not finite if a term is not; the other way round only if it overflows.
        suspect = ~by_member(real(stack[name])).sum(1).isfinite()
        for i in suspect.nonzero().flatten().tolist():
            finite[i] &= finite_where_changed(stack[name][i], state[name])
    return finite

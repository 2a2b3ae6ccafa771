"""What the clients of a round have contributed: the game that a contribution method values.

The players are the distinct clients whose updates were aggregated. The gain of a subset S of them,
v(S), is by how much the model that S alone would have made is better than w_t.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from skfed.aggregation import ServerOptimizer
from skfed.contribution import BaseContribution, Values
from skfed.engines import CombinationsRequest, Evaluator, TrainRequest
from skfed.nets import State
from skfed.selection import Cohort, Round
from skfed.server._current_round import CurrentRound
from skfed.server._training import CohortTraining
from skfed.utils._seeding import Purpose

logger = logging.getLogger(__name__)

#: The metrics of polls, of which a lower value is a gain, by that of a contribution.
_POLLED = {"loss": "loss", "accuracy": "error"}

#: Takes models, coefficients, and whether the first combination is w; returns the metric of each
#: combination, with a row a client, NaN where it is not known.
Evaluate = Callable[[State, np.ndarray, bool], np.ndarray]


class NotValued(Exception):
    """A round has no values; the text says why."""


@dataclass(frozen=True)
class SubsetModels:
    """The models that subsets of a cohort would have made.

    Parameters
    ----------
    request : TrainRequest
        That of the training.
    cohort : Cohort
        Those whose updates were aggregated.
    states : dict of str to Tensor
        The tensors that they have changed: w first, then those of each, along a leading axis.
    server_optimizer : ServerOptimizer or None
        What steps from w to an aggregate.
    optimizer_state : dict or None
        Its state before the round.
    """

    request: TrainRequest
    cohort: Cohort
    states: State
    server_optimizer: ServerOptimizer | None
    optimizer_state: dict | None

    def of_subsets(self, members: np.ndarray) -> Iterator[tuple[State, np.ndarray]]:
        """Yield models, and the coefficients that make of them those of some subsets, in order.

        ``members`` is a mask of shape (n_subsets, n_members); in each subset some member has a
        weight. The first of the models is w. No more are written at once than the cohort has
        members.
        """
        if self._is_sum:
            yield self.states, np.stack([self._coefficients(mask) for mask in members])
            return
        n_members, w = len(self.cohort.clients), self.request.state
        # A server optimizer with momentum moves also what nobody has changed in this round.
        moved = () if self.server_optimizer is None else self.request.parameters
        names = dict.fromkeys([*self.states, *moved])
        for start in range(0, len(members), n_members):
            models = [self._model(mask) for mask in members[start : start + n_members]]
            models.insert(0, w)
            stack = {name: torch.stack([one[name] for one in models]) for name in names}
            yield stack, np.eye(len(models))[1:]

    @property
    def _is_sum(self) -> bool:
        """Whether each model is a sum of those of w and of the members."""
        request = self.request
        return (
            self.server_optimizer is None
            and request.aggregator.coefficients(self.cohort) is not None
            and self.states.keys() <= set(request.parameters)
            and all(tensor.is_floating_point() for tensor in self.states.values())
        )

    def _coefficients(self, mask: np.ndarray) -> np.ndarray:
        own = self.request.aggregator.coefficients(self.cohort.keep(mask))
        assert own is not None
        coefficients = np.zeros(1 + len(mask))
        coefficients[[True, *mask.tolist()]] = own
        return coefficients

    def _model(self, mask: np.ndarray) -> State:
        """Return the model of some members as the aggregator and the server optimizer make it."""
        request, w = self.request, self.request.sent_back
        updates = [
            w | {name: tensor[1 + i] for name, tensor in self.states.items()}
            for i in np.flatnonzero(mask).tolist()
        ]
        cohort = self.cohort.keep(mask)
        aggregate = request.aggregator.aggregate(w, updates, cohort, request.parameters)
        if self.server_optimizer is None:
            return aggregate
        optimizer, state = self.server_optimizer, self.optimizer_state
        return optimizer.step(w, aggregate, request.parameters, state)[0]


@dataclass
class Game:
    """The gains of subsets of a round's players.

    Parameters
    ----------
    models : SubsetModels
        Of the round's cohort.
    evaluate : callable
        Evaluates combinations of models.
    weights : ndarray of shape (n_clients,)
        s_k D_k of each client that evaluates.
    players : ndarray of int
        The distinct clients of the cohort.
    """

    models: SubsetModels
    evaluate: Evaluate
    weights: np.ndarray
    players: np.ndarray
    _current: np.ndarray | None = field(default=None, init=False)  # the metric of w by client

    def gains(self, subsets: np.ndarray) -> np.ndarray:
        """Return v of some subsets, a mask of shape (n_subsets, n_players)."""
        cohort, gains = self.models.cohort, np.zeros(len(subsets))
        members = subsets[:, np.searchsorted(self.players, cohort.clients)]
        # Members without a weight define no mean: they keep the model.
        weighty = (members & (cohort.weights > 0)).any(axis=1)
        if not weighty.any():
            return gains
        gains[weighty] = np.concatenate(
            [self._better(*part) for part in self.models.of_subsets(members[weighty])]
        )
        return gains

    def _better(self, models: State, coefficients: np.ndarray) -> np.ndarray:
        """Return by how much combinations are better than w for the clients that have told it."""
        if self._current is None:
            with_w = np.vstack([np.eye(1, coefficients.shape[1]), coefficients])
            values = self.evaluate(models, with_w, True)
            self._current, values = values[:, 0], values[:, 1:]
        else:
            values = self.evaluate(models, coefficients, False)
        known = np.isfinite(values).all(axis=1) & np.isfinite(self._current)
        if not self.weights[known].any():
            raise NotValued("no client told a finite loss of each subset's model")
        better = self._current[known, None] - values[known]
        return np.average(better, axis=0, weights=self.weights[known])


@dataclass(frozen=True)
class Valuation:
    """Values what the clients of each round have contributed.

    Parameters
    ----------
    contribution : BaseContribution
        The method.
    validator : Evaluator or None
        Evaluates models on the validation rows, as those of one client; None: there are none.

    Raises
    ------
    ValueError
        If there are no validation rows, but the method wants them.
    """

    contribution: BaseContribution
    validator: Evaluator | None

    def __post_init__(self) -> None:
        if self.contribution.evaluate_on == "validation" and self.validator is None:
            raise ValueError(
                f"contribution={self.contribution} evaluates on validation rows, but there are "
                "none: give X_val and y_val to fit (partial_fit and a run over Flower have none), "
                "or set contribution__evaluate_on='priority'."
            )

    def of_round(
        self,
        current: CurrentRound,
        view: Round,
        training: CohortTraining,
        cohort: Cohort,
        optimizer_state: dict | None,
    ) -> tuple[np.ndarray, Values] | None:
        """Return the players of a round, as indices, and their values; None if there are none.

        Parameters
        ----------
        current : CurrentRound
            What asks clients. The exchanges of the valuation are added to those of the round.
        view : Round
            Its priority clients in reach evaluate the models, unless the server does.
        training : CohortTraining
            It has kept the models of its members.
        cohort : Cohort
            Those of its members that were aggregated.
        optimizer_state : dict or None
            That of the server optimizer before the round.
        """
        if not (len(cohort.clients) and current.config.values_updates(current.server.round)):
            return None
        optimizer, players = current.config.server_optimizer, np.unique(cohort.clients)
        states = _changed_states(training)
        models = SubsetModels(training.request, cohort, states, optimizer, optimizer_state)
        rng = current.server.stream(Purpose.CONTRIBUTION)
        try:
            game = Game(models, *self._evaluated_on(current, view), players)
            return players, self.contribution.values(game.gains, len(players), rng)
        except NotValued as error:
            logger.warning("round %d has no contributions: %s.", current.server.round, error)
            return None

    def _evaluated_on(self, current: CurrentRound, view: Round) -> tuple[Evaluate, np.ndarray]:
        """Return what evaluates models, and the weights of the clients that do."""
        metric = _POLLED[self.contribution.metric]
        if self.contribution.evaluate_on == "validation":
            return partial(self._validate, current, metric), np.ones(1)
        clients = np.flatnonzero(view.priority & view.available)
        if not len(clients):
            raise NotValued("no priority client is in reach")
        weights = (view.priority_weights * view.sizes)[clients]
        return partial(current.evaluate_combinations, clients, metric), weights

    def _validate(
        self,
        current: CurrentRound,
        metric: str,
        models: State,
        coefficients: np.ndarray,
        with_current: bool,
    ) -> np.ndarray:
        """Evaluate combinations on the validation rows."""
        assert self.validator is not None
        server = np.zeros(1, dtype=int)
        reply = self.validator.evaluate_combinations(
            CombinationsRequest(
                current.server.round, current.state, models, coefficients, server, metric
            )
        )
        for error in reply.raised.values():
            raise error
        return reply.values


def _changed_states(training: CohortTraining) -> State:
    """Return the tensors that members have changed, those of w first, then those of each."""
    state, kept = training.request.state, {}
    for members, stack in training.models:
        for place, i in enumerate(members.tolist()):
            kept[i] = {name: tensor[place] for name, tensor in stack.items()}
    models = [{}, *(kept[i] for i in sorted(kept))]
    return {
        name: torch.stack([one.get(name, w) for one in models])
        for name, w in state.items()
        if name in training.changed
    }

"""What the server does in a round for the rule that selects, and for the training."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from skfed._federation import Federation
from skfed.engines import CombinationsRequest, Engine, Evaluation, Late, SketchRequest
from skfed.exchanges import (
    NOT_FINITE,
    SKETCH,
    TRAINING,
    TRIAL,
    VALUATION,
    Answers,
    Clock,
    Message,
    Messages,
    plan_exchange,
)
from skfed.nets import CLASSIFIERS, State, weighs_rows
from skfed.selection import Cohort, Round
from skfed.selection._base import admission_of
from skfed.selection._past import SKETCH_SIZE
from skfed.server._config import RoundConfig
from skfed.server._exchanges import make_exchanges
from skfed.server._poll import Poll
from skfed.server._requests import make_train_request, needs_of_updates
from skfed.server._state import ServerState
from skfed.server._statistics import RateLimits
from skfed.server._training import CohortTraining, training_messages
from skfed.server._two_phases import KeepUpdates, TwoPhaseTraining
from skfed.utils._seeding import Purpose, stream


class CurrentRound:
    """The server's side of one round: polls, trials, sketches and the training."""

    def __init__(
        self,
        server: ServerState,
        federation: Federation,
        config: RoundConfig,
        engine: Engine,
        clock: Clock,
        limits: RateLimits | None,
        state: State,
    ):
        self.server, self.federation, self.config = server, federation, config
        self.engine, self.clock, self.state = engine, clock, state
        self.exchanges = make_exchanges(server, federation, config, clock, engine.clients_add_noise)
        self._make_request = partial(make_train_request, server, federation, config, state, limits)
        self._n_trials = 0
        self.absent: np.ndarray | None = None  # the clients that have not joined, if some do later
        # Who answers after a training is drawn once a round for each client.
        self._answers: dict[int, bool] = {}
        self._answers_rng = server.stream(Purpose.ANSWERS)

    @cached_property
    def poll(self) -> Poll:
        """What polls clients for w_t."""
        net = self.server.net
        return Poll(
            evaluator=self.engine,
            state=self.state,
            exchanges=self.exchanges,
            batching=self.clock.batching,
            is_classifier=isinstance(net, CLASSIFIERS),
            leaves_out_rows=weighs_rows(getattr(net, "criterion_", None)),
        )

    def view(self) -> Round:
        """Return what the selector may know of the round, and do in it.

        It is not kept here: it refers to this object, and a circle would stay in memory.
        """
        server, federation = self.server, self.federation
        availability, t = self.config.availability, server.round
        available = availability.reachable(
            federation,
            t,
            server.stream(Purpose.AVAILABILITY),
            stream(server.seed, Purpose.FIXED_AVAILABILITY),
        )
        joined = availability.joined(federation, t)
        if joined is not None:
            federation, available = federation.joined(joined), available & joined
            self.absent = np.flatnonzero(~joined)
        if availability.backs_off:
            available = available & (server.past.column("asked_from") <= t)
        devices, is_timed = self.clock.devices, self.clock.is_timed
        nothing = np.broadcast_to(np.nan, len(federation))  # one number, to save memory
        return Round(
            index=t,
            n_rounds=self.config.n_rounds,
            rng=server.stream(Purpose.SELECTION),
            sizes=federation.sizes,
            fractions=federation.fractions,
            priority=federation.priority,
            priority_weights=federation.priority_weights,
            available=available,
            reported=server.past.column("reported"),
            seconds=server.past.column("waited") if is_timed else nothing,
            ends=federation.ends,
            ask=self.poll,
            train=self.trial,
            project=self.sketch,
            past=server.past.past(self.config.selector.needs),
            memory=server.memory.values,
            expect=self.expected_seconds if devices is not None and devices.public else None,
        )

    def expected_seconds(self, clients: np.ndarray) -> np.ndarray:
        """Return the seconds that a training of some clients is expected to take now."""
        planned = plan_exchange(
            *(TRAINING, self._messages, clients, self.n_trained(clients)),
            self.exchanges.holders,
            fixed=self.exchanges.fixed,
        )
        return self.clock.expected(planned, self.server.round)

    def n_trained(self, clients: np.ndarray) -> np.ndarray:
        """Return the rows that a training of each client uses."""
        return self.clock.batching.n_trained(self.config.training, clients)

    def away(self, clients: np.ndarray) -> np.ndarray:
        """Return a mask of the clients that do not answer, the same for copies of a client."""
        new = sorted(set(clients.tolist()) - self._answers.keys())
        found = self.config.availability.answers(
            self.federation, np.array(new, dtype=int), self._answers_rng
        )
        self._answers |= dict(zip(new, found.tolist(), strict=True))
        return np.array([not self._answers[k] for k in clients.tolist()], dtype=bool)

    def training(self, cohort: Cohort, view: Round) -> CohortTraining:
        """Return the training of a cohort, not begun."""
        config, admit = self.config, admission_of(self.config.selector)
        parts = self.engine, self.exchanges
        if admit is None:
            return CohortTraining(*parts, self._make_request, cohort, self._messages)
        return TwoPhaseTraining(
            *parts,
            partial(self._make_request, keep=KeepUpdates(config.aggregator)),
            cohort,
            self._messages,
            admit=partial(admit, view),
            available=view.available,
            needs=needs_of_updates(config.selector),
            name=type(config.selector).__name__,
        )

    @property
    def _messages(self) -> Messages:
        """What travels in a training."""
        config = self.config
        return training_messages(config.aggregator.uses_variates, "spread" in config.selector.needs)

    def trial(self, cohort: Cohort) -> Poll:
        """Train a cohort from a copy of w_t; return what polls clients for the result."""
        number, self._n_trials = self._n_trials, self._n_trials + 1
        make_request = partial(self._make_request, trial=number)
        messages = training_messages(with_variates=False)
        training = CohortTraining(self.engine, self.exchanges, make_request, cohort, messages)
        clients = cohort.clients
        self.exchanges.ask(
            TRIAL,
            messages,
            clients,
            training.send,
            rows=self.n_trained(clients),
            away=self.away(clients),
        )
        return self.poll.of_another(training.aggregate(training.finite), f"trial {number}")

    def sketch(self, clients: np.ndarray) -> np.ndarray:
        """Return projections of the gradients of clients; see ``Round.sketch``."""
        for name in ("update_privacy", "loss_privacy"):
            if getattr(self.config, name) is not None:
                raise ValueError(
                    f"{name} does not cover the gradients of which {self.config.selector} asks for "
                    "sketches: use another selector, or no privacy."
                )
        request = SketchRequest(self.server.round, self.state, clients, self.server.seed)

        def send(asked: np.ndarray) -> Answers:
            reply, sketches = self.engine.sketch(request._replace(clients=clients[asked]))
            cause = f"its gradient {NOT_FINITE}: lower the learning rate."
            return answers_of(reply, "sketch", sketches, lambda _: ValueError(cause))

        exchange = self.exchanges.ask(
            SKETCH,
            Messages(
                Message(model=True, scalars={"seed": 1}), Message(scalars={"sketch": SKETCH_SIZE})
            ),
            clients,
            send,
            rows=self.federation.sizes[clients],
        )
        return exchange.extras["sketch"].copy()

    def evaluate_combinations(
        self,
        clients: np.ndarray,
        metric: str,
        models: State,
        coefficients: np.ndarray,
        with_current: bool,
    ) -> np.ndarray:
        """Have clients evaluate combinations of models; return a row of values for each client.

        With ``with_current`` the first is w_t, which is sent to those that lack it. The values of a
        client that has not told all of them are NaN.
        """
        n = len(coefficients)
        request = CombinationsRequest(
            self.server.round, self.state, models, coefficients, clients, metric
        )

        def send(asked: np.ndarray) -> Answers:
            reply = self.engine.evaluate_combinations(request._replace(clients=clients[asked]))
            reply = reply._replace(n_samples=reply.n_samples * n)
            return answers_of(reply, "values", reply.values, self._no_value)

        # It measures the fit: a failure, of a subset's model say, does not end it.
        failures = replace(self.exchanges.failures, fatal=False)
        exchange = replace(self.exchanges, failures=failures).ask(
            VALUATION,
            Messages(
                Message(model=with_current, models=("subset",) * (n - with_current)),
                Message(scalars={metric: n}),
            ),
            clients,
            send,
            rows=self.federation.sizes[clients] * n,
        )
        return exchange.extras["values"].copy()

    def _no_value(self, values: np.ndarray) -> ValueError:
        """Return the error of a client's losses of combinations, of which some are not finite."""
        return self.poll.no_loss(values[~np.isfinite(values)][0], "loss of a subset's model")


def answers_of(
    reply: Evaluation,
    name: str,
    values: np.ndarray,
    not_finite: Callable[[np.ndarray], ValueError],
) -> Answers:
    """Return answers of several numbers a client, NaN of one of which some are not finite.

    ``not_finite`` returns the error of such a client, given its numbers.
    """
    raised, rows, values = dict(reply.raised), reply.n_samples.copy(), values.copy()
    for i in np.flatnonzero(~np.isfinite(values).all(1)).tolist():
        cause = raised.setdefault(i, not_finite(values[i]))
        values[i] = np.nan
        if isinstance(cause, Late):
            rows[i] = 0
    times = [(np.arange(len(values)), reply.times)]
    return Answers(values.sum(1), rows, raised, extras={name: values}, times=times)

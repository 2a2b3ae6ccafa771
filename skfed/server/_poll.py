"""Polls of one round: the requests of a selector to clients, and their replies."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from skfed.engines import CURRENT_MODEL, Batching, EvaluateRequest, Evaluator, Late
from skfed.exchanges import (
    POLL,
    Answers,
    Exchange,
    Exchanges,
    Message,
    Messages,
    ModelHolders,
    Outcome,
)
from skfed.nets import State
from skfed.selection import Round
from skfed.selection._poll_metrics import POLL_METRICS
from skfed.server._state import Best


@dataclass
class Poll:
    """Sends the polls of a round."""

    evaluator: Evaluator
    state: State
    exchanges: Exchanges
    batching: Batching
    is_classifier: bool  # of a classifier, whose predictions are right or wrong
    leaves_out_rows: bool  # whether rows may not count in the criterion
    holders: ModelHolders | None = None  # of a model that is not w_t
    model: str = CURRENT_MODEL  # under which clients keep it

    def __call__(self, clients, metric, max_samples, at_most):
        """Return the values of clients in their order, NaN without one; see ``Round.poll``."""
        refusal = POLL_METRICS[metric].not_for_regressors
        if refusal and not self.is_classifier:
            raise ValueError(refusal)
        request = EvaluateRequest(
            self.exchanges.round, self.state, clients, metric, max_samples, at_most, self.model
        )
        bound = {} if at_most is None else {"bound": 1}
        exchange = self.exchanges.ask(
            POLL,
            Messages(Message(model=True, scalars=bound), Message(scalars={metric: 1})),
            clients,
            partial(self._evaluate, request),
            rows=self.batching.n_polled(clients, max_samples),
            holders=self.holders,
            at_most=at_most,
            metric=metric if self.holders is None else None,  # another model's tell nothing of w_t
            on_all_rows=max_samples is None,
        )
        return exchange.answers.copy()

    def _evaluate(self, request: EvaluateRequest, asked: np.ndarray) -> Answers:
        """Return the answers of the clients at some positions."""
        if not len(asked):
            return Answers.of_nobody(0)
        reply = self.evaluator.evaluate(request._replace(clients=request.clients[asked]))
        raised = dict(reply.raised)
        for i in np.flatnonzero(~np.isfinite(reply.values) & ~reply.silent).tolist():
            raised.setdefault(i, self.no_loss(reply.values[i]))
        rows = reply.n_samples.copy()
        rows[[i for i, cause in raised.items() if isinstance(cause, Late)]] = 0
        return Answers(reply.values, rows, raised, times=[(np.arange(len(asked)), reply.times)])

    def no_loss(self, loss: float, what: str = "loss") -> ValueError:
        """Return the error of a loss that is not finite; ``what`` it is."""
        if self.leaves_out_rows and np.isnan(loss):
            return ValueError(
                "it has no loss, as none of the rows that it was asked for counts in the criterion "
                "(ignore_index, or a weight of 0)."
            )
        return self.exchanges.privatizer.not_finite(what, loss)

    def of_another(self, state: State, model: str = CURRENT_MODEL) -> "Poll":
        """Return what polls clients for another model than w_t, and charges it once a client.

        They keep it under a name; under that of w_t, in its place.
        """
        others = ModelHolders.like(self.exchanges.holders)
        return replace(self, state=state, holders=others, model=model)


def objective(view: Round, exchanges: Iterable[Exchange]) -> float:
    """Return F(w_t) = sum of s_k p_k F_k(w_t), NaN unless all of P in reach were polled for it."""
    polls = [e for e in exchanges if e.metric == "loss" and e.on_all_rows]
    reached = view.priority & view.available
    n_answers = sum(np.count_nonzero(e.outcomes == Outcome.OK) for e in polls)
    if not 0 < np.count_nonzero(reached) <= n_answers:  # before an array for all clients is made
        return float("nan")
    losses = np.full(len(view.sizes), np.nan)
    for exchange in polls:
        answered = exchange.outcomes == Outcome.OK
        losses[exchange.clients[answered]] = exchange.answers[answered]
    if np.isnan(losses[reached]).any():
        return float("nan")
    weights = (view.priority_weights * view.sizes)[reached]
    return float(np.average(losses[reached], weights=weights))


def poll_in_doubt(
    poll: Poll, view: Round, clients: np.ndarray, best: Best | None
) -> tuple[float, Best | None]:
    """Poll clients, without a selector, for the loss of w_t, and of the best model so far.

    Return that of w_t, NaN if none is told, and the better of the two models. The best one is not
    polled for if its loss is known exactly. Who does not answer may train all the same, and a
    failure does not end the fit.
    """
    exchanges = poll.exchanges
    apart = replace(exchanges, failures=replace(exchanges.failures, fatal=False), settled=[])
    asked, of_best = replace(poll, exchanges=apart), None
    if best is not None and not best.is_exact:
        of_best = asked.of_another(best.state)(clients, "loss", None, None)
        exchanges.holders.forget(clients)  # a client holds one model
    losses = asked(clients, "loss", None, None)
    exchanges.settled += apart.settled
    known = np.isfinite(losses) & (True if of_best is None else np.isfinite(of_best))
    if not known.any():
        return float("nan"), best
    weights = (view.priority_weights * view.sizes)[clients[known]]
    loss = float(np.average(losses[known], weights=weights))
    if best is not None and of_best is not None:
        exact = float(np.average(of_best[known], weights=weights))
        pair = (
            Best(exact, best.round, best.state, "objective"),
            Best(loss, exchanges.round, poll.state, "objective"),
        )
        best = min(pair, key=lambda one: one.loss)
    return loss, best


def spread(clients: np.ndarray, most: int) -> np.ndarray:
    """Return at most so many of some clients, spread evenly over them."""
    if len(clients) <= most:
        return clients
    return clients[np.linspace(0, len(clients) - 1, most).astype(int)]

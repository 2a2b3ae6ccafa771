"""What passes between the server and the clients of one round: polls, updates, and failures."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed.engines import EvaluateRequest, Evaluator, TrainRequest, Updates, enumerate_copies
from skfed.history import Ledger
from skfed.nets import State
from skfed.privacy import GaussianMechanism
from skfed.selection import Round
from skfed.utils._seeding import Purpose

logger = logging.getLogger(__name__)

NO_ANSWER = "no answer"  # the cause of who was silent in the training
NOT_FINITE = "is not finite"


@dataclass
class Failures:
    """Which clients failed in a round, and why; a failure is told once a client and cause.

    Parameters
    ----------
    federation : Federation
        Who the clients are.
    round : int
        t.
    told : set of (hashable, str)
        What was logged before; grows.
    fatal : bool
        Whether a failure ends the fit.
    """

    federation: Federation
    round: int
    told: set[tuple]
    fatal: bool
    causes: dict[int, Exception] = field(default_factory=dict)  # by client

    def add(self, k: int, cause: Exception) -> None:
        """Note that a client failed; raise the cause if that is fatal."""
        name = self.federation.names([k])[0]
        if self.fatal:
            cause.add_note(f"client {name!r} in round {self.round}")
            raise cause
        self.causes.setdefault(int(k), cause)
        text = in_words(cause)
        if (self.federation.digest(k), text) not in self.told:
            self.told.add((self.federation.digest(k), text))
            logger.warning("client %r fails in round %d: %s", name, self.round, text)


def in_words(cause: Exception) -> str:
    """Return an exception on one line."""
    lines = str(cause).splitlines() or [""]
    return f"{type(cause).__name__}: {lines[0]}"


@dataclass
class LossPrivatizer:
    """What clients do to a loss before they say it in a round: noise, if any.

    Parameters
    ----------
    mechanism : GaussianMechanism or None
        The noise.
    stream : callable
        Returns the generator of one purpose, client and copy in this round.
    """

    mechanism: GaussianMechanism | None
    stream: Callable[[Purpose, int, int], np.random.Generator]
    polled: Counter[int] = field(default_factory=Counter)

    def of_polls(self, clients: np.ndarray, losses: np.ndarray) -> np.ndarray:
        """Return what clients answer in place of their losses; each time with other noise."""
        if self.mechanism is None:
            return losses
        noisy = losses.copy()
        for i, k in enumerate(clients.tolist()):
            rng = self.stream(Purpose.POLL_NOISE, k, self.polled[k])
            noisy[i] = self.mechanism.of_loss(losses[i], rng)
            self.polled[k] += 1
        return noisy

    def of_training(self, k: int, copy: int, loss: float) -> float:
        """Return what a client, or a copy of it, reports in place of its training loss."""
        if self.mechanism is None:
            return loss
        return self.mechanism.of_loss(loss, self.stream(Purpose.LOSS_NOISE, k, copy))

    def not_finite(self, what: str, loss: float) -> ValueError:
        """Say that a loss or update is not finite; the loss itself only where it is no secret."""
        told = f" (loss {loss})" if self.mechanism is None else ""
        return ValueError(f"its {what} {NOT_FINITE}{told}: lower the learning rate, or scale X.")


@dataclass
class Poll:
    """Carries a selector's questions of one round to the clients, and charges for them."""

    carrier: Evaluator
    model: State
    round: int
    ledger: Ledger
    failures: Failures
    discretion: LossPrivatizer
    has_errors: bool  # as classifiers have
    losses: dict[int, float] = field(default_factory=dict)  # F_k(w_t) of who said it

    def __call__(self, clients, metric, max_samples, at_most):
        if metric == "error" and not self.has_errors:
            raise ValueError(
                "selector polls the error, 1 - accuracy, which a regressor has not: let it match "
                "losses (FedAlignSelector(match='loss'))."
            )
        question = EvaluateRequest(self.round, self.model, clients, metric, max_samples, at_most)
        told = self.carrier.evaluate(question)
        values = told.values
        for i in np.flatnonzero(~np.isfinite(values) & ~told.silent).tolist():
            self.failures.add(
                clients[i], told.raised.get(i) or self.discretion.not_finite("loss", values[i])
            )
        values = self.discretion.of_polls(clients, values)
        # A client above the bound keeps its value to itself.
        answered = np.isfinite(values) & (values <= (np.inf if at_most is None else at_most))
        self.ledger.charge_poll(clients, answered, told.n_samples, with_bound=at_most is not None)
        if metric == "loss" and max_samples is None:
            self.losses.update(zip(clients[answered].tolist(), values[answered], strict=True))
        return np.where(answered, values, np.nan)

    def objective(self, view: Round) -> float:
        """Return F(w_t) = sum of s_k p_k F_k(w_t), where all of P in reach told their loss."""
        reached = view.priority & view.available
        if not 0 < np.count_nonzero(reached) <= len(self.losses):  # spares the look at each
            return float("nan")
        priority = np.flatnonzero(reached)
        if not self.losses.keys() >= set(priority.tolist()):
            return float("nan")
        weights = (view.priority_weights * view.sizes)[priority]
        return float(np.average([self.losses[k] for k in priority.tolist()], weights=weights))


class Returns:
    """What a cohort has sent back, in its order; the models go to the aggregation rule."""

    def __init__(self, order: TrainRequest, failures: Failures, discretion: LossPrivatizer):
        n_members = len(order.cohort.clients)
        self.clients, self.failures = order.cohort.clients, failures
        self.discretion = discretion
        self.copies = list(enumerate_copies(self.clients.tolist()))
        self.losses = np.full(n_members, np.nan)
        self.n_samples = np.zeros(n_members, dtype=int)
        self.sent = np.ones(n_members, dtype=bool)  # whose training came to its end
        self.good = np.ones(n_members, dtype=bool)  # and to something finite
        self.variates: list[State | None] = [None] * n_members
        self.changed: set[str] = set()  # names of tensors that somebody good has changed

    def parts(self, arriving: Iterable[Updates]) -> Iterator[tuple[np.ndarray, Any]]:
        """Note what comes, and pass the models on of those that have not failed."""
        for updates in arriving:
            members = updates.members
            for i, loss, finite in zip(members, updates.losses, updates.finite, strict=True):
                k, copy = self.copies[i]
                if finite:
                    self.losses[i] = self.discretion.of_training(k, copy, loss)
            self.n_samples[members] = updates.n_samples
            self.sent[members] = updates.error is None
            self.good[members] = updates.finite
            for i, variate, finite in zip(members, updates.variates, updates.finite, strict=True):
                self.variates[i] = variate if finite else None
            for i in np.flatnonzero(~updates.finite).tolist():
                cause = updates.error or self.discretion.not_finite("update", updates.losses[i])
                self.failures.add(self.clients[members[i]], cause)
            if updates.finite.any():
                self.changed |= set(updates.changed)
                yield members[updates.finite], updates.part

"""Rounds with given losses, to try a selector without data."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from skfed.selection._cohort import Cohort
from skfed.selection._past import NEEDS, SKETCH_SIZE, Past
from skfed.selection._round import Reports, Round


class MockRound(Round):
    """A round that answers polls from a table of losses.

    ``polls`` lists the polls so far as (clients, metric, max_samples, at_most), those of trials
    too, ``trials`` the cohorts of trials, and ``sketched`` the clients asked for sketches.
    """

    polls: list[tuple]
    trials: list[Cohort]
    sketched: list[list[int]]
    losses: np.ndarray
    norms: np.ndarray

    def reports(self, cohort: Cohort) -> Reports:
        """Return what a cohort reports; NaN of those whose last training has failed."""
        losses = np.where(np.isnan(self.reported), np.nan, self.losses)[cohort.clients]
        norms = np.where(np.isnan(losses), np.nan, cohort.weights * self.norms[cohort.clients])
        return Reports(cohort.clients.copy(), norms, losses)


def mock_round(
    losses: np.ndarray,
    *,
    sizes: np.ndarray | None = None,
    priority_weights: np.ndarray | None = None,
    available: np.ndarray | None = None,
    reported: np.ndarray | None = None,
    seconds: np.ndarray | None = None,
    expected_seconds: np.ndarray | None = None,
    index: int = 0,
    n_rounds: int = 10,
    rng: np.random.Generator | None = None,
    trial_losses: np.ndarray | None = None,
    sketches: np.ndarray | None = None,
    norms: np.ndarray | None = None,
    past: Mapping[str, Any] | None = None,
    memory: Mapping[str, Any] | None = None,
    needs: Iterable[str] = tuple(NEEDS),
) -> MockRound:
    """Return a round whose clients answer each poll with ``losses``; NaN is no answer.

    By default each client has one sample and priority, is available, and has neither reported a
    loss nor been timed; there are no devices that tell ``expected_seconds``. Clients answer polls
    of a trial's model with ``trial_losses``, by default ``losses``; ``sketches`` are theirs, by
    default different ones, and ``norms`` those of their updates, by default 1. ``past`` has arrays
    by the names of ``Past``; without, nothing is known of clients. As in a fit, it shows what
    ``needs`` names, by default all.
    """
    losses = np.asarray(losses, float)
    n_clients = len(losses)
    sizes = np.ones(n_clients, int) if sizes is None else np.asarray(sizes)
    weights = (
        np.ones(n_clients) if priority_weights is None else np.asarray(priority_weights, float)
    )
    trial_losses = losses if trial_losses is None else np.asarray(trial_losses, float)
    if sketches is None:
        sketches = np.random.default_rng(0).normal(size=(n_clients, SKETCH_SIZE))
    polls: list[tuple] = []
    trials: list[Cohort] = []
    sketched: list[list[int]] = []

    def answer(of, clients, metric, max_samples, at_most):
        polls.append((clients.tolist(), metric, max_samples, at_most))
        values = of[clients]
        return values if at_most is None else np.where(values <= at_most, values, np.nan)

    def ask(clients, metric, max_samples, at_most):
        return answer(losses, clients, metric, max_samples, at_most)

    def train(cohort):
        trials.append(cohort)
        return partial(answer, trial_losses)

    def project(clients):
        sketched.append(clients.tolist())
        return sketches[clients]

    view = MockRound(
        index=index,
        n_rounds=n_rounds,
        rng=np.random.default_rng(0) if rng is None else rng,
        sizes=sizes,
        fractions=sizes / (weights * sizes).sum(),
        priority=weights > 0,
        priority_weights=weights,
        available=np.ones(n_clients, bool) if available is None else np.asarray(available, bool),
        reported=np.full(n_clients, np.inf) if reported is None else np.asarray(reported, float),
        seconds=np.full(n_clients, np.nan) if seconds is None else np.asarray(seconds, float),
        ends=np.cumsum(sizes),
        ask=ask,
        train=train,
        project=project,
        past=Past(partial(_past_column, past or {}, n_clients), needs),
        memory=memory or {},
        expect=None
        if expected_seconds is None
        else np.asarray(expected_seconds, float).__getitem__,
    )
    norms = np.ones(n_clients) if norms is None else np.asarray(norms, float)
    given: dict[str, Any] = {"polls": polls, "trials": trials, "sketched": sketched}
    given |= {"losses": losses, "norms": norms}
    for name, value in given.items():
        object.__setattr__(view, name, value)
    return view


def _past_column(past: Mapping[str, Any], n_clients: int, name: str) -> np.ndarray:
    """Return an array of the past; of clients that are new if it is not given."""
    if name in past:
        return np.asarray(past[name])
    if name in ("updates", "last_layer"):
        return np.full((n_clients, SKETCH_SIZE), np.nan)
    new = {"n_polled": 0, "n_chosen": 0, "last_chosen": -1}
    return np.full(n_clients, new.get(name, np.nan))

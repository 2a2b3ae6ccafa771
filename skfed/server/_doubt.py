"""Whether the loss of a fit ends above that of a guess, or of its first round."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed._problem import Guess
from skfed.exchanges import NOT_FINITE, reported_losses
from skfed.modules import LinearModel
from skfed.nets import CLASSIFIERS
from skfed.server._state import ServerState

LASTING = 3  # rounds: a loss may be high by chance in fewer
LEAST = 0.01  # a loss below counts as this: nearly 0 is easily multiplied
_ENOUGH = 10  # rounds in which a net learns more than the shares of classes
_MORE = 1.1  # a polled loss that ends above so many times another is not so by chance
_TWICE = 2.0  # one after few rounds, or of other clients; or a training loss of the same ones
_MUCH_MORE = 10.0  # a training loss of others, or of those that improve their own models more
_TESTED = 10  # clients that are polled in doubt at least, and models of the fit for one of them

Rows = Sequence[Mapping[str, Any]]


def in_doubt(
    server: ServerState, federation: Federation, reported: np.ndarray, n_passes: float
) -> bool:
    """Tell before a fit's last training whether its loss may end above another.

    That is of a guess, or of the first round. Trainings tell too little: a client improves its own
    model, the more the more passes over its rows it makes in a round, ``n_passes``, and clients of
    other cohorts have other losses. ``reported`` are their last training losses.
    """
    rows, guess = server.rows[server.begun :], server.guess
    if len(rows) + 1 < LASTING:
        return False
    of_priority = _mean_reported(federation, reported)
    if guess is not None and guesses_mean(server):
        return of_priority > guess.loss / (2 * max(1.0, n_passes))
    recent, (first, _) = _recent_loss(rows), _first_loss(rows)
    n_rounds = len(rows) + 1
    above = False
    if guess is not None:  # last losses of clients may be old, and cohorts have free clients
        above = min(recent, of_priority) > guess.loss * _margin(server, guess, n_rounds)
    if _needs_rounds(server, n_rounds) and first_to_grow(rows) is None:
        above = False
    if n_rounds < _ENOUGH:
        return above or recent > max(_MUCH_MORE * first, LEAST)
    lowest = min((row["train_loss"] for row in rows), key=lambda loss: (math.isnan(loss), loss))
    times, of_lowest = (_MORE, _TWICE) if _is_same(rows, "cohort") else (_TWICE, _MUCH_MORE)
    return above or recent > max(min(times * first, of_lowest * lowest), LEAST)


def n_tested(rows: Rows, cohort: np.ndarray) -> int:
    """Return how many clients are polled in doubt: as many as a tenth of the models of a fit.

    Or as the cohort, and at least ten.
    """
    n_models = sum(row["models_down"] - row.get("n_evaluated", 0) for row in rows)
    return max(_TESTED, len(np.unique(cohort)), n_models // _TESTED)


def end_above(server: ServerState, rows: Rows, tested: float, is_steady: bool) -> str | None:
    """Return which loss of a fit's rows ends above that of a guess, or of the first; or None.

    ``tested`` is the loss that was polled in doubt, or NaN. ``is_steady`` tells whether clients do
    not report less for being better at improving their own models.
    """
    if len(rows) < LASTING:
        return None
    polled, told = rows[-1]["objective"], "objective"
    if math.isnan(polled):
        polled, told = tested, "the polled loss"
    if math.isnan(polled):
        times = _training_times(rows, is_steady)
        return _above(server, rows, "the training loss", _recent_loss(rows), times)
    # An objective is that of the clients in reach, a training loss that of the cohort.
    is_same = _is_same(rows, "cohort" if math.isnan(rows[0]["objective"]) else "polled")
    return _above(server, rows, told, polled, _MORE if is_same and len(rows) >= _ENOUGH else _TWICE)


def _above(server: ServerState, rows: Rows, name: str, last: float, times: float) -> str | None:
    """Return that the last loss is above that of a guess, or ``times`` the first one; or None."""
    guess, (first, t) = server.guess, _first_loss(rows)
    is_exact = name != "the training loss"
    if is_exact and math.isnan(rows[0]["objective"]) and server.best and server.best.is_exact:
        first, t = max((first, t), (server.best.loss, server.best.round))
    is_early = _needs_rounds(server, len(rows)) and still_falls(server, rows)
    if guess is not None and not is_early:
        margin = _margin(server, guess, len(rows))
        if not is_exact and not guesses_mean(server):  # clients may have other shares of classes
            margin = _MUCH_MORE if guess.is_best else max(margin, _TWICE)
        if last > guess.loss * margin:
            return (
                f"the fit ends with {name} at {last:.6g}, above that of a model that predicts "
                f"{guess.prediction}, {guess.loss:.6g}."
            )
    if not guesses_mean(server) and last > max(times * first, LEAST):
        return f"the fit ends with {name} at {last:.4g}, above that of round {t}, {first:.4g}."
    return None


def _training_times(rows: Rows, is_steady: bool) -> float:
    """Return how much a training loss has to grow: less if it is of the same clients."""
    is_clear = is_steady and _is_same(rows, "cohort") and len(rows) >= 2 * LASTING
    return _TWICE if is_clear else _MUCH_MORE


def _is_same(rows: Rows, column: str) -> bool:
    """Tell whether the first and the last round have the same clients."""
    return set(rows[0][column]) == set(rows[-1][column])


def still_falls(server: ServerState, rows: Rows) -> bool:
    """Tell whether the model of the last round is the best, and no client's loss has grown."""
    last = rows[-1]["round"]
    is_best = server.best is not None and server.best.round == last > rows[0]["round"]
    return is_best and first_to_grow(rows) is None


def guesses_mean(server: ServerState) -> bool:
    """Tell whether the guess is the mean of the targets."""
    return server.guess is not None and not isinstance(server.net, CLASSIFIERS)


def _needs_rounds(server: ServerState, n_rounds: int) -> bool:
    """Tell whether a loss that falls may end above that of a guess: other nets begin anywhere."""
    return n_rounds < _ENOUGH or not isinstance(server.net.module_, LinearModel)


def _margin(server: ServerState, guess: Guess, n_rounds: int) -> float:
    """Return by what the loss of a guess is multiplied, for that of a fit to be above it."""
    if guesses_mean(server):
        return 1.0  # the model begins there
    # Other nets than the default begin anywhere, and need some rounds.
    is_near = guess.is_best and isinstance(server.net.module_, LinearModel)
    return _MORE if n_rounds >= _ENOUGH or is_near else _MUCH_MORE


def _mean_reported(federation: Federation, reported: np.ndarray) -> float:
    """Return the mean of the training losses that priority clients last reported."""
    clients = np.flatnonzero(federation.priority & np.isfinite(reported))
    weights = federation.priority_weights[clients] * federation.sizes[clients]
    return float(weights @ reported[clients] / (weights.sum() or 1.0))


def _recent_loss(rows: Rows) -> float:
    """Return the median of the last training losses: cohorts have other losses."""
    losses = [row["train_loss"] for row in rows[-LASTING:]]
    return median([loss for loss in losses if not math.isnan(loss)] or [math.nan])


def _first_loss(rows: Rows) -> tuple[float, int]:
    """Return the first loss that is known, if any, and its round: objective or training loss."""
    known = ((row, row["objective"]) for row in rows[:1])
    trained = ((row, row["train_loss"]) for row in rows)
    found = ((x, row["round"]) for row, x in (*known, *trained) if not math.isnan(x))
    return next(found, (math.nan, 0))


def first_to_grow(rows: Rows) -> tuple[Any, int] | None:
    """Return the client whose training loss grew first, or was not finite, and the round."""
    first: dict[Any, float] = {}
    for row in rows:
        failed = zip(row["failed"], row["causes"], strict=True)
        broken = [client for client, cause in failed if NOT_FINITE in cause]
        losses = reported_losses(row)
        first = losses | first
        ratios = {k: loss / max(first[k], LEAST) for k, loss in losses.items()}
        grown = max(ratios, key=lambda k: ratios[k], default=None)
        if broken or (grown is not None and ratios[grown] > _MORE):
            return (broken or [grown])[0], row["round"]
    return None

"""Warnings at the end of a fit: its rounds have diverged, or no client succeeded in time."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetClassifier

from skfed._federation import Federation, find_ids
from skfed.modules import LinearModel
from skfed.nets import set_state, standardize_layers
from skfed.server._config import RoundConfig
from skfed.server._exchange import NO_ANSWER, NOT_FINITE, TOO_LATE
from skfed.server._exchange_log import reported_losses
from skfed.server._standardize import is_renewable
from skfed.server._state import Guess, ServerState
from skfed.utils._warnings import warn

# Losses of one model differ from cohort to cohort, and a rule that looks for the worst clients
# raises the cohort's loss rightly: by factors, but not by thousands, and not for long.
_TIMES = 1000.0
_LASTING = 3  # rounds
_AGAIN = 5  # rounds in which a client is late, and never trains: it is not by chance
_LEAST = 0.01  # a first loss below counts as this: nearly 0 is easily multiplied
_LOSSES = "objective", "train_loss", "val_loss"
_ENOUGH = 10  # rounds in which a net learns more than the shares of classes
_MORE = 1.1  # a polled loss that ends above so many times another is not so by chance
_MUCH_MORE = 10.0  # where a client that improves its own model reports less, or rounds are few

Rows = Sequence[Mapping[str, Any]]


def warn_at_end(
    server: ServerState,
    federation: Federation,
    config: RoundConfig,
    rounds: range,
    overflows: Mapping[int, Exception],
    reported: np.ndarray,
    n_passes: float,
) -> bool:
    """Warn of what went wrong up to the end of a fit's rounds; keep the best model if it diverged.

    With partial_fit each round may be the last: it warns of divergence once, and of all else after
    the last round that is planned. ``overflows`` are the errors of rounds whose aggregate was not
    finite, ``reported`` the last training loss of each client, and ``n_passes`` how often a client
    passes over its rows in a round. Return whether the model is not that of the last round.
    """
    until, is_single = rounds.stop, len(rounds) == 1
    is_last = until >= config.n_rounds or server.stopped > 0
    # A single round, as of partial_fit, is compared with all before. Other rows may have other
    # losses, but the rate of a regressor whose guess is known is safe for them.
    rows = server.rows[0 if is_single else rounds.start :]
    noisy = config.loss_privacy is not None  # losses with noise are not looked at
    ignored = noisy or (is_single and _guesses_mean(server))
    idle = idle_rounds(rows, len(federation), overflows)
    text = divergence_warning(rows, len(federation), overflows, ignored)
    diverged = (not ignored and _growth(rows) is not None) or loses_finiteness(idle)
    falls = False
    if text is None and not noisy:
        text = _end_above(server, federation, rounds, reported, n_passes)
        diverged, falls = text is not None, _still_falls(server, rows)
    kept = _keep_best(server, bool(idle)) if is_last and diverged else ""
    if text is not None and (is_last or (b"", "diverged") not in server.logged):
        server.logged.add((b"", "diverged"))
        way_out = ""
        if falls:
            way_out = "It still falls: train for more rounds, n_rounds, or at a higher rate."
        elif diverged:
            way_out = _cause_and_way_out(server, federation, config, rows)
        warn(" ".join(filter(None, [text, way_out, kept])), ConvergenceWarning)
    if is_last:
        server.best = None  # to free its memory
        _warn_of_the_rest(server, federation, config, rounds, text is None)
    return bool(kept)


def _warn_of_the_rest(
    server: ServerState, federation: Federation, config: RoundConfig, rounds: range, is_well: bool
) -> None:
    """Warn of a selector that has chosen nobody, and of clients that were late."""
    until = rounds.stop
    # Losses that have diverged match no client, whatever the selector's parameters.
    if is_well and (until == config.n_rounds or server.stopped):
        free = federation.names(np.flatnonzero(~federation.priority))
        text = config.selector.warning_after(server.rows, free, config.n_rounds)
        if text is not None:
            warn(text)
    rows = server.rows[rounds.start :]
    text = lateness_warning(rows, config.deadline) or always_late_warning(rows)
    if text is not None:
        warn(text)


def lateness_warning(rows: Rows, deadline: float | None) -> str | None:
    """Return the warning that in no round a client has trained by the deadline, or None."""
    late = [row for row in rows if TOO_LATE in row["causes"]]
    if deadline is None or not late or any(row["n_trained"] for row in rows):
        return None
    return (
        f"clients were late, and in none of the {len(rows)} rounds has one trained by "
        f"deadline={deadline}: raise it, or have clients train for fewer steps. history_ has who "
        "was late."
    )


def always_late_warning(rows: Rows) -> str | None:
    """Return the warning that clients were asked again and again, and always late; or None."""
    n_late: Counter[Any] = Counter()
    for row in rows:
        failed = zip(row["failed"], row["causes"], strict=True)
        n_late.update(client for client, cause in failed if cause == TOO_LATE)
    trained = {client for row in rows for client in row["cohort"]}
    always = {k: n for k, n in n_late.items() if n >= _AGAIN and k not in trained}
    if not always:
        return None
    client, n = max(always.items(), key=lambda item: item[1])
    return (
        f"{len(always)} client(s), such as {client!r}, late in {n} of {len(rows)} rounds, never "
        "replied to a training in time, so the model has learned nothing from them, and a selector "
        "that looks at reported losses chooses them again and again: raise deadline or "
        "report_goal, or leave them out."
    )


def _keep_best(server: ServerState, idle: bool) -> str:
    """Restore the model of which the lowest loss was reported; say so.

    The model after the last round is kept where the round before has the lowest: its own loss is
    not known. That of an ``idle`` fit has none that is finite.
    """
    if server.best is None or (server.best.round == server.rows[-1]["round"] and not idle):
        return ""
    set_state(server.net, server.best.state)
    best = server.best
    return f"The model before round {best.round} is kept, whose {best.name} was {best.loss:.4g}."


def divergence_warning(
    rows: Rows, n_clients: int, overflows: Mapping[int, Exception], noisy: bool
) -> str | None:
    """Return which loss has grown, or that the last rounds came to nothing; or None.

    Losses that are ``noisy`` are not looked at.
    """
    growth, idle = None if noisy else _growth(rows), idle_rounds(rows, n_clients, overflows)
    parts = [] if growth is None else [growth]
    if idle:
        start, end = idle[0]["round"], idle[-1]["round"]
        overflow = overflows.get(end)
        what = "client succeeded" if overflow is None else "aggregate was finite"
        cause = str(overflow or _causes(idle[-1])[0]).rstrip(".")
        parts.append(f"from round {start} to {end} no {what}, so the model did not move: {cause}")
    return f"{'; '.join(parts)}." if parts else None


def _end_above(
    server: ServerState,
    federation: Federation,
    rounds: range,
    reported: np.ndarray,
    n_passes: float,
) -> str | None:
    """Return which loss of a fit ends above that of a guess, or of an earlier model; or None.

    Losses of the same clients are compared, those with priority: of the last poll, or without one
    of their last trainings.
    """
    rows, guess, best = server.rows[rounds.start :], server.guess, server.best
    if len(rows) < _LASTING:
        return None
    is_long, name = len(rows) >= _ENOUGH, "objective"
    last = same = rows[-1][name]
    if math.isnan(last):
        name, t = "the training loss", rows[0]["round"]
        times = _MORE if guess is None and n_passes <= 1 else _MUCH_MORE
        first, same = _first_and_last(rows[0], federation, reported) if is_long else (0.0, 0.0)
        last = _mean_loss(federation, reported)
    else:
        times, t, first = _MORE, rows[0]["round"], rows[0][name]
        if best is not None and all(math.isnan(row[name]) for row in rows[:-1]):  # it was in doubt
            t, first = best.round, best.loss
    is_short = not is_long and _still_falls(server, rows)
    if guess is not None and not is_short and last > guess.loss * _margin(server, guess, is_long):
        return (
            f"the fit ends with {name} at {last:.6g}, above that of a model that predicts "
            f"{guess.prediction}, {guess.loss:.6g}."
        )
    if is_long and not _guesses_mean(server) and same > max(times * first, _LEAST):
        return f"the fit ends with {name} at {same:.4g}, above that of round {t}, {first:.4g}."
    return None


def _still_falls(server: ServerState, rows: Rows) -> bool:
    """Tell whether the model of the last round is the best, and better than that of the first."""
    last = rows[-1]["round"]
    return server.best is not None and server.best.round == last > rows[0]["round"]


def _margin(server: ServerState, guess: Guess, is_long: bool) -> float:
    """Return by what the loss of a guess is multiplied, for that of a fit to be above it."""
    if _guesses_mean(server):
        return 1.0  # the model begins there
    # Other nets than the default begin anywhere, and need some rounds.
    is_near = guess.is_best and isinstance(server.net.module_, LinearModel)
    return _MORE if is_long or is_near else _MUCH_MORE


def in_doubt(
    server: ServerState,
    federation: Federation,
    reported: np.ndarray,
    n_passes: float,
    n_rounds: int,
) -> bool:
    """Tell whether the loss may end above that of a guess or the first model, though none tells so.

    ``n_passes`` are those of a client over its rows in a round: the more of them, the less does its
    training loss say of the model that it was sent. ``n_rounds`` are those of the fit.
    """
    if server.guess is not None and _guesses_mean(server):
        bound = server.guess.loss / (2 * max(1.0, n_passes))
        return n_rounds >= _LASTING and _mean_loss(federation, reported) > bound
    if n_rounds < _ENOUGH:
        return False
    first, last = _first_and_last(server.rows[server.begun], federation, reported)
    return last > max(_MORE * first, _LEAST)


def _guesses_mean(server: ServerState) -> bool:
    """Tell whether the guess is the mean of the targets."""
    return server.guess is not None and not isinstance(server.net, NeuralNetClassifier)


def _mean_loss(federation: Federation, reported: np.ndarray) -> float:
    """Return the mean of the training losses that priority clients last reported, NaN without."""
    return _average(federation, slice(None), reported)  # without a copy: there may be very many


def _first_and_last(
    row: Mapping[str, Any], federation: Federation, reported: np.ndarray
) -> tuple[float, float]:
    """Return the mean training losses of a round's priority clients, then and last.

    Of all clients, if that does not grow: to look up clients takes memory for each of all.
    """
    last = _mean_loss(federation, reported)
    if not last > row["train_loss"]:
        return row["train_loss"], last
    first = reported_losses(row)
    clients = find_ids(federation.ids, first)
    own = clients >= 0
    losses = np.array(list(first.values()))[own]
    clients = clients[own]
    return _average(federation, clients, losses), _average(federation, clients, reported[clients])


def _average(federation: Federation, clients: np.ndarray | slice, losses: np.ndarray) -> float:
    """Return the mean of those losses that are finite, as the objective weighs them."""
    known = np.isfinite(losses) & federation.priority[clients]
    if not known.any():
        return float("nan")
    weights = federation.priority_weights[clients][known] * federation.sizes[clients][known]
    return float(weights @ losses[known] / weights.sum())


def _cause_and_way_out(
    server: ServerState, federation: Federation, config: RoundConfig, rows: Rows
) -> str:
    """Say whose loss grew first, what the rate was, and what to try that is not done already."""
    found, rate = _first_to_grow(rows), float(rows[-1]["lr"])
    client, t = found or (None, 0)
    parts = [] if found is None else [f"The loss of client {client!r} grew first, in round {t}."]
    start = float(rows[0]["lr"])
    falls = "" if rate == start else f", falling to {rate:.2g}"
    parts.append(f"The learning rate was {start:.2g}{falls}: try lr_schedule={start / 10:.2g}.")
    if config.server_optimizer is not None:
        parts.append("Or lower server_optimizer__lr.")
    standardizes, is_private = bool(standardize_layers(server.net)), bool(config.update_privacy)
    if not standardizes:
        parts.append(
            "If X is not scaled, begin the net with skfed.modules.Standardize, or put a "
            "FederatedStandardScaler before it."
        )
    elif server.begun and not is_renewable(server.net):
        parts.append("X is scaled by the rows of the first fit: fit anew to scale it by these.")
    is_scaled_y = _guesses_mean(server) or server.target_scale is not None
    may_scale_y = not (is_private or isinstance(server.net, NeuralNetClassifier))
    if may_scale_y and not is_scaled_y:
        parts.append("standardize_targets=True scales y.")
    if found is not None and standardizes and not is_private and federation.priority.sum() > 1:
        (k,) = find_ids(federation.ids, [client])
        if k >= 0 and federation.priority[k]:
            parts.append("If its rows differ from all others, leave it out of priority.")
    return " ".join(parts)


def _first_to_grow(rows: Rows) -> tuple[Any, int] | None:
    """Return the client whose training loss grew first, or was not finite, and the round."""
    first: dict[Any, float] = {}
    for row in rows:
        failed = zip(row["failed"], row["causes"], strict=True)
        broken = [client for client, cause in failed if NOT_FINITE in cause]
        losses = reported_losses(row)
        first = losses | first
        ratios = {k: loss / max(first[k], _LEAST) for k, loss in losses.items()}
        grown = max(ratios, key=lambda k: ratios[k], default=None)
        if broken or (grown is not None and ratios[grown] > _MORE):
            return (broken or [grown])[0], row["round"]
    return None


def idle_rounds(rows: Rows, n_clients: int, overflows: Collection[int]) -> Rows:
    """Return the last rounds in which no client that was asked succeeded.

    Empty, unless there are several, or all clients failed in them: the client of one small cohort
    may fail by chance.
    """
    idle: list[Mapping[str, Any]] = []
    for row in reversed(rows):
        if not row["models_down"]:  # no client was asked
            continue
        # Where there is a loss some update succeeded, though min_clients may have kept the model.
        failed = math.isnan(row["train_loss"]) and bool(_causes(row))
        if not failed and row["round"] not in overflows:
            break
        idle.insert(0, row)
    n_failed = max((len(_causes(row)) for row in idle), default=0)
    return idle if len(idle) >= _LASTING or n_failed == n_clients else []


def loses_finiteness(rows: Rows) -> bool:
    """Tell whether a client failed in some round because its loss or update was not finite."""
    return any(NOT_FINITE in cause for row in rows for cause in row["causes"])


def _causes(row: Mapping[str, Any]) -> list[str]:
    """Return the causes of failures but for no reply, or a late one: they may come next time."""
    return [cause for cause in row["causes"] if cause not in (NO_ANSWER, TOO_LATE)]


def _growth(rows: Rows) -> str | None:
    """Return which loss has grown by orders of magnitude for good, from what to what."""
    for name in _LOSSES:
        losses = [(row["round"], row.get(name, math.nan)) for row in rows]
        known = [(t, loss) for t, loss in losses if not math.isnan(loss)]
        if len(known) < 2:
            continue
        (t, first), *later = known
        bound = _TIMES * max(first, _LEAST)
        if all(loss >= bound for _, loss in later[-_LASTING:]):
            passed = next(t for t, loss in later if loss >= bound)
            now, last = later[-1]
            return (
                f"the fit has diverged: {name} was {first:.4g} in round {t}, {_TIMES:g} times that "
                f"or more in round {passed}, and {last:.4g} in round {now}"
            )
    return None

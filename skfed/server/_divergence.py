"""Warnings at the end of a fit: its rounds have diverged, or no client succeeded in time."""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skfed._federation import Federation, find_ids
from skfed.availability import Always
from skfed.exchanges import NO_ANSWER, NOT_FINITE, TOO_LATE
from skfed.nets import CLASSIFIERS, set_state, standardize_layers
from skfed.server._config import RoundConfig
from skfed.server._doubt import (
    LASTING,
    LEAST,
    Rows,
    end_above,
    first_to_grow,
    guesses_mean,
    still_falls,
)
from skfed.server._standardize import is_renewable
from skfed.server._state import ServerState
from skfed.utils._warnings import warn

# Losses of one model differ from cohort to cohort, and a rule that looks for the worst clients
# raises the cohort's loss rightly: by factors, but not by thousands, and not for long.
_TIMES = 1000.0
_FAILS = 10  # rounds in which a client fails, and never trains: the log has named it in the first
_ONE_ROW = "more than 1 value per channel"  # torch's error of BatchNorm for a batch of one row
_AGAIN = 5  # rounds in which a client is late, and never trains: it is not by chance
_LOSSES = "objective", "train_loss", "val_loss"


def warn_at_end(
    server: ServerState,
    federation: Federation,
    config: RoundConfig,
    rounds: range,
    overflows: Mapping[int, Exception],
    tested: float,
    n_passes: float,
) -> bool:
    """Warn of what went wrong up to the end of a fit's rounds; keep the best model if it diverged.

    With partial_fit each round may be the last: it warns of divergence once, and of all else after
    the last round that is planned. ``overflows`` are the errors of rounds whose aggregate was not
    finite, ``tested`` is the loss of the last round's model that was polled in doubt, or NaN, and
    ``n_passes`` how often a client passes over its rows in a round. Return whether the model is not
    that of the last round.
    """
    until, is_single = rounds.stop, len(rounds) == 1
    is_last = until >= config.n_rounds or server.stopped > 0
    # A single round, as of partial_fit, is compared with all before. Other rows may have other
    # losses, but the rate of a regressor whose guess is known is safe for them.
    rows = server.rows[0 if is_single else rounds.start :]
    noisy = config.loss_privacy is not None  # losses with noise are not looked at
    ignored = noisy or (is_single and guesses_mean(server))
    idle = idle_rounds(rows, len(federation), overflows)
    text = divergence_warning(rows, len(federation), overflows, ignored)
    diverged = (not ignored and _growth(rows) is not None) or loses_finiteness(idle)
    if text is None and not noisy:
        is_steady = n_passes <= 1 and not config.aggregator.uses_variates
        text = end_above(server, server.rows[rounds.start :], tested, is_steady)
        diverged = text is not None
    falls = not idle and still_falls(server, rows)
    kept = _keep_best(server) if is_last and diverged and not falls else ""
    if text is not None and (is_last or (b"", "diverged") not in server.logged):
        server.logged.add((b"", "diverged"))
        way_out = _cause_and_way_out(server, federation, config, rows, falls) if diverged else ""
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
    late = lateness_warning(rows, config.deadline) or always_late_warning(rows)
    for text in (late, always_failing_warning(rows), nobody_chosen_warning(rows, config)):
        if text is not None:
            warn(text)


def always_failing_warning(rows: Rows) -> str | None:
    """Return the warning that clients have failed whenever they were asked, and others not."""
    failures: dict[Any, list[str]] = {}
    for row in rows:
        for client, cause in dict(zip(row["failed"], row["causes"], strict=True)).items():
            if cause not in (NO_ANSWER, TOO_LATE) and NOT_FINITE not in cause:
                failures.setdefault(client, []).append(cause)
    trained = {client for row in rows for client in row["cohort"]}
    always = {k: causes for k, causes in failures.items() if k not in trained}
    if not (trained and always):
        return None
    client, causes = max(always.items(), key=lambda item: (_ONE_ROW in item[1][-1], len(item[1])))
    has_one_row = _ONE_ROW in causes[-1]
    if len(causes) < (2 if has_one_row else _FAILS):
        return None
    equal = " local_steps draws batches of equal size, of more rows than one if it has them."
    way_out = equal if has_one_row else ""
    return (
        f"{len(always)} client(s), such as {client!r}, never took part: it failed in {len(causes)} "
        f"of {len(rows)} rounds, in the last with {causes[-1].rstrip('.')}.{way_out}"
    )


def nobody_chosen_warning(rows: Rows, config: RoundConfig) -> str | None:
    """Return the warning that the selector has chosen nobody in any round, or None."""
    chosen = any(row["cohort"] or row["failed"] for row in rows)
    if len(rows) < LASTING or chosen or not isinstance(config.availability, Always):
        return None
    return (
        f"in none of the {len(rows)} rounds has selector={config.selector!r} chosen a client, so "
        "the model has not been trained: see its parameters."
    )


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


def _keep_best(server: ServerState) -> str:
    """Restore the model of which the lowest loss was reported; say so."""
    if server.best is None:
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


def _cause_and_way_out(
    server: ServerState, federation: Federation, config: RoundConfig, rows: Rows, falls: bool
) -> str:
    """Say whose loss grew first, what the rate was, and what to try that is not done already."""
    if falls:
        return "It still falls: train for more rounds, n_rounds, or at a higher rate."
    found, rate = first_to_grow(rows), float(rows[-1]["lr"])
    client, t = found or (None, 0)
    parts = [] if found is None else [f"The loss of client {client!r} grew first, in round {t}."]
    start = float(rows[0]["lr"])
    later = "" if rate == start else f", falling to {rate:.2g}"
    standardizes, is_private = bool(standardize_layers(server.net)), bool(config.update_privacy)
    is_scaled_y = guesses_mean(server) or server.target_scale is not None
    if not (is_scaled_y or is_private or isinstance(server.net, CLASSIFIERS)):
        parts.append("If y is not scaled, pass standardize_targets=True.")
    parts.append(f"The learning rate was {start:.2g}{later}: try lr_schedule={start / 10:.2g}.")
    if config.server_optimizer is not None:
        parts.append("Or lower server_optimizer__lr.")
    if not standardizes:
        parts.append(
            "If X is not scaled, begin the net with skfed.modules.Standardize, or put a "
            "FederatedStandardScaler before it."
        )
    elif server.begun and not is_renewable(server.net):
        parts.append("X is scaled by the rows of the first fit: fit anew to scale it by these.")
    if found is not None and standardizes and not is_private and federation.priority.sum() > 1:
        (k,) = find_ids(federation.ids, [client])
        if k >= 0 and federation.priority[k]:
            parts.append("If its rows differ from all others, leave it out of priority.")
    return " ".join(parts)


def idle_rounds(rows: Rows, n_clients: int, overflows: Collection[int]) -> Rows:
    """Return the last rounds in which no client that was asked succeeded.

    Empty, unless there are several, or all clients failed in them: the client of one small cohort
    may fail by chance.
    """
    idle: list[Mapping[str, Any]] = []
    for row in reversed(rows):
        if row["models_down"] == row.get("n_evaluated", 0):  # no client was asked to train
            continue
        # Where there is a loss some update succeeded, though min_clients may have kept the model.
        failed = math.isnan(row["train_loss"]) and bool(_causes(row))
        if not failed and row["round"] not in overflows:
            break
        idle.insert(0, row)
    n_failed = max((len(_causes(row)) for row in idle), default=0)
    return idle if len(idle) >= LASTING or n_failed == n_clients else []


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
        bound = _TIMES * max(first, LEAST)
        if all(loss >= bound for _, loss in later[-LASTING:]):
            passed = next(t for t, loss in later if loss >= bound)
            now, last = later[-1]
            return (
                f"the fit has diverged: {name} was {first:.4g} in round {t}, {_TIMES:g} times that "
                f"or more in round {passed}, and {last:.4g} in round {now}"
            )
    return None

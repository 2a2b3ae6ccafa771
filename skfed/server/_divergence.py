"""Warnings at the end of a fit: its rounds have diverged, or no client succeeded in time."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skfed._federation import Federation
from skfed.nets import set_state
from skfed.server._config import RoundConfig
from skfed.server._exchange import NO_ANSWER, NOT_FINITE, TOO_LATE
from skfed.server._state import ServerState
from skfed.utils._warnings import warn

# Losses of one model differ from cohort to cohort, and a rule that looks for the worst clients
# raises the cohort's loss rightly: by factors, but not by thousands, and not for long.
_TIMES = 1000.0
_LASTING = 3  # rounds
_AGAIN = 5  # rounds in which a client is late, and never trains: it is not by chance
_LEAST = 0.01  # a first loss below counts as this: nearly 0 is easily multiplied
_LOSSES = "objective", "train_loss", "val_loss"
_WAY_OUT = (
    "Scale X (StandardScaler) and, in a regression, y; or lower the learning "
    "rate (lr of the net, lr_schedule)."
)

Rows = Sequence[Mapping[str, Any]]


def warn_at_end(
    server: ServerState,
    federation: Federation,
    config: RoundConfig,
    rounds: range,
    overflows: Mapping[int, Exception],
) -> None:
    """Warn of what went wrong up to the end of a fit's rounds, and keep the last finite state.

    With partial_fit each round may be the last: it warns of divergence once, and of all else after
    the last round that is planned. ``overflows`` are the errors of rounds whose aggregate was not
    finite.
    """
    until = rounds.stop
    is_last = until >= config.n_rounds or server.stopped > 0
    noisy = config.loss_privacy is not None
    text = divergence_warning(server.rows, len(federation), overflows, noisy)
    if text is not None and (is_last or (b"", "diverged") not in server.logged):
        server.logged.add((b"", "diverged"))
        warn(text, ConvergenceWarning)
    if not is_last:
        return
    _keep_last_finite(server, len(federation), overflows)
    # Losses that have diverged match no client, whatever the selector's parameters.
    if text is None and (until == config.n_rounds or server.stopped):
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


def _keep_last_finite(
    server: ServerState, n_clients: int, overflows: Mapping[int, Exception]
) -> None:
    """Restore the last state from which a client could train to a finite loss.

    The aggregate of finite updates need not have a finite loss. The server sees that only in the
    next round, when all clients that it asks fail.
    """
    idle = idle_rounds(server.rows, n_clients, overflows)
    if loses_finiteness(idle) and server.last_finite is not None:
        set_state(server.net, server.last_finite)
    server.last_finite = None  # to free its memory


def divergence_warning(
    rows: Rows, n_clients: int, overflows: Mapping[int, Exception], noisy: bool
) -> str | None:
    """Return the warning about the rounds of a fit, or None; ``noisy`` losses are not looked at."""
    growth = None if noisy else _growth(rows)
    idle = idle_rounds(rows, n_clients, overflows)
    parts = [] if growth is None else [growth]
    if idle:
        start, end = idle[0]["round"], idle[-1]["round"]
        overflow = overflows.get(end)
        what = "client succeeded" if overflow is None else "aggregate was finite"
        cause = str(overflow or _causes(idle[-1])[0]).rstrip(".")
        parts.append(f"from round {start} to {end} no {what}, so the model did not move: {cause}")
    if not parts:
        return None
    diverged = growth is not None or loses_finiteness(idle)
    return f"{'; '.join(parts)}. {_WAY_OUT if diverged else ''}".strip()


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


def in_doubt(rows: Rows) -> bool:
    """Tell whether the loss of the model after the last round may not be finite."""
    if not rows:
        return False
    first, last = (row["train_loss"] for row in (rows[0], rows[-1]))
    return loses_finiteness(rows[-1:]) or last >= _TIMES * max(first, _LEAST)


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

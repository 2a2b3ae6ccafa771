"""Whether the rounds of a fit have diverged or come to nothing, and what users are told of it."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from skfed.server._poll import NO_ANSWER, NOT_FINITE

# Losses of one model differ from cohort to cohort, and a rule that looks for the worst clients
# raises the cohort's loss rightly: by factors, but not by thousands, and not for long.
_TIMES = 1000.0
_LASTING = 3  # rounds
_LEAST = 0.01  # a first loss below counts as this: nearly 0 is easily multiplied
_LOSSES = "objective", "train_loss", "val_loss"
_WAY_OUT = (
    "Scale X (StandardScaler) and, in a regression, y; or lower the learning "
    "rate (lr of the net, lr_schedule)."
)

Rows = Sequence[Mapping[str, Any]]


def told_of_divergence(
    rows: Rows, n_clients: int, overflows: Mapping[int, Exception], noisy: bool
) -> str | None:
    """Return what a user is to be told of the rounds of a fit, or None.

    Parameters
    ----------
    rows : sequence of mapping
        The rows of the history.
    n_clients : int
        Of the federation.
    overflows : mapping of int to exception
        The rounds whose aggregate was not finite, and what is said of it.
    noisy : bool
        Whether the losses are noisy, and so tell nothing.
    """
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
    """Return the rounds at the end in which all that was asked of clients came to nothing.

    None, unless there are several, or all clients failed in them: the client of one small cohort
    may fail by itself.
    """
    idle: list[Mapping[str, Any]] = []
    for row in reversed(rows):
        if not row["models_down"]:  # nobody was asked
            continue
        # A loss tells of an update that came to something, as where min_clients kept the model.
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
    """Return why clients failed in a round; who merely did not answer may do so in the next."""
    return [cause for cause in row["causes"] if cause != NO_ANSWER]


def _growth(rows: Rows) -> str | None:
    """Say which loss has grown by orders of magnitude for good, from what to what."""
    for name in _LOSSES:
        losses = [(row["round"], row.get(name, math.nan)) for row in rows]
        told = [(t, loss) for t, loss in losses if not math.isnan(loss)]
        if len(told) < 2:
            continue
        (t, first), *later = told
        bound = _TIMES * max(first, _LEAST)
        if all(loss >= bound for _, loss in later[-_LASTING:]):
            passed = next(t for t, loss in later if loss >= bound)
            now, last = later[-1]
            return (
                f"the fit has diverged: {name} was {first:.4g} in round {t}, {_TIMES:g} times that "
                f"or more in round {passed}, and {last:.4g} in round {now}"
            )
    return None

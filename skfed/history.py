"""What a round costs, and the table of all rounds, ``history_``.

Every round is charged what a real federation would pay. A model is the bytes of what trains of it;
its frozen parameters, and buffers that training leaves alone, are sent to each client with its
first model, and again if they have changed. A scalar is 8 bytes. There are two exchanges in most
rounds: the poll (the model down, a scalar up) and the training (the model up; it is not sent down
again to who was just polled). A client drawn twice gets one model and returns two. The training
loss is sent with the update and is not charged. A rule may have others: trials, sketches, and
reports before the upload; see the user guide. With ``contribution`` there are valuations, in which
priority clients evaluate models, and with ``evaluation`` clients evaluate the new one. Trials count
in what is sent, evaluated and trained, and in seconds; not in the loss columns, nor in cohort and
n_aggregated.

The table, ``history_``, has these columns, and what ``scheduled`` of a selector of one's own adds.
"X_val" means with validation data in fit, "owners" with ``clients_val`` too; "FedALIGN" and
"pow-d", with :class:`~skfed.FedAlignSelector` and :class:`~skfed.PowerOfChoice`; "devices", with
:mod:`skfed.devices`, or measured by :mod:`skfed.flower`; "evals", with ``evaluation`` (other
metrics have the three columns of the loss, and of a score the worst is the lowest); "joins", with
:class:`~skfed.availability.LateJoin`, or over Flower with ``join``.

====================== ======= ======== ============================================================
column                 unit    there    what it is
====================== ======= ======== ============================================================
``round``              index   always   t, from 0
``objective``          loss    always   F(w_t) over the priority clients in reach; NaN if not polled
``train_loss``         loss    always   the cohort's mean, weighted as its updates; NaN without any
``val_loss``           loss    X_val    of the model after the round; NaN between two validations
``val_score``          score   X_val    accuracy or R^2, likewise
``val_score_worst``    score   owners   the lowest of a priority client on its own rows; see below
``val_worst``          id      owners   whose it is; None between two validations
``eval_loss``          loss    evals    of the new model, on rows that clients keep aside; else NaN
``eval_loss_priority`` loss    evals    likewise, on those of the priority clients, by s_k
``eval_loss_worst``    loss    evals    the highest of a client on its own rows
``n_evaluated``        clients evals    who have told all metrics; 0 in rounds without an evaluation
``lr``                 rate    always   the net's own, of the first local iteration
``eps``                loss    FedALIGN eps_t; an error, 1 - accuracy, with match="accuracy"
``d``                  clients pow-d    d_t, candidates
``models_down``        models  always   sent to clients, SCAFFOLD's variates too
``models_up``          models  always   sent by clients, SCAFFOLD's variates too
``scalars_down``       scalars always   bounds, seeds of sketches; scales in a fit's first round
``scalars_up``         scalars always   losses, norms, sketches; statistics in a fit's first round
``bytes_down``         bytes   always   of models and scalars down
``bytes_up``           bytes   always   of models and scalars up
``samples_evaluated``  rows    always   evaluated, once for each model
``samples_trained``    rows    always   trained on, once for each minibatch, or used for gradients
``n_polled``           clients always   asked for their loss or error
``n_trained``          updates always   trained to the end; of a client drawn twice, two
``n_aggregated``       updates always   aggregated; of a client drawn twice, two
``n_failed``           clients always   silent, late, or failed in an exchange; each once
``polled``             ids     always   the clients asked, in that order
``cohort``             ids     always   the clients aggregated; one drawn twice is listed twice
``failed``             ids     always   the clients that failed, each once
``causes``             texts   always   why, one for each in ``failed``
``not_joined``         ids     joins    the clients that have no part in the federation yet
``seconds``            seconds devices  simulated or measured, the sum of the round's exchanges
``elapsed``            seconds devices  likewise, from the start of round 0 to the round's end
``slowest``            ids     devices  the clients with most seconds, late ones' too; see below
``select_seconds``     seconds always   wall time of the selection and its polls on this machine
``train_seconds``      seconds always   wall time of training and aggregation on this machine
``round_seconds``      seconds always   wall time of the round on this machine, validation too
====================== ======= ======== ============================================================

What each exchange cost each client is in :func:`skfed.metrics.client_exchanges`, where
there are seconds.

A client that is late counts in ``slowest`` with all the seconds that its reply would have taken; if
they are not known, as they are not over Flower, with those that it was waited for.

Clients without validation rows do not count in ``val_score_worst``, nor those whose R^2 is not
defined: of one row, or of rows whose targets are all equal. If no client is left, or an output of a
regressor is not finite, it is NaN and ``val_worst`` None. If scores are equal, ``val_worst`` is the
first of these clients in ``clients_``.

A new column is a line in this table and a value in ``make_row``, below; ``tests/test_history.py``
compares the two.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from skfed.exchanges import (
    NO_ANSWER,
    POLL,
    TOO_LATE,
    Exchange,
    Outcome,
    failed_clients,
    in_one_line,
    late_clients,
)

Row = dict[str, Any]


def make_row(
    *,
    round: int,
    exchanges: Sequence[Exchange],
    model_bytes: int,
    names: Callable[[Iterable[int]], tuple],
    cohort: np.ndarray,
    objective: float,
    train_loss: float,
    validation: Row,
    lr: float,
    scheduled: Row,
    seconds: Row,
    elapsed: float = 0.0,
    absent: np.ndarray | None = None,
) -> Row:
    """Return the row of a round.

    Parameters
    ----------
    round : int
        t.
    exchanges : sequence of Exchange
        All of the round; in round 0, also those before it.
    model_bytes : int
        Bytes of one model.
    names : callable
        Returns the ids of client indices.
    cohort : ndarray of int
        The clients whose updates were aggregated.
    objective, train_loss, lr : float
        The columns of these names.
    validation, scheduled, seconds : dict
        The columns of the validation, of the selector's schedules, and of wall times.
    elapsed : float, default=0.0
        Simulated or measured seconds before the round.
    absent : ndarray of int, default=None
        The clients that have not joined; None: clients do not join later.
    """
    return {
        "round": round,
        "objective": objective,
        "train_loss": train_loss,
        **validation,
        "lr": lr,
        **scheduled,
        **_costs(exchanges, model_bytes),
        **_participation(exchanges, cohort, names),
        **({} if absent is None else {"not_joined": names(absent)}),
        **_times(exchanges, elapsed, names),
        **seconds,
    }


def _costs(exchanges: Sequence[Exchange], model_bytes: int) -> dict[str, int]:
    """Return the columns of what the round cost."""
    costs = {
        name: sum(int(getattr(exchange, name).sum()) for exchange in exchanges)
        for name in ("models_down", "models_up", "scalars_down", "scalars_up")
    }
    n_bytes = [[int(of.sum()) for of in e.n_bytes(model_bytes)] for e in exchanges]
    for i, way in enumerate(("down", "up")):
        costs[f"bytes_{way}"] = sum(of_exchange[i] for of_exchange in n_bytes)
    for name, evaluated in (("samples_evaluated", True), ("samples_trained", False)):
        costs[name] = sum(int(e.rows.sum()) for e in exchanges if e.kind.evaluates == evaluated)
    return costs


def _participation(
    exchanges: Sequence[Exchange], cohort: np.ndarray, names: Callable[[Iterable[int]], tuple]
) -> Row:
    """Return the columns of which clients took part, and how."""
    polled = [k for e in exchanges if e.kind is POLL for k in e.clients.tolist()]
    trainings = [e for e in exchanges if e.kind.trains]
    away = (sorted(e.clients[e.outcomes == Outcome.AWAY].tolist()) for e in trainings)
    causes = dict.fromkeys(chain.from_iterable(away), NO_ANSWER)
    causes |= {k: in_one_line(cause) for k, cause in failed_clients(exchanges).items()}
    for k in late_clients(exchanges):
        causes.setdefault(k, TOO_LATE)
    return {
        "n_polled": len(polled),
        "n_trained": sum(int(np.count_nonzero(e.rows)) for e in trainings),
        "n_aggregated": len(cohort),
        "n_failed": len(causes),
        "polled": names(polled),
        "cohort": names(cohort),
        "failed": names(causes),
        "causes": tuple(causes.values()),
    }


def _times(
    exchanges: Sequence[Exchange], before: float, names: Callable[[Iterable[int]], tuple]
) -> Row:
    """Return the columns of simulated or measured time, if there is one."""
    durations = [e.duration for e in exchanges if e.duration is not None]
    if not durations:
        return {}
    seconds = sum(durations)
    return {"seconds": seconds, "elapsed": before + seconds, "slowest": names(_slowest(exchanges))}


def _slowest(exchanges: Sequence[Exchange]) -> list[int]:
    """Return the clients whose seconds in all exchanges are most, those of late ones included."""
    clients, seconds = [], []
    for exchange in exchanges:
        if exchange.seconds is not None and exchange.duration is not None:
            distinct, first = np.unique(exchange.clients, return_index=True)
            known, late = exchange.seconds[first], exchange.outcomes[first] == Outcome.LATE
            known = np.where(late & np.isnan(known), exchange.duration, known)
            timed = ~np.isnan(known)  # not of those who do not reply
            clients.append(distinct[timed])
            seconds.append(known[timed])
    distinct, position = np.unique(np.concatenate(clients), return_inverse=True)
    total = np.bincount(position, np.concatenate(seconds), minlength=len(distinct))
    return distinct[total == total.max(initial=0.0)].tolist()


#: What a row has beside the columns.
_HIDDEN = "begins", "contributions", "evaluations", "exchanges", "losses"


def to_record(row: Row) -> Row:
    """Return the columns of a row as a new dict."""
    return {name: value for name, value in row.items() if name not in _HIDDEN}


def to_frame(rows: list[Row]) -> pd.DataFrame:
    """Return the history as a table, one row a round; its columns are in the module's text."""
    frame = pd.DataFrame([to_record(row) for row in rows])
    if "val_worst" in frame:  # of whole numbers and None pandas would make floats
        frame["val_worst"] = pd.Series([row.get("val_worst") for row in rows], dtype=object)
    return frame

"""What each client gave, gained and was worth, as a table."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from skfed._estimator import BaseFederated
from skfed._federation import array_of_ids, find_ids, parse_priority
from skfed.metrics import client_scores, personalised_scores, usefulness
from skfed.metrics._scorers import federated_step, measure_of
from skfed.utils._ids import client_index
from skfed.utils._warnings import warn

_TRAINING = ("X", "y", "clients")
_UNITS = {1.0: "bytes", 1e3: "kB", 1e6: "MB", 1e9: "GB", 1e12: "TB"}
_TEST = ("X_test", "y_test", "clients_test")


def participation_report(
    model: Any,
    X: Any = None,
    y: ArrayLike | None = None,
    clients: ArrayLike | None = None,
    *,
    X_test: Any = None,
    y_test: ArrayLike | None = None,
    clients_test: ArrayLike | None = None,
) -> pd.DataFrame:
    """Return what each client gave to a federation, what it gained, and what it was worth.

    Columns whose inputs are missing are left out. In the table, "X" means with X, y and clients;
    "test", with X_test, y_test and clients_test too, where scores are on the test rows and X is
    what clients train their own models on; "contribution", of a model that was fitted with
    ``contribution=``; "clock", with :mod:`skfed.devices`, or measured over Flower; "bound", of a
    rule that polls with a bound, as :class:`~skfed.FedAlignSelector` does; "weights", where
    ``priority`` is a mapping. In the names, "accuracy" is "r2" of a regressor.

    ========================= ========= ============ =========================================
    column                    unit      there        what it is
    ========================= ========= ============ =========================================
    *gave*
    ``rounds_chosen``         rounds    always       in which the rule chose it
    ``rounds_aggregated``     rounds    always       in which its update is in the new model
    ``weight_share``          share     always       of the weight of all aggregates; see below
    ``rows_trained``          rows      always       as ``samples_trained`` of ``history_``
    ``polls_answered``        polls     always       in which it sent its loss or error
    ``bytes_down``            bytes     always       sent to it, before round 0 too
    ``bytes_up``              bytes     always       sent by it, likewise
    ``seconds``               seconds   clock        from all requests to its replies
    *worth*
    ``worth``                 loss or   contribution the sum over rounds, of
                              accuracy               ``contributions_``
    ``worth_error``           likewise  contribution its standard error
    ``worth_per_mb``          per MB    contribution over the bytes down and up, in 1e6 bytes
    *gained*
    ``rows_scored``           rows      X            on which it is scored
    ``global_accuracy``       score     X            of the model
    ``local_accuracy``        score     test         of a model that it trains alone
    ``personalised_accuracy`` score     test         of the model, fine-tuned on its rows
    ``useful``                yes or no test         whether the model is better than its own
    *status*
    ``priority``              yes or no always       whether it has priority
    ``priority_weight``       share     weights      s_k
    ``matched``               share     bound        of the rounds in which it heard a bound,
                                                     those in which it was chosen
    ``polls_silent``          polls     bound        in which it stayed silent, above the bound
    ``times_failed``          exchanges always       that ended with an error of it
    ``times_late``            exchanges always       that ended without it, or too early for it
    ========================= ========= ============ =========================================

    ``weight_share`` is the mean over all rounds of q_k, its weight in the round's aggregate, 0
    where it is not in it. The shares sum to the share of rounds that had an aggregate. Of an
    unbiased cohort, whose q_k are of updates and need not sum to 1 in a round, it is their mean all
    the same, about p_k. The median and the trimmed mean look at no weights.

    Sums of bytes are those of ``history_``: what the transformers of a Pipeline have sent is in
    their ``exchange_``. What concerns clients of an earlier fit that are not among ``clients_`` is
    in no row.

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends in one
        A fitted model; over Flower, ``strategy.model_``.
    X : array-like of shape (n_samples, ...), default=None
        Samples to score each client on, or, with test rows, for its own training. None: nothing is
        scored.
    y : array-like of shape (n_samples,) or (n_samples, n_targets), default=None
        Their labels or targets.
    clients : array-like of shape (n_samples,), default=None
        The client of each row.
    X_test, y_test, clients_test
        Likewise, rows held out. Each client then trains alone for as many rounds as the model had,
        as :func:`~skfed.metrics.usefulness` has it, and fine-tunes the model as
        :func:`~skfed.metrics.personalised_scores` does by default.

    Returns
    -------
    DataFrame
        One row a client of ``clients_``. A client without rows has NaN where it would be scored,
        and ``matched`` is NaN of who has heard no bound. ``attrs`` has ``summary``, a sentence, and
        with test rows ``clients_served``, the share of the clients that were compared to whom the
        model is useful: FedALIGN's fairness (its introduction and Figure 3).

    Raises
    ------
    TypeError
        If the model has no federated step.
    ValueError
        If some of X, y and clients are missing, or the test rows come without them; and as
        :func:`~skfed.metrics.client_scores`.

    See Also
    --------
    skfed.inspection.ParticipationDisplay : Draws it.
    skfed.metrics.client_exchanges : What each exchange has cost each client.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.inspection import participation_report
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(n_rounds=10, random_state=0)
    >>> model = model.fit(X, y, clients=["a", "b", "c"] * 50)
    >>> report = participation_report(model, X, y, ["a", "b", "c"] * 50)
    >>> report[["rounds_aggregated", "rows_trained", "weight_share"]]
            rounds_aggregated  rows_trained  weight_share
    client
    a                      10           500      0.333333
    b                      10           500      0.333333
    c                      10           500      0.333333
    >>> report.attrs["summary"]
    '3 of 3 clients gave updates, and 4.06 kB were sent.'
    """
    step = federated_step(model)
    data = _given(dict(zip(_TRAINING, (X, y, clients), strict=True)))
    test = _given(dict(zip(_TEST, (X_test, y_test, clients_test), strict=True)))
    if test and not data:
        raise ValueError(
            "X_test is given without X: pass X, y and clients too, on which clients train their "
            "own models; or pass the test rows as X, y and clients to score the model alone."
        )
    columns = _gave(step)
    columns |= _worth(step, columns)
    columns |= _gained(model, step, data, test)
    columns |= _status(step, columns)
    report = pd.DataFrame(
        {name: columns[name] for name in _order(step) if name in columns},
        index=client_index(step.clients_),
    )
    if "useful" in report:
        report.attrs["clients_served"] = float(report["useful"].astype(float).mean())
    report.attrs["summary"] = _summary(report)
    return report


def _given(arguments: dict[str, Any]) -> tuple[Any, ...]:
    """Return X, y and clients, or nothing if none of them is given."""
    missing = [name for name, value in arguments.items() if value is None]
    if missing and len(missing) < len(arguments):
        raise ValueError(f"{' and '.join(missing)} missing: pass all of {', '.join(arguments)}.")
    return () if missing else tuple(arguments.values())


def _order(step: BaseFederated) -> list[str]:
    """Return the columns in their order."""
    measure = measure_of(step)
    return [
        *("rounds_chosen", "rounds_aggregated", "weight_share", "rows_trained"),
        *("polls_answered", "bytes_down", "bytes_up", "seconds"),
        *("worth", "worth_error", "worth_per_mb"),
        *("rows_scored", f"global_{measure}", f"local_{measure}", f"personalised_{measure}"),
        *("useful", "priority", "priority_weight", "matched"),
        *("polls_silent", "times_failed", "times_late"),
    ]


def _gave(step: BaseFederated) -> dict[str, Any]:
    """Return the columns of what the server has counted, and counts for other columns."""
    past = step._server.past
    if past.n_counted < step.n_rounds_:
        warn(
            f"the report counts {past.n_counted} of the {step.n_rounds_} rounds: the others were "
            "run by an earlier version of skfed, which did not count what each client gave."
        )
    if not past.n_counted:
        return {}
    columns: dict[str, Any] = dict(past.totals(step.clients_))
    columns["weight_share"] = columns["weights"] / past.n_counted
    if "seconds" in step.history_:
        columns["seconds"] = columns["seconds_spent"]
    if not columns["rounds_bounded"].any():
        del columns["polls_silent"]
    return columns


def _worth(step: BaseFederated, gave: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the contributions, if the fit has measured them."""
    worth = getattr(step, "contributions_", None)
    if worth is None:
        return {}
    columns = {"worth": worth["value"].to_numpy(), "worth_error": worth["error"].to_numpy()}
    if "bytes_down" in gave:
        n_bytes = (gave["bytes_down"] + gave["bytes_up"]).astype(float)
        n_bytes[n_bytes == 0] = np.nan
        columns["worth_per_mb"] = columns["worth"] / (n_bytes / 1e6)
    return columns


def _gained(model: Any, step: BaseFederated, data: tuple, test: tuple) -> dict[str, Any]:
    """Return the columns of scores, on the test rows if there are any."""
    if not data:
        return {}
    measure, ids = measure_of(step), step.clients_
    scores = _aligned(client_scores(model, *(test or data)), ids)
    n_scored = scores["n_samples"].fillna(0).astype(int).to_numpy()
    columns: dict[str, Any]
    columns = {"rows_scored": n_scored, f"global_{measure}": scores[measure].to_numpy()}
    if not test:
        return columns
    tuned = _aligned(personalised_scores(model, *data, *test), ids)
    alone = _aligned(usefulness(model, *data, *test), ids)
    for name, table in (("local", alone), ("personalised", tuned)):
        columns[f"{name}_{measure}"] = table[f"{name}_{measure}"].to_numpy()
    columns["useful"] = alone["useful"].astype("boolean").array
    return columns


def _aligned(table: pd.DataFrame, ids: np.ndarray) -> pd.DataFrame:
    """Return the rows of some clients, NaN without one; ids of an index differ by type too."""
    positions = find_ids(array_of_ids(table.index.tolist()), ids)
    return table.reset_index(drop=True).reindex(np.where(positions < 0, len(table), positions))


def _status(step: BaseFederated, counted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of who has priority and, of counts, those that are to be there."""
    columns: dict[str, Any] = {"priority": step.priority_}
    if isinstance(step.priority, Mapping):
        clients, weights = parse_priority(step.priority)
        positions = find_ids(step.clients_, clients)
        known = positions >= 0
        columns["priority_weight"] = np.zeros(len(step.clients_))
        columns["priority_weight"][positions[known]] = np.array(weights, dtype=float)[known]
    if counted and counted["rounds_bounded"].any():
        n_asked = np.where(counted["rounds_bounded"] == 0, np.nan, counted["rounds_bounded"])
        columns["matched"] = counted["rounds_matched"] / n_asked
    return columns


def _summary(report: pd.DataFrame) -> str:
    """Return a sentence of what a reader asks first."""
    parts = []
    if "bytes_down" in report:
        n_gave = int((report["rounds_aggregated"] > 0).sum())
        sent = bytes_text(float(report["bytes_down"].sum() + report["bytes_up"].sum()))
        parts.append(f"{n_gave} of {len(report)} clients gave updates, and {sent} were sent")
    if "worth" in report:
        n_harmed = int((report["worth"] < 0).sum())
        were = "was" if n_harmed == 1 else "were"
        parts.append(f"{n_harmed} of {len(report)} clients {were} worth less than nothing")
    if "useful" in report:
        n_served, n_compared = int(report["useful"].sum()), int(report["useful"].count())
        parts.append(f"the model serves {n_served} of {n_compared} clients better than their own")
    if not parts:
        parts.append(f"{int(report['priority'].sum())} of {len(report)} clients have priority")
    return f"{'; '.join(parts)}."


def bytes_text(amount: float) -> str:
    """Return an amount of bytes with three digits and a unit."""
    unit = max(one for one in _UNITS if one <= max(amount, 1.0))
    return "1 byte" if amount == 1 else f"{amount / unit:.3g} {_UNITS[unit]}"

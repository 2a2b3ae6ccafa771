"""FedALIGN: free clients join when the model fits them as it fits the priority clients.

Ravi, Shomorony: Prioritized Federated Learning: Leveraging Non-Priority Clients for Targeted Model
Improvement, TMLR 2024, section 3.1 and Algorithm 1; the appendix is that of its preprint.
"""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from skfed.schedules import BaseSchedule, value_at
from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT
from skfed.utils._ids import canonical
from skfed.utils._sklearn import Interval, StrOptions

_METRIC = {"loss": "loss", "accuracy": "error"}


class FedAlignSelector(BaseSelector):
    """Take the priority clients, and each free client whose loss is within eps of theirs.

    After the warm-up, the priority clients are polled for F(w_t), the mean of their losses
    weighted by size. Each available free client then gets the model and the bound F(w_t) + eps.
    It stays silent if its loss is above the bound, and else answers with F_k(w_t). The server takes
    those with ``|F_k(w_t) - F(w_t)| < eps`` (the indicator of Theorem 1, which is strict; Algorithm
    1 prints <=). The outcome is that of Algorithm 1; the cost is lower, since a client dropped by
    the lower test sends a scalar instead of a model.

    In full participation updates are weighted by p'_k = D_k / sum of D over the cohort (equation
    16). In partial participation K priority clients are drawn with replacement by size and
    weighted by (1/K) / (1 + M), where M = sum of p_k over the matched free clients, and each of
    those by p_k / (1 + M) (equation 56). With ``priority`` as a mapping to weights s_k, the
    objective is F = sum of s_k D_k F_k / sum of s_k D_k, and client k enters with
    D_k (s_k + (1 - s_k) I_k), where I_k is its match.

    Parameters
    ----------
    eps : float, schedule or callable of the round, default=0.2
        eps_t, how far the loss of a free client may be from F, in units of the loss (of the
        error, a share in [0, 1], with ``match="accuracy"``). 0 is FedAvg on the priority clients;
        inf, without warm-up, is FedAvg on all. Corollary 2 requires that it ends at 0, as
        ``skfed.schedules.LinearDecay(0.2)`` does. A fit in which no free client ever matches
        warns, unless eps is 0.
    warmup : int or float, default=0.1
        Rounds at the start in which only priority clients train and no client is polled; a float
        in [0, 1] is a share of the rounds, rounded down.
    match : {"loss", "accuracy"}, default="loss"
        Compare losses, as the algorithm and the theory do, or accuracies over all local data, as
        the paper's practice section does. The authors' code compares the accuracy on one minibatch
        instead.
    participation : int or float, default=1.0
        The same share of the priority clients and of the free ones takes part in a round, rounded
        down, at least one priority client; an int n is the share n / (number of clients). F is
        then over the priority clients drawn. Free clients are drawn uniformly, without
        replacement (equation 55).

    See Also
    --------
    skfed.PowerOfChoice : For a model for all clients, few of which train in a round.
    skfed.diagnostics.inclusion_trace : Who matched in which round.

    Examples
    --------
    >>> from skfed import FedAlignSelector
    >>> FedAlignSelector(eps=0.4, warmup=20)
    FedAlignSelector(eps=0.4, warmup=20)
    """

    _parameter_constraints = {
        "eps": [Interval(Real, 0, None, closed="both"), BaseSchedule, callable],
        "warmup": [Interval(Integral, 0, None, closed="left"), Interval(Real, 0, 1, closed="both")],
        "match": [StrOptions({"loss", "accuracy"})],
        "participation": CLIENT_COUNT,
    }

    def __init__(self, eps=0.2, warmup=0.1, match="loss", participation=1.0):
        self.eps = eps
        self.warmup = warmup
        self.match = match
        self.participation = participation

    def scheduled(self, round: Round) -> dict[str, float]:
        """Return eps_t."""
        return {"eps": value_at(self.eps, "eps", round.index, round.n_rounds)}

    def warning_after(self, rows, free, n_rounds):
        """Return a warning if no free client ever matched in a round with eps > 0."""
        free = set(map(canonical, free))
        rows = [row for row in rows if row.get("eps", 0) > 0 and _free_polled(row, free)]
        if not rows or any(free & set(map(canonical, row["cohort"])) for row in rows):
            return None
        advice = "units of the error: raise it"
        if self.match == "loss":
            advice = (
                "units of the loss: raise it, or (of a regressor) scale y, as standardize_targets "
                "does, or (of a classifier) set match='accuracy', where eps is a share"
            )
        return (
            f"FedAlignSelector matched no free client in any of the {len(rows)} rounds in which it "
            f"polled them, so only priority clients trained.{_objective_range(rows)} eps was "
            f"{_range([row['eps'] for row in rows])}.{_poll_answers(rows, free)} eps is in "
            f"{advice}; set eps=0 if only priority clients are to train."
        )

    def _select(self, round: Round) -> Cohort:
        share = self._share(len(round.sizes))
        draws = np.flatnonzero(round.available & round.priority)
        free = np.flatnonzero(round.available & ~round.priority)
        if not len(draws):  # F is not defined; the round keeps the model
            return Cohort.mean(draws)
        if share < 1:
            draws, free = self._participants(round, share, draws, free)
        matched, objective = self._matched(round, np.unique(draws), free)
        if share < 1:
            return _sampled_cohort(round, draws, matched, objective)
        members = np.union1d(draws, matched)
        weights = np.zeros(len(round.sizes))
        weights[draws] = round.priority_weights[draws]
        weights[matched] = 1.0
        weights = (weights * round.sizes)[members]
        return Cohort(members, weights / weights.sum(), objective=objective)

    def _matched(
        self, round: Round, reached: np.ndarray, free: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Poll, except in the warm-up; return the matched clients, and F where it is a loss."""
        none = np.empty(0, dtype=np.intp)
        partial = reached[round.priority_weights[reached] < 1]
        warm = round.index < self._warmup_rounds(round.n_rounds)
        if warm or not (len(free) or len(partial)):
            return none, np.nan
        eps = self.scheduled(round)["eps"]
        metric = _METRIC[self.match]
        local = round.poll(reached, metric=metric)
        answered = np.isfinite(local)
        if not answered.any():
            return none, np.nan
        weights = (round.priority_weights * round.sizes)[reached]
        F = np.average(local[answered], weights=weights[answered])
        answers = round.poll(free, metric=metric, at_most=F + eps) if len(free) else none
        matched_free = free[np.abs(answers - F) < eps]
        matched_partial = reached[(np.abs(local - F) < eps) & np.isin(reached, partial)]
        objective = F if self.match == "loss" else np.nan
        return np.union1d(matched_free, matched_partial), objective

    def _participants(
        self, round: Round, share: float, priority: np.ndarray, free: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw priority clients with replacement by size, and free ones uniformly."""
        n_priority = max(1, int(share * round.priority.sum() + 1e-9))
        n_free = min(int(share * (~round.priority).sum() + 1e-9), len(free))
        chances = (round.priority_weights * round.sizes)[priority]
        drawn = round.rng.choice(priority, n_priority, p=chances / chances.sum())
        return drawn, round.rng.choice(free, n_free, replace=False)

    def _share(self, n_clients: int) -> float:
        if isinstance(self.participation, Integral):
            return min(int(self.participation) / n_clients, 1.0)
        return float(self.participation)

    def _warmup_rounds(self, n_rounds: int) -> int:
        if isinstance(self.warmup, Integral):
            return int(self.warmup)
        return int(self.warmup * n_rounds + 1e-9)


def _free_polled(row: Mapping[str, Any], free: set) -> list:
    """Return the free clients that a round polled, without those that failed."""
    failed = set(map(canonical, row["failed"]))
    return [k for k in map(canonical, row["polled"]) if k in free and k not in failed]


def _poll_answers(rows: list[Mapping[str, Any]], free: set) -> str:
    """Return a sentence on the free clients' answers, all of which were below F - eps."""
    # The first round of a fit is also charged for what clients sent before it.
    rows = [row for row in rows if row["round"] > 0 and not row.get("begins")]
    n_others = sum(canonical(client) not in free for row in rows for client in row["polled"])
    n_polled = sum(len(_free_polled(row, free)) for row in rows)
    # Each of the other clients sends one scalar at most.
    n_below = max(0, sum(row["scalars_up"] for row in rows) - n_others)
    if not n_polled:
        return ""
    return (
        f" After round 0, free clients were polled {n_polled} times; {n_below} answers were below "
        "F - eps, and the other polls had no answer, as from clients above F + eps."
    )


def _objective_range(rows: list[Mapping[str, Any]]) -> str:
    """Return a sentence on the range of F, if it is a loss."""
    objectives = [row["objective"] for row in rows if np.isfinite(row["objective"])]
    return f" F was {_range(objectives)}." if objectives else ""


def _range(values: list[float]) -> str:
    low, high = (f"{value:.4g}" for value in (min(values), max(values)))
    return low if low == high else f"from {low} to {high}"


def _sampled_cohort(
    round: Round, draws: np.ndarray, matched: np.ndarray, objective: float
) -> Cohort:
    """Weigh K draws and the matched clients as equation 56 does."""
    gain = (1 - round.priority_weights) * round.fractions  # added by a match; p_k if it is free
    total = 1 + gain[matched].sum()
    copies = np.bincount(draws, minlength=len(round.sizes))
    added = np.zeros(len(round.sizes))
    added[matched] = gain[matched] / np.maximum(copies[matched], 1)
    members = np.concatenate([draws, matched[copies[matched] == 0]])
    weights = added[members]
    weights[: len(draws)] += 1 / len(draws)
    return Cohort(members, weights / total, objective=objective)

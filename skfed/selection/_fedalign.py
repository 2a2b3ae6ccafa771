"""FedALIGN: free clients join when the model fits them as it fits the priority clients.

Ravi, Shomorony: Prioritized Federated Learning: Leveraging Non-Priority Clients for Targeted Model
Improvement, TMLR 2024, section 3.1 and Algorithm 1; the appendix is that of its preprint.
"""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from skfed.schedules import BaseSchedule, value_at
from skfed.selection._base import CLIENT_COUNT, BaseSelector, Cohort, Round
from skfed.utils._ids import canonical
from skfed.utils._sklearn import Interval, StrOptions

_METRIC = {"loss": "loss", "accuracy": "error"}


class FedAlignSelector(BaseSelector):
    """Take the priority clients, and each free client whose loss is within eps of theirs.

    After the warm-up, the priority clients are polled for F(w_t), the mean of their losses
    weighted by size. Each available free client then gets the model and the bound F(w_t) + eps;
    above the bound it stays silent, and of those that answer with F_k(w_t) the server takes who
    passes ``|F_k(w_t) - F(w_t)| < eps`` (the indicator of Theorem 1, which is strict; Algorithm 1
    prints <=). The outcome is that of Algorithm 1; the cost is lower, since a client dropped by
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
        inf, without warm-up, is FedAvg on all. Corollary 2 wants it to end at 0, as
        ``skfed.schedules.LinearDecay(0.2)`` does. A fit in which no free client ever matches
        warns, unless eps is 0.
    warmup : int or float, default=0.1
        Rounds at the start in which only priority clients train and nobody is polled; a float in
        [0, 1] is a share of the rounds, rounded down.
    match : {"loss", "accuracy"}, default="loss"
        Compare losses, as the algorithm and the theory have it, or accuracies over all local
        data, as the paper's practice section does. The authors' code compares the accuracy on one
        minibatch instead.
    participation : int or float, default=1.0
        The same share of the priority clients and of the free ones takes part in a round, rounded
        down, at least one priority client; an int n is the share n / (number of clients). F is
        then over the priority clients drawn. Free clients are drawn uniformly, without
        replacement (equation 55).

    Examples
    --------
    >>> from skfed import FedAlignSelector
    >>> FedAlignSelector(eps=0.4, warmup=20)
    FedAlignSelector(eps=0.4, warmup=20)
    """

    _parameter_constraints = {
        "eps": [Interval(Real, 0, None, closed="both"), BaseSchedule, callable],
        "warmup": [
            Interval(Integral, 0, None, closed="left"),
            Interval(Real, 0, 1, closed="both"),
        ],
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
        """Return that no free client ever matched, with the losses seen, if that is so.

        Not where eps is 0, which is meant to match nobody, nor for the rounds of the warm-up.
        """
        free = set(map(canonical, free))
        asked = [row for row in rows if row.get("eps", 0) > 0 and _free_polled(row, free)]
        if not asked or any(free & set(map(canonical, row["cohort"])) for row in asked):
            return None
        unit = "loss" if self.match == "loss" else "error"
        way_out = "scale y, or (of a classifier) match='accuracy', where eps is a share"
        return (
            f"FedAlignSelector matched no free client in any of the {len(asked)} rounds in which "
            f"it polled them, so that only priority clients trained.{_seen(asked)} eps was "
            f"{_span([row['eps'] for row in asked])}.{_heard(asked, free)} eps is in units of the "
            f"{unit}: raise it{', ' + way_out if unit == 'loss' else ''}; eps=0 says that only "
            "priority clients are to train."
        )

    def _select(self, round: Round) -> Cohort:
        share = self._share(len(round.sizes))
        draws = np.flatnonzero(round.available & round.priority)
        free = np.flatnonzero(round.available & ~round.priority)
        if not len(draws):  # nobody to say what the objective is: the model stays as it is
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
        """Poll, unless it is the warm-up; return who is aligned, and F where losses told it."""
        nobody = np.empty(0, dtype=np.intp)
        partly = reached[round.priority_weights[reached] < 1]
        warm = round.index < self._warmup_rounds(round.n_rounds)
        if warm or not (len(free) or len(partly)):
            return nobody, np.nan
        eps = self.scheduled(round)["eps"]
        metric = _METRIC[self.match]
        local = round.poll(reached, metric=metric)
        told = np.isfinite(local)
        if not told.any():
            return nobody, np.nan
        weights = (round.priority_weights * round.sizes)[reached]
        F = np.average(local[told], weights=weights[told])
        answers = round.poll(free, metric=metric, at_most=F + eps) if len(free) else nobody
        aligned = free[np.abs(answers - F) < eps]
        aligned_partly = reached[(np.abs(local - F) < eps) & np.isin(reached, partly)]
        objective = F if self.match == "loss" else np.nan
        return np.union1d(aligned, aligned_partly), objective

    def _participants(
        self, round: Round, share: float, priority: np.ndarray, free: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw who takes part: priority clients with replacement by size, free ones uniformly."""
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
    """Return the free clients that a round polled, but for those that failed."""
    failed = set(map(canonical, row["failed"]))
    return [k for k in map(canonical, row["polled"]) if k in free and k not in failed]


def _heard(rows: list[Mapping[str, Any]], free: set) -> str:
    """Say what free clients answered: above F + eps nothing, so what came was below F - eps."""
    # In round 0, what clients sent before it is charged too.
    rows = [row for row in rows if row["round"] > 0]
    n_others = sum(canonical(client) not in free for row in rows for client in row["polled"])
    n_asked = sum(len(_free_polled(row, free)) for row in rows)
    # Each of the other clients sends one scalar at most.
    n_below = max(0, sum(row["scalars_up"] for row in rows) - n_others)
    if not n_asked:
        return ""
    return (
        f" After round 0, {n_asked} losses of free clients were asked for; {n_below} were below "
        "F - eps, and no answer came to the others, as from clients above F + eps."
    )


def _seen(rows: list[Mapping[str, Any]]) -> str:
    """Say in which range F was, where it is a loss."""
    told = [row["objective"] for row in rows if np.isfinite(row["objective"])]
    return f" F was {_span(told)}." if told else ""


def _span(values: list[float]) -> str:
    """Return the range of some values in words."""
    low, high = (f"{value:.4g}" for value in (min(values), max(values)))
    return low if low == high else f"from {low} to {high}"


def _sampled_cohort(
    round: Round, draws: np.ndarray, matched: np.ndarray, objective: float
) -> Cohort:
    """Weigh K draws and the matched clients as equation 56 does."""
    gain = (1 - round.priority_weights) * round.fractions  # what a match adds, p_k if it is free
    total = 1 + gain[matched].sum()
    copies = np.bincount(draws, minlength=len(round.sizes))
    added = np.zeros(len(round.sizes))
    added[matched] = gain[matched] / np.maximum(copies[matched], 1)
    members = np.concatenate([draws, matched[copies[matched] == 0]])
    weights = added[members]
    weights[: len(draws)] += 1 / len(draws)
    return Cohort(members, weights / total, objective=objective)

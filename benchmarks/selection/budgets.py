"""What runs have reached within budgets of rounds, bytes and seconds, and what a target costs.

The budget of rounds is all of them, R. Those of bytes and of seconds are what tuned random
selection has spent at its last measured round up to R / 2, in the run of the same seed: sums of all
that is charged, polls, trial rounds and sketches too. A run's value is that of its last measured
round within the budget; NaN, if there is none.
"""

import pandas as pd

from benchmarks.selection.conditions import CONDITIONS
from benchmarks.selection.rules import RANDOM
from benchmarks.selection.table import CELL, FIGURES, RUN

BUDGETS = {"rounds": "round", "bytes": "bytes", "seconds": "seconds"}  # and their columns
TARGET = 0.95  # of the accuracy in which tuned random selection ends
_KEYS = [*CELL, "seed"]


def reached(results: pd.DataFrame) -> pd.DataFrame:
    """Return the figures of each run within each budget, and which of them counts.

    The column ``counts`` has the accuracy by which rules are compared: that of the priority
    clients where there are some, else that of all.
    """
    runs = results[RUN].drop_duplicates()
    limits = _limits(results)
    found = []
    for budget, column in BUDGETS.items():
        limited = results.merge(limits[[*_KEYS, f"{column}_limit"]], on=_KEYS)
        within = limited[limited[column] <= limited[f"{column}_limit"]]
        last = within.sort_values("round").groupby(RUN, as_index=False)[FIGURES].last()
        has_budget = limited.loc[limited[f"{column}_limit"].notna(), RUN].drop_duplicates()
        found.append(runs.merge(has_budget, on=RUN).merge(last, on=RUN, how="left"))
        found[-1]["budget"] = budget
    return _with_counts(pd.concat(found, ignore_index=True))


def _limits(results: pd.DataFrame) -> pd.DataFrame:
    """Return the limits of each cell and seed, by random selection's run."""
    ours = results[results["rule"] == RANDOM].sort_values("round")
    whole = ours.groupby(_KEYS)["round"].max()
    half = ours.merge(whole.rename("R"), on=_KEYS)
    spent = half[half["round"] <= half["R"] / 2].groupby(_KEYS)[["bytes", "seconds"]].last()
    limits = spent.assign(round=whole).add_suffix("_limit")
    return limits.reset_index()


def _with_counts(frame: pd.DataFrame) -> pd.DataFrame:
    prior = frame["condition"].map(lambda name: CONDITIONS[name].has_priority)
    return frame.assign(counts=frame["priority_accuracy"].where(prior, frame["mean_accuracy"]))


def costs(results: pd.DataFrame) -> pd.DataFrame:
    """Return rounds, bytes and seconds of each run until its target; NaN if it is not reached.

    The target is a share of what the run of tuned random selection of the same seed ends with.
    """
    counted = _with_counts(results).sort_values("round")
    ends = counted[counted["rule"] == RANDOM].groupby(_KEYS)["counts"].last()
    aimed = counted.merge((TARGET * ends).rename("target"), on=_KEYS)
    first = aimed[aimed["counts"] >= aimed["target"]].groupby(RUN, as_index=False)
    found = first[list(BUDGETS.values())].first()
    return results[RUN].drop_duplicates().merge(found, on=RUN, how="left")

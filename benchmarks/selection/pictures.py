"""Pictures, made from the table alone."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.selection.answer import Ranks, by_rule, paired, ranks
from benchmarks.selection.budgets import BUDGETS, reached
from benchmarks.selection.conditions import CONDITIONS
from benchmarks.selection.rules import RANDOM


def draw(results: pd.DataFrame, folder: Path) -> None:
    """Write all pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    found = reached(results)
    differences(found).savefig(folder / "differences.png", dpi=120)
    for budget in BUDGETS:
        order = ranks(found, budget)
        if order is not None:
            critical_difference(order, budget).savefig(folder / f"ranks-{budget}.png", dpi=120)


def critical_difference(order: Ranks, budget: str) -> Figure:
    """Return the diagram of mean ranks, whose bars join what Nemenyi's test does not tell apart."""
    from scikit_posthocs import critical_difference_diagram

    figure = Figure(figsize=(9, 1.5 + 0.22 * len(order.means)), layout="constrained")
    ax = figure.add_subplot()
    critical_difference_diagram(order.means, order.nemenyi, ax=ax)
    title = f"mean rank over {order.n_blocks} data sets and models, same {budget}"
    ax.set_title(title, fontsize=10)
    return figure


def differences(found: pd.DataFrame) -> Figure:
    """Return each rule's difference to random selection within the same rounds, by condition."""
    conditions = [name for name in CONDITIONS if (found["condition"] == name).any()]
    rules = [rule for rule in dict.fromkeys(found["rule"]) if rule != RANDOM]
    size = (2 + 2.6 * len(conditions), 1.2 + 0.25 * len(rules))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(conditions), sharey=True, squeeze=False)[0]
    for ax, condition in zip(axes, conditions, strict=True):
        own = found[(found["condition"] == condition) & (found["budget"] == "rounds")]
        known = by_rule(paired(own))
        for i, rule in enumerate(rules):
            if rule in known and known[rule].n_blocks:
                mean, low, high, _ = known[rule]
                ax.plot([low, high], [i, i], color="tab:blue", linewidth=1)
                ax.plot(mean, i, "o", color="tab:blue", markersize=4)
        ax.axvline(0, color="grey", linewidth=0.8)
        ax.set_title(condition, fontsize=9)
        ax.set_xlabel("points", fontsize=8)
    axes[0].set_yticks(np.arange(len(rules)), rules, fontsize=8)
    axes[0].invert_yaxis()
    return figure

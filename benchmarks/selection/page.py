"""The page: the answer first, then a decision table, and the rows that its numbers are from."""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from benchmarks.results import table as markdown
from benchmarks.selection.answer import (
    FEW,
    LEVEL,
    Difference,
    Ranks,
    apart,
    best_rule,
    better_rules,
    by_rule,
    over_blocks,
    paired,
    ranks,
    winners,
)
from benchmarks.selection.beside import of_cell, section
from benchmarks.selection.budgets import BUDGETS, TARGET, costs, reached
from benchmarks.selection.cells import TIERS
from benchmarks.selection.conditions import CONDITIONS
from benchmarks.selection.data import DATA
from benchmarks.selection.models import GRIDS
from benchmarks.selection.rules import LOWEST, RANDOM, TWIN
from benchmarks.selection.table import CELL, FIGURES
from benchmarks.selection.tuning import N_TRIALS, SEED
from benchmarks.selection.words import anchor, percent, points, setting

#: What may count, by its heading: the figure and the budget.
COUNTS = {
    "accuracy, same rounds": ("counts", "rounds"),
    "same bytes": ("counts", "bytes"),
    "same seconds": ("counts", "seconds"),
    "worst tenth, same rounds": ("worst_accuracy", "rounds"),
}
READING = f"""## How to read it

Accuracies are means over clients, which count alike, of each one's own test rows; those without
count nowhere. The worst tenth is the mean of the tenth of the clients with the lowest. Where there
are priority clients, accuracy is the mean over these. Differences are in points, to the run of
tuned random selection of the same seed, that is with the same clients and the same first model.
Conditions of the same data and model are averaged for each seed, since they are not independent: a
rule that does not look at seconds has the same runs with devices and without; only seeds that all
of these conditions have count then. Intervals, of
{LEVEL:.0%}, are a bootstrap of data and models, and of seeds in each; of less than {FEW} of these
they are Student's over their means, and of one over its seeds. The first line, and what
is called better in the table of decisions, are by wider ones, by Bonferroni's correction for the
number of rules.

*Same rounds* is all rounds, R. *Same bytes* and *same seconds* are what random selection has spent
at R / 2; everything is charged: polls, trial rounds, sketches and the statistics before round 0. A
rule's value is that of its last measured round within. Seconds are those of simulated devices. The
cost to a target is that until {TARGET:.0%} of random selection's last accuracy is measured.

Three fifths of the rows are for training, one for validation, one for test, drawn once for a data
set: by those for validation rules are tuned, those for test no choice has seen. Clients, where they
are not the data's own, and the first model are drawn anew for each seed. Clients with wrong labels
have them in training and validation; their test rows keep the right ones, and count.
"""


def page(results: pd.DataFrame, trials: pd.DataFrame) -> str:
    """Return the text of the page."""
    found = reached(results)
    lines = [
        "# Which rule of selection helps?",
        "",
        verdict(found),
        "",
        origin(results),
        "",
        *_decisions(found),
        *_overall(found),
        *_controls(found),
        *section(results, found),
        *READING.splitlines(),
        "",
        *_conditions(found),
        *_cells(results, found),
        *_tuning(trials),
    ]
    return "\n".join(lines).rstrip() + "\n"


def verdict(found: pd.DataFrame) -> str:
    """Return the first line: which rules are better than tuned random selection, if any is."""
    better = {budget: rules for budget, rules in winners(found).items() if rules}
    if not better:
        text = "**No rule is better than tuned random selection over the cells of this page.**"
    else:
        named = "; ".join(f"within the same {b}: {', '.join(rules)}" for b, rules in better.items())
        text = f"**Better than tuned random selection, over the cells of this page: {named}.**"
    return text + _under_conditions(found, {rule for rules in better.values() for rule in rules})


def _under_conditions(found: pd.DataFrame, known: set[str]) -> str:
    """Return a sentence on the rules, but those known, that are better under one condition."""
    parts = []
    for condition in _in_order(found):
        own = found[found["condition"] == condition]
        rules = sorted({rule for rules in winners(own).values() for rule in rules} - known)
        if rules:
            n = len(own[CELL].drop_duplicates())
            cells = f"{n} cell{'s' * (n > 1)}"
            parts.append(f"{CONDITIONS[condition].title} ({cells}): {', '.join(rules)}")
    return f" Better under one condition: {'; '.join(parts)}." if parts else ""


def origin(results: pd.DataFrame) -> str:
    """Return which tier the results are of, which cells are in, and with how many seeds."""
    names = cell_names(results)
    fits = [tier for tier, (cells, _) in TIERS.items() if set(names) <= {c.name for c in cells}]
    wanted = [cell.name for cell in TIERS[fits[0]][0]] if fits else names
    missing = [name for name in wanted if name not in names]
    lacking = f" Not in yet: {_listed(missing)}." if missing else ""
    return (
        f"Made by `python -m benchmarks.selection --report` from `results.csv.xz` and "
        f"`trials.csv.xz`, of {f'the {fits[0]} tier' if fits else 'no tier'}: {len(names)} of "
        f"{len(wanted)} cells (data/model/condition), {_seeds(results)}.{lacking}"
    )


def _seeds(results: pd.DataFrame) -> str:
    """Return the number of seeds, and the cells that have fewer than others."""
    counts = {name: of_cell(results, name)["seed"].nunique() for name in cell_names(results)}
    most = max(counts.values())
    fewer = [
        f"{n} in {_listed(name for name, own in counts.items() if own == n)}"
        for n in sorted(set(counts.values()) - {most}, reverse=True)
    ]
    return ", but ".join([f"{most} seeds", *([" and ".join(fewer)] if fewer else [])])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def cell_names(results: pd.DataFrame) -> list[str]:
    """Return the names of the cells."""
    cells = results[CELL].drop_duplicates()
    return ["/".join(one) for one in cells.itertuples(index=False)]


def _decisions(found: pd.DataFrame) -> Iterator[str]:
    yield "## Which rule for my federation"
    yield ""
    yield (
        "The best rule by condition and by what counts, where its interval is above zero, with "
        "Bonferroni's correction for the number of rules too; else random selection, with the rule "
        "that came closest. Each links to its row."
    )
    yield ""
    rows = []
    for condition in _in_order(found):
        own = found[found["condition"] == condition]
        cells = [_decision(condition, own, *counted) for counted in COUNTS.values()]
        rows.append([CONDITIONS[condition].title, *cells])
    yield from markdown(["", *COUNTS], rows)


def _decision(condition: str, own: pd.DataFrame, figure: str, budget: str) -> str:
    differences = paired(own[own["budget"] == budget], figure)
    found, better = by_rule(differences), better_rules(differences)
    best = best_rule({rule: found[rule] for rule in better} or found)
    if best is None:
        return "-"
    rule, difference = best
    linked = f"[{rule}](#{anchor(condition, rule)}) {points(difference)}"
    return linked if better else f"random; closest: {linked}"


def _in_order(found: pd.DataFrame) -> list[str]:
    return [name for name in CONDITIONS if (found["condition"] == name).any()]


def _overall(found: pd.DataFrame) -> Iterator[str]:
    yield "## Over all cells"
    yield ""
    yield (
        "Differences in points, and in brackets intervals. The last columns say in how many cells "
        "the interval of a rule's difference, same rounds, is above zero, and below, of those that "
        "it suits."
    )
    yield ""
    yield from _differences(found, "all")
    yield "![Differences in points by condition, same rounds](pictures/differences.png)"
    yield ""
    for budget in BUDGETS:
        order = ranks(found, budget)
        if order is not None:
            yield from _ranking(budget, order)


def _ranking(budget: str, order: Ranks) -> Iterator[str]:
    said = "differ" if order.friedman < 1 - LEVEL else "do not differ more than by chance"
    yield (
        f"Within the same {budget}, the ranks of the {len(order.means)} rules that are in all "
        f"cells without priority clients {said}, over {order.n_blocks} data sets and models "
        f"(Friedman, p = {order.friedman:.2g}). Bars join rules that Nemenyi's test does not tell "
        "apart."
    )
    yield ""
    yield f"![Mean ranks, same {budget}](pictures/ranks-{budget}.png)"
    yield ""


def _differences(found: pd.DataFrame, place: str) -> Iterator[str]:
    """Yield a table of a row a rule, each with a name to link to."""
    tables = {
        heading: by_rule(paired(found[found["budget"] == budget], figure))
        for heading, (figure, budget) in COUNTS.items()
    }
    rules = [rule for rule in dict.fromkeys(found["rule"]) if rule != RANDOM]
    first = paired(found[found["budget"] == "rounds"])
    empty = Difference(np.nan, np.nan, np.nan, 0)
    rows = [
        [
            f'<a id="{anchor(place, rule)}"></a>{rule}',
            *(points(one.get(rule, empty)) for one in tables.values()),
            *apart(first[first["rule"] == rule]),
            len(first.loc[first["rule"] == rule, CELL].drop_duplicates()),
        ]
        for rule in rules
    ]
    yield from markdown(["rule", *tables, "cells above", "below", "of"], rows)


def _controls(found: pd.DataFrame) -> Iterator[str]:
    yield "## Controls"
    yield ""
    for rule, wanted in ((TWIN, "no different from"), (LOWEST, "below")):
        own = paired(found[found["budget"] == "rounds"])
        own = own[own["rule"] == rule]
        if own.empty:
            continue
        n_above, n_below = apart(own)
        n_cells = len(own[CELL].drop_duplicates())
        yield (
            f"- *{rule}* should be {wanted} random selection: {points(over_blocks(own))} points "
            f"over all. In {n_cells - n_above - n_below} of {n_cells} cells the interval of its "
            f"difference has zero in it, in {n_below} it is below."
        )
    yield ""


def _conditions(found: pd.DataFrame) -> Iterator[str]:
    yield "## By condition"
    yield ""
    for condition in _in_order(found):
        yield f"### {condition}: {CONDITIONS[condition].title}"
        yield ""
        yield from _differences(found[found["condition"] == condition], condition)


def _cells(results: pd.DataFrame, found: pd.DataFrame) -> Iterator[str]:
    yield "## By cell"
    yield ""
    yield (
        "Accuracies in %, means over seeds ± standard errors; the cost to the target is the "
        "median over the seeds that reached it."
    )
    yield ""
    spent = costs(results)
    for names, own in found.groupby(CELL, sort=False):
        name, data = "/".join(names), DATA[names[0]]
        yield f"### {name}"
        yield ""
        redrawn = ", a data set for each seed" * data.redrawn
        R = int(of_cell(results, name)["round"].max())
        n_seeds = own["seed"].nunique()
        yield f"{data.title}{redrawn}, {setting(data)}, R = {R}, {n_seeds} seeds."
        yield ""
        yield from _cell(own, of_cell(spent, name))


def _cell(own: pd.DataFrame, spent: pd.DataFrame) -> Iterator[str]:
    """Yield the table of a cell."""
    columns = {
        **{f"accuracy, same {budget}": ("counts", budget) for budget in BUDGETS},
        "worst tenth": ("worst_accuracy", "rounds"),
        "all clients": ("mean_accuracy", "rounds"),
        "all rows": ("pooled_accuracy", "rounds"),
    }
    gains = by_rule(paired(own[own["budget"] == "rounds"]))
    runs = own.groupby(["budget", "rule"])[[*FIGURES, "counts"]]
    means, errors = runs.mean(), runs.sem()
    rows = []
    for rule in dict.fromkeys(own["rule"]):
        figures = [
            percent(*(frame[figure].get((b, rule), np.nan) for frame in (means, errors)))
            for figure, b in columns.values()
        ]
        gain = points(gains[rule]) if rule in gains else "-"
        rows.append([rule, *figures, gain, *_cost(spent[spent["rule"] == rule])])
    yield from markdown(
        [
            "rule",
            *columns,
            "to random, same rounds",
            "rounds to target",
            "MB",
            "seconds",
            "reached",
        ],
        rows,
    )


def _cost(spent: pd.DataFrame) -> list[str]:
    """Return a rule's costs to the target as text, and how many seeds reached it."""
    n_reached = int(spent["round"].notna().sum())
    if not n_reached:
        return ["-", "-", "-", f"0 of {len(spent)}"]
    middle = spent[["round", "bytes", "seconds"]].median()
    clock = "-" if np.isnan(middle["seconds"]) else f"{middle['seconds']:.0f}"
    rounds, size = f"{middle['round']:.0f}", f"{middle['bytes'] / 1e6:.3g}"
    return [rounds, size, clock, f"{n_reached} of {len(spent)}"]


def _tuning(trials: pd.DataFrame) -> Iterator[str]:
    yield "## Tuning"
    yield ""
    grids = "; ".join(f"{model}: {', '.join(map(str, grid))}" for model, grid in GRIDS.items())
    yield (
        f"Every rule has {N_TRIALS} trials in every cell, random selection too, on the clients and "
        f"the first model of seed {SEED}, by the accuracy of validation rows at the end: the rates "
        f"of the grid ({grids}), then two at the best one, of its own parameter or, without one, "
        "rates halfway to the neighbours. What was chosen:"
    )
    yield ""
    rules = list(dict.fromkeys(trials["rule"]))
    rows = []
    for cell, own in trials[trials["chosen"]].groupby(CELL, sort=False):
        choices = {one.rule: _choice(one) for one in own.itertuples()}
        rows.append(["/".join(cell), *(choices.get(rule, "-") for rule in rules)])
    yield from markdown(["cell", *rules], rows)


def _choice(one) -> str:
    """Return a trial as text."""
    own = f", {one.parameter} {one.value}" if one.value else ""
    return f"{one.lr:g}{own}"

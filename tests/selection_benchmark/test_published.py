"""Published figures, and ours beside them, on values worked out by hand and on committed ones."""

import re

import numpy as np
import pandas as pd
import pytest

from benchmarks.selection import table
from benchmarks.selection.__main__ import HERE
from benchmarks.selection.beside import NOT_RUN, rounds_to, section
from benchmarks.selection.budgets import reached
from benchmarks.selection.cells import TIERS
from benchmarks.selection.published import PUBLISHED, RULE_OF
from benchmarks.selection.rules import RULES

FULL = {cell.name: cell for cell in TIERS["full"][0]}


def run(cell, rule, seed, accuracies):
    """Return the rows of a run with these accuracies of all rows, at rounds 1, 5 and 10."""
    names = dict(zip(table.CELL, cell.split("/"), strict=True))
    frame = pd.DataFrame({"round": [1, 5, 10], "pooled_accuracy": accuracies})
    others = dict.fromkeys(("mean_accuracy", "worst_accuracy", "bytes", "seconds", "polls"), 0.5)
    return frame.assign(**names, **others, rule=rule, seed=seed, priority_accuracy=np.nan)


def rows_of(results):
    """Return the lines of the section's tables: their cells."""
    lines = "\n".join(section(results, reached(results))).splitlines()
    return [[c.strip() for c in line.strip("|").split("|")] for line in lines if line[:1] == "|"]


@pytest.mark.parametrize("one", PUBLISHED, ids=lambda one: f"{one.source}: {one.what}")
def test_published_figures_are_of_cells_and_rules_that_are_run(one):
    assert one.cells and set(one.cells) <= set(FULL)
    assert one.random in one.figures and RULE_OF[one.random] == "random"
    for name, text in one.figures.items():
        assert RULE_OF[name] in RULES and RULE_OF[name] in FULL[one.cells[0]].suitable
        value = float(re.match(r"[\d.]+", text)[0])
        assert 50 < value < 100 if one.target is None else value == int(value)
    data = {cell.split("/")[0] for cell in one.cells}
    assert len(data) == 1


def test_our_figures_are_of_all_rows_after_all_rounds_beside_the_printed_ones():
    cell = "fashion-mnist-0.3/linear/always"
    results = pd.concat(
        [
            run(cell, "random", 0, [0.5, 0.6, 0.80]),
            run(cell, "random", 1, [0.5, 0.6, 0.82]),
            run(cell, "power-of-choice", 0, [0.5, 0.5, 0.82]),
            run(cell, "power-of-choice", 1, [0.5, 0.6, 0.84]),
        ]
    )
    rows = rows_of(results)
    assert ["rand", "64.87 ± 1.97", "-", "81.0 ± 1.0", "-", NOT_RUN, "-"] in rows
    assert (
        ["pow-d, d=6", "76.47 ± 0.87", "+11.6", "83.0 ± 1.0", "+2.0 (+2.0 to +2.0)", NOT_RUN, "-"]
    ) in rows
    assert ["rand", "234", "5", NOT_RUN] in rows
    assert ["pow-d, d=6", "89", "8", NOT_RUN] in rows  # the median of 5 and 10
    assert ["HiCS-FL", "60", NOT_RUN] in rows


def test_rounds_to_an_accuracy_that_half_of_the_seeds_do_not_reach_are_none():
    cell = "fashion-mnist-0.3/linear/always"
    results = pd.concat(
        [run(cell, "random", seed, [0.5, 0.6, 0.6 + 0.1 * (seed == 0)]) for seed in range(3)]
    )
    assert rounds_to(results, 0.7) == {"random": "-"}
    assert rounds_to(results, 0.6) == {"random": "5"}


@pytest.mark.skipif(
    not (HERE / table.RESULTS).exists(), reason="needs the committed tables of results"
)
def test_figures_of_the_committed_page_are_those_of_the_committed_table():
    results, _ = table.read(HERE)
    text = (HERE / "RESULTS.md").read_text(encoding="utf-8")
    beside = text.split("## Beside published figures")[1].split("\n## ")[0]
    last = results.sort_values("round").groupby([*table.CELL, "rule", "seed"]).last()
    means = 100 * last["pooled_accuracy"].groupby([*table.CELL, "rule"]).mean()
    n_found = 0
    for one in PUBLISHED:
        if one.target is not None:
            continue
        for name, printed in one.figures.items():
            (row,) = re.findall(
                rf"^\| {re.escape(name)} \| {re.escape(printed)} \|.*", beside, re.M
            )
            ours = row.strip("| ").split(" | ")[3::2]
            for cell, figure in zip(one.cells, ours, strict=True):
                key = (*cell.split("/"), RULE_OF[name])
                n_found += key in means
                assert figure.split(" ± ")[0] == (f"{means[key]:.1f}" if key in means else NOT_RUN)
    assert n_found >= 4

"""Our figures beside those that papers print."""

from collections.abc import Iterator
from itertools import groupby

import numpy as np
import pandas as pd

from benchmarks.results import table as markdown
from benchmarks.selection.answer import by_rule, paired
from benchmarks.selection.cells import N_POINTS
from benchmarks.selection.data import DATA
from benchmarks.selection.published import PUBLISHED, RULE_OF, UNREAD, Published
from benchmarks.selection.rules import RANDOM
from benchmarks.selection.table import CELL, RUN
from benchmarks.selection.words import percent, points, setting

NOT_RUN = "not run yet"


def section(results: pd.DataFrame, found: pd.DataFrame) -> Iterator[str]:
    """Yield the section of the page."""
    yield "## Beside published figures"
    yield ""
    yield (
        "The cells are those nearest to the papers' settings, and differ as is said with each. Our "
        "accuracies are of all test rows, pooled, after all rounds: means over seeds ± standard "
        "errors. Our rounds are medians over seeds of the first round that was measured at the "
        f"accuracy, of {N_POINTS} that are measured. Rules are tuned here, and test rows are a "
        "fifth of the training images of Fashion-MNIST, whose test images are not used. The "
        "papers' ± are as printed."
    )
    yield ""
    for source, several in groupby(PUBLISHED, lambda one: one.source):
        tables = list(several)
        first = tables[0]
        data = DATA[first.cells[0].split("/")[0]]
        yield f"### {source}"
        yield ""
        yield (
            f"There: {first.setting}. Here: {data.title}, {setting(data)}, {data.n_rounds} rounds."
        )
        yield ""
        for one in tables:
            yield from _accuracies(one, found) if one.target is None else _rounds(one, results)
    yield UNREAD
    yield ""


def of_cell(frame: pd.DataFrame, cell: str) -> pd.DataFrame:
    """Return the rows of a cell."""
    return frame[(frame[CELL] == cell.split("/")).all(axis=1)]


def _accuracies(one: Published, found: pd.DataFrame) -> Iterator[str]:
    """Yield a table of accuracies, and of what each is above that of random selection."""
    header, columns = [one.what, "printed", "to random"], []
    for cell in one.cells:
        header += [_heading(cell), "to random"]
        own = of_cell(found, cell)
        columns.append(_ours(own[own["budget"] == "rounds"]))
    rows = []
    for name, text in one.figures.items():
        gain = float(text.split()[0]) - float(one.figures[one.random].split()[0])
        own = [column.get(RULE_OF[name], (NOT_RUN, "-")) for column in columns]
        printed = [text, "-" if RULE_OF[name] == RANDOM else f"{gain:+.1f}"]
        rows.append([name, *printed, *(value for pair in own for value in pair)])
    yield from markdown(header, rows)


def _heading(cell: str) -> str:
    return f"here, {cell.split('/')[1]}"


def _ours(own: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Return each rule's accuracy in a cell, and its difference to random selection's."""
    figure = "pooled_accuracy"
    gains = {rule: points(one) for rule, one in by_rule(paired(own, figure)).items()}
    runs = own.groupby("rule")[figure].agg(["mean", "sem"])
    return {
        rule: (percent(mean, error), gains.get(rule, "-"))
        for rule, mean, error in runs.itertuples()
    }


def _rounds(one: Published, results: pd.DataFrame) -> Iterator[str]:
    """Yield a table of rounds to an accuracy."""
    columns = [rounds_to(of_cell(results, cell), one.target) for cell in one.cells]
    rows = [
        [name, text.split()[0], *(column.get(RULE_OF[name], NOT_RUN) for column in columns)]
        for name, text in one.figures.items()
    ]
    yield from markdown([one.what, "printed", *map(_heading, one.cells)], rows)


def rounds_to(results: pd.DataFrame, target: float) -> dict[str, str]:
    """Return the median over seeds of each rule's first measured round at an accuracy of all rows.

    It is "-", if half of the seeds do not reach it.
    """
    runs = results[RUN].drop_duplicates()
    first = (
        results[results["pooled_accuracy"] >= target].groupby(RUN, as_index=False)["round"].min()
    )
    rounds = runs.merge(first, on=RUN, how="left").fillna({"round": np.inf})
    middle = rounds.groupby("rule")["round"].median()
    return {rule: f"{value:.0f}" if np.isfinite(value) else "-" for rule, value in middle.items()}

"""What the tables of an experiment say: its claims in each setting, and its values."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.papers.experiment import Experiment

SHORTENED = "shortened"


@dataclass(frozen=True)
class Row:
    """A claim in one setting.

    Parameters
    ----------
    section : str
        Title of the experiment.
    words, place, setting, paper, measured, verdict : str
        The cells of its line. The verdict is "holds", "holds partly", "does not hold", or
        "shortened" of an experiment with fewer rounds, seeds or rows.
    data : str
        Name of the setting whose table of results it is measured in.
    """

    section: str
    words: str
    place: str
    setting: str
    paper: str
    measured: str
    verdict: str
    data: str

    @property
    def rate(self) -> str:
        """The learning rate in the setting; empty if it names none."""
        found = re.search(r"lr=([\d.]+)", self.setting)
        return found[1] if found else ""


@dataclass(frozen=True)
class Value:
    """What a column shows of a strategy in one setting.

    Parameters
    ----------
    section, setting, strategy, heading : str
        Where it is.
    each : ndarray of shape (n_seeds,)
        Our value of each seed; NaN where a run never reached what is measured.
    paper : str
        The paper's value; empty if it gives none.
    """

    section: str
    setting: str
    strategy: str
    heading: str
    each: np.ndarray
    paper: str

    @property
    def mean(self) -> float:
        """Mean over the seeds; NaN if one is."""
        return float(self.each.mean())

    @property
    def deviation(self) -> float:
        """Standard deviation over the seeds; 0 where there is one seed."""
        return float(self.each.std(ddof=1)) if len(self.each) > 1 else 0.0


@dataclass(frozen=True)
class Findings:
    """An experiment, and all that its tables of results say."""

    experiment: Experiment
    rows: Sequence[Row]
    values: Sequence[Value]


def findings(experiment: Experiment, tables: Sequence[pd.DataFrame]) -> Findings:
    """Judge the claims of an experiment, and measure its values, by a table for each panel."""
    rows, values = [], []
    for panel, table in zip(experiment.panels, tables, strict=True):
        for claim in panel.claims:
            found = claim.check(table)
            cells = claim.words, claim.place, panel.title, claim.paper
            data = panel.setting.name
            verdict = SHORTENED if experiment.is_shortened else found.verdict
            rows.append(Row(experiment.title, *cells, found.measured, verdict, data))
        for strategy in panel.strategies:
            theirs = panel.theirs.get(strategy, {})
            for column in experiment.columns:
                place = experiment.title, panel.title, strategy, column.heading
                each = np.asarray(column.measure(table, strategy), float)
                values.append(Value(*place, each, theirs.get(column.heading, "")))
    return Findings(experiment, rows, values)

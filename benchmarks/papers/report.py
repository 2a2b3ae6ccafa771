"""Pictures, Markdown tables and RESULTS.md, made from tables of results."""

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.papers.calibration import FULL, Trial, read_trial
from benchmarks.papers.experiment import Column, Experiment
from benchmarks.papers.fedalign._headlines import PAPER as FEDALIGN
from benchmarks.papers.fedalign._help import by_setting, gains, overview
from benchmarks.papers.power_of_choice._absolute import section as absolute
from benchmarks.papers.power_of_choice._headlines import PAPER as POWER_OF_CHOICE
from benchmarks.papers.power_of_choice._images import CALIBRATED_LR
from benchmarks.papers.rows import Findings, Row, Value, findings
from benchmarks.papers.summary import RULE, calibrated_alone, screen
from benchmarks.results import table as markdown
from benchmarks.runs.tables import Tables

TITLE = """# Both papers, claim by claim

Made by `python -m benchmarks.papers --report`. FedALIGN is Ravi and Shomorony's *Prioritized
Federated Learning* (TMLR 2024, figures 3 to 6 from its preprint), power-of-choice Cho, Wang and
Joshi's *Client Selection in Federated Learning* (arXiv:2010.01243, figures and tables as in its
ICLR submission)."""
READING = """## How to read the sections

Everything is computed from the tables of results in `tables/`, without a run. `python -m
benchmarks.papers NAME --out FOLDER` runs an experiment again; `--list` shows the names, and `all`
runs all of them. `--quick` runs two rounds of one seed with a tenth of the rows, `--seeds` and
`--rounds` other numbers of them: with fewer, lines say *shortened* instead of a verdict.

A claim's figure is the mean over the seeds ± its standard error, a table's ± the standard
deviation. *In the end* is the mean over the last ten rounds: of 200 for FedALIGN, as in its code,
of 800 on Synthetic(1, 1), of 400 for power-of-choice on images, where the paper states no number.
FedALIGN's baseline on all clients has the same warm-up on the priority clients.

Seconds are those of simulated devices: fitted to the paper's random selection in *seconds a round*
(seconds.md), and drawn in *seconds to 60%*. None are this machine's.

Where the paper gives a figure, a claim *holds* when the effect is at least as strong, a standard
error allowed, and *holds partly* when there is an effect, by more than a standard error and at
least a quarter of the paper's, but a weaker one. Where it says more, less or faster, a claim holds
when the difference is on the claimed side by more than its standard error (so that one seed alone
is not enough), and partly when it is there by less. Where it says no higher, it holds unless it is
higher by more than a standard error. Where it says equal, a claim holds within a standard error,
and partly within 1 point of accuracy or 0.05. Where a claim compares rounds to a level, a baseline
that never reaches it counts with all its rounds; if the strategy never reaches it, the claim does
not hold. *Bound of our own* marks a requirement of ours, not of the paper, without a standard
error. All settings that were tried are shown: a claim that holds in no setting of a section holds
in none that we know of.
"""


def tables_of(experiment: Experiment, tables: Tables) -> list[pd.DataFrame] | None:
    """Return the results of each panel, or None while runs are missing."""
    found = []
    for panel in experiment.panels:
        table = tables.read(panel.setting)
        finished = set(zip(table["strategy"], table["seed"], strict=True))
        if not {(s, k) for s in panel.strategies for k in range(experiment.n_seeds)} <= finished:
            return None
        found.append(table[table["seed"] < experiment.n_seeds])
    return found


def draw(name: str, experiment: Experiment, found: list[pd.DataFrame], out: Path) -> None:
    """Draw an experiment's picture."""
    (out / "pictures").mkdir(parents=True, exist_ok=True)
    experiment.draw(experiment, found).savefig(out / "pictures" / f"{name}.png")


def section(name: str, found: Findings, marked: Set[Row] = frozenset()) -> Iterator[str]:
    """Yield an experiment's lines: its picture, its claims, and our values beside the paper's.

    Parameters
    ----------
    name : str
        Its name on the command line.
    found : Findings
        What its tables say.
    marked : set of Row, default=empty
        Claims that hold here, but not at the learning rate that the paper states.
    """
    experiment = found.experiment
    yield f"## {experiment.title}"
    yield ""
    yield f"`python -m benchmarks.papers {name}`, {experiment.n_seeds} seeds. {experiment.note}"
    yield ""
    yield f"![{experiment.title}](pictures/{name}.png)"
    yield ""
    if found.rows:
        headings = ["claim", "place", "setting", "paper", "measured", ""]
        yield from markdown(headings, [_claim(row, row in marked) for row in found.rows])
    yield from _values(experiment, found.values)


def report(experiments: Mapping[str, Experiment], tables: Tables, out: Path) -> dict[str, Findings]:
    """Write RESULTS.md and the pictures; return the findings of experiments that are complete.

    If none is, nothing is written.
    """
    complete = {}
    for name, experiment in experiments.items():
        found = tables_of(experiment, tables)
        if found is not None:
            draw(name, experiment, found, out)
            complete[name] = findings(experiment, found)
    if complete:
        named = [name for name, one in experiments.items() if name in complete or not one.needs]
        text = whole(complete, named, _calibrated(tables))
        (out / "RESULTS.md").write_text(text, encoding="utf-8")
    return complete


def whole(complete: Mapping[str, Findings], names: Sequence[str], trials: Sequence[Trial]) -> str:
    """Return the text of RESULTS.md.

    Parameters
    ----------
    complete : mapping of str to Findings
        Findings by the experiment's name.
    names : sequence of str
        All experiments that can be run.
    trials : sequence of Trial
        Trials of the calibration at the rate that was found.
    """
    rows = [row for found in complete.values() for row in found.rows]
    values = [value for found in complete.values() for value in found.values]
    helped = gains(values)
    not_run = [f"`{name}`" for name in names if name not in complete]
    origin = (
        f"Computed from the tables of results in this repository, of {len(complete)} of "
        f"{len(names)} experiments."
    )
    parts = [TITLE, origin, RULE]
    for paper in (FEDALIGN, POWER_OF_CHOICE):
        if any(row.section.startswith(paper.name) for row in rows):
            parts.append("\n".join(screen(paper, rows)))
        if paper is FEDALIGN and helped:
            parts.append("\n".join(overview(helped)))
    parts.append(READING)
    if helped:
        parts.append("\n".join(by_setting(helped)))
    parts.append("\n".join(absolute(values, trials)))
    marked = calibrated_alone(POWER_OF_CHOICE, rows)
    parts += ["\n".join(section(name, found, marked)) for name, found in complete.items()]
    parts += [f"## Not run\n\n{', '.join(not_run)}."] * bool(not_run)
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _calibrated(tables: Tables) -> list[Trial]:
    """Return the calibration's trials at the rate that was found, if their tables are here."""
    kept = Tables(tables.folder / "calibration")
    trials = [read_trial(kept, FULL, alpha, CALIBRATED_LR) for alpha in FULL.targets]
    return [trial for trial in trials if trial is not None]


def _claim(row: Row, marked: bool) -> list[str]:
    verdict = f"*{row.verdict}*" + f", not at lr={POWER_OF_CHOICE.rates[0]}" * marked
    return [row.words, row.place, row.setting, row.paper, row.measured, verdict]


def _values(experiment: Experiment, values: Sequence[Value]) -> Iterator[str]:
    """Yield the table of values: a line for each setting and strategy."""
    theirs = {value.heading for value in values if value.paper}
    headings = ["setting", "strategy"]
    for column in experiment.columns:
        headings += [column.heading] + ["paper"] * (column.heading in theirs)
    by_place = {(value.setting, value.strategy, value.heading): value for value in values}
    lines = []
    for setting, strategy in dict.fromkeys((value.setting, value.strategy) for value in values):
        cells = [setting, strategy]
        for column in experiment.columns:
            value = by_place[setting, strategy, column.heading]
            baseline = by_place.get((setting, experiment.baseline or "", column.heading))
            cells.append(_cell(column, value.each, baseline))
            cells += [value.paper] * (column.heading in theirs)
        lines.append(cells)
    yield from markdown(headings, lines)


def _cell(column: Column, each: np.ndarray, baseline: Value | None) -> str:
    if np.isnan(each).any():
        return f"never in {int(np.isnan(each).sum())} of {len(each)}"
    text = column.form.format(each.mean())
    if len(each) > 1:
        text += f" ± {column.form.format(each.std(ddof=1))}"
    if baseline is not None and column.with_share:
        shares = each / baseline.each
        text += "" if np.isnan(shares).any() else f" ({shares.mean():.2f})"
    return text

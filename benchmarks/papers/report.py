"""Pictures, Markdown tables and RESULTS.md, made from tables of results."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.papers.experiment import Column, Experiment, Panel
from benchmarks.papers.runner import Tables
from benchmarks.results import table as markdown

HEAD = """# Both papers, claim by claim

Made by `python -m benchmarks.papers --report` from the tables of results that `python -m
benchmarks.papers NAME` leaves. FedALIGN is Ravi and Shomorony's *Prioritized Federated Learning*
(TMLR 2024, figures 3 to 6 from its preprint), power-of-choice Cho, Wang and Joshi's *Client
Selection in Federated Learning* (arXiv:2010.01243, figures and tables as in its ICLR submission).

A claim's figure is the mean over the seeds ± its standard error, a table's ± the standard
deviation. *In the end* is the mean over the last ten rounds: of 200 for FedALIGN, as in its code,
of 800 on Synthetic(1, 1), of 400 for power-of-choice on images, where the paper states no number.
FedALIGN's baseline on all clients has the same warm-up on the priority clients.

A seed's seconds a round are its median in this simulation, where one core trains the whole cohort
while other runs, and at times other work, share the machine. In the papers clients train in
parallel, so these times are not comparable with theirs, and no claim on time has a verdict: compare
the models sent.

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


def section(name: str, experiment: Experiment, found: list[pd.DataFrame]) -> Iterator[str]:
    """Yield an experiment's lines: its picture, its claims, and our values beside the paper's."""
    yield f"## {experiment.title}"
    yield ""
    yield stamp(experiment)
    yield f"`python -m benchmarks.papers {name}`, {experiment.n_seeds} seeds. {experiment.note}"
    yield ""
    yield f"![{experiment.title}](pictures/{name}.png)"
    yield ""
    claims = list(_claims(experiment, found))
    if claims:
        yield from markdown(["claim", "place", "setting", "paper", "measured", ""], claims)
    theirs = {h for panel in experiment.panels for given in panel.theirs.values() for h in given}
    headings = ["setting", "strategy"]
    for column in experiment.columns:
        headings += [column.heading] + ["paper"] * (column.heading in theirs)
    rows = [
        [panel.title, strategy, *_cells(experiment, panel, table, strategy, theirs)]
        for panel, table in zip(experiment.panels, found, strict=True)
        for strategy in panel.strategies
    ]
    yield from markdown(headings, rows)


def report(experiments: Mapping[str, Experiment], tables: Tables, out: Path) -> list[str]:
    """Write RESULTS.md and the pictures of all complete experiments; return the names of others.

    An experiment whose tables are incomplete keeps its section of the present RESULTS.md, if this
    has the same settings and claims.

    Raises
    ------
    ValueError
        If no experiment is complete.
    """
    path = out / "RESULTS.md"
    kept = _sections(path.read_text()) if path.exists() else {}
    parts, incomplete, not_run = [HEAD], [], []
    for name, experiment in experiments.items():
        found = tables_of(experiment, tables)
        if found is None:
            incomplete.append(name)
            if stamp(experiment) in kept.get(experiment.title, ""):
                parts.append(kept[experiment.title])
            else:
                not_run.append(f"`{name}`")
            continue
        draw(name, experiment, found, out)
        parts.append("\n".join(section(name, experiment, found)))
    if len(incomplete) == len(experiments):
        raise ValueError(f"{tables.folder} has no complete experiment: run some first.")
    if not_run:
        parts.append(f"## Not run\n\n{', '.join(not_run)}.")
    path.write_text("\n\n".join(part.strip() for part in parts) + "\n")
    return incomplete


def stamp(experiment: Experiment) -> str:
    """Return a comment with a digest of an experiment's settings, claims and columns."""
    panels = [
        (
            panel.setting.describe(),
            panel.strategies,
            [(type(c).__name__, vars(c) | {"measure": 0}) for c in panel.claims],
            panel.theirs,
        )
        for panel in experiment.panels
    ]
    headings = [column.heading for column in experiment.columns]
    whole = panels, headings, experiment.n_seeds, experiment.note
    code = sha256(repr(whole).encode()).hexdigest()
    return f"<!-- {code[:16]} -->"


def _sections(text: str) -> dict[str, str]:
    """Return the sections of a RESULTS.md by title."""
    return {part.partition("\n")[0]: f"## {part}" for part in text.split("\n## ")[1:]}


def _claims(experiment: Experiment, found: Sequence[pd.DataFrame]) -> Iterator[list[str]]:
    for panel, table in zip(experiment.panels, found, strict=True):
        for claim in panel.claims:
            finding = claim.check(table)
            yield [
                claim.words,
                claim.place,
                panel.title,
                claim.paper,
                finding.measured,
                f"*{finding.verdict}*",
            ]


def _cells(
    experiment: Experiment, panel: Panel, table: pd.DataFrame, strategy: str, theirs: set[str]
) -> Iterator[str]:
    for column in experiment.columns:
        yield _cell(column, table, strategy, experiment.baseline)
        if column.heading in theirs:
            yield panel.theirs.get(strategy, {}).get(column.heading, "")


def _cell(column: Column, table: pd.DataFrame, strategy: str, baseline: str | None) -> str:
    values = column.measure(table, strategy)
    if np.isnan(values).any():
        return f"never in {int(np.isnan(values).sum())} of {len(values)}"
    text = column.form.format(values.mean())
    if len(values) > 1:
        text += f" ± {column.form.format(values.std(ddof=1))}"
    if baseline is not None and column.with_share:
        shares = values / column.measure(table, baseline)
        text += "" if np.isnan(shares).any() else f" ({shares.mean():.2f})"
    return text

"""Pictures, Markdown tables and RESULTS.md, made from tables of results."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.papers.experiment import Column, Experiment, Panel
from benchmarks.papers.fedalign._headlines import PAPER as FEDALIGN
from benchmarks.papers.fedalign._help import each, gains, overview
from benchmarks.papers.power_of_choice._absolute import section as absolute
from benchmarks.papers.power_of_choice._headlines import PAPER as POWER_OF_CHOICE
from benchmarks.papers.rows import claims_of, sections_of, values_of
from benchmarks.papers.summary import RULE, mark_rates, screen
from benchmarks.papers.tables import Tables
from benchmarks.results import table as markdown

EARLIER = "*Of an earlier run, whose table of results is not kept.*"
TITLE = """# Both papers, claim by claim

Made by `python -m benchmarks.papers --report`. FedALIGN is Ravi and Shomorony's *Prioritized
Federated Learning* (TMLR 2024, figures 3 to 6 from its preprint), power-of-choice Cho, Wang and
Joshi's *Client Selection in Federated Learning* (arXiv:2010.01243, figures and tables as in its
ICLR submission)."""
READING = """## How to read the sections

A section is computed from the tables of results in `tables/`, which `python -m benchmarks.papers
NAME` fills; one whose table is not there is of an earlier run, and says so.

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

    An experiment whose tables are incomplete keeps its section of the present RESULTS.md, marked as
    of an earlier run, if this has the same settings and claims.

    Raises
    ------
    ValueError
        If there is no section.
    """
    path = out / "RESULTS.md"
    kept = sections_of(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = {name: tables_of(experiment, tables) for name, experiment in experiments.items()}
    sections = {}
    for name, experiment in experiments.items():
        complete = found[name]
        if complete is not None:
            draw(name, experiment, complete, out)
            sections[name] = "\n".join(section(name, experiment, complete)).strip()
        elif stamp(experiment) in kept.get(experiment.title, ""):
            sections[name] = _marked(kept[experiment.title]).strip()
    if not sections:
        raise ValueError(f"{tables.folder} has no complete experiment: run some first.")
    names = [name for name, one in experiments.items() if name in sections or one.needs is None]
    path.write_text(whole(sections, names), encoding="utf-8")
    return [name for name, complete in found.items() if complete is None]


def whole(sections: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the text of RESULTS.md from the sections of experiments, by name."""
    rows, values = claims_of(sections.values()), values_of(sections.values())
    helped = gains(values, rows)
    not_run = [f"`{name}`" for name in names if name not in sections]
    parts = [TITLE, _origin(sections, not_run), RULE]
    for paper in (FEDALIGN, POWER_OF_CHOICE):
        if any(row.section.startswith(paper.name) for row in rows):
            parts.append("\n".join(screen(paper, rows)))
        if paper is FEDALIGN and helped:
            parts.append("\n".join(overview(helped)))
    parts.append(READING)
    if helped:
        parts.append("\n".join(each(helped)))
    parts.append("\n".join(absolute(values)))
    parts += [mark_rates(text, POWER_OF_CHOICE, rows) for text in sections.values()]
    parts += [f"## Not run\n\n{', '.join(not_run)}."] * bool(not_run)
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _origin(sections: Mapping[str, str], not_run: Sequence[str]) -> str:
    """Return a sentence on what the results are computed from."""
    n_earlier = sum(EARLIER in text for text in sections.values())
    return (
        f"Computed from tables of results in this repository: {len(sections) - n_earlier} of "
        f"{len(sections) + len(not_run)} experiments. Of earlier runs, whose tables are not kept: "
        f"{n_earlier}. Not run: {len(not_run)}."
    )


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


def _marked(section: str) -> str:
    """Return a section that says, below its title, that it is of an earlier run."""
    title, _, rest = section.partition("\n\n")
    return section if rest.startswith(EARLIER) else f"{title}\n\n{EARLIER}\n\n{rest}"


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

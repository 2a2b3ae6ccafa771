"""The papers at a glance: one line for each of their main claims, over all rows that judge it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.papers.rows import SHORTENED, Row
from benchmarks.results import table as markdown

HOLDS, PARTLY, FAILS = "holds", "holds partly", "does not hold"
RULE = (
    "A line is judged by rows of its sections, each a claim in one setting. It *holds* when at "
    "least three quarters of them hold, and *holds partly* when at least a quarter hold or hold "
    "partly; its figure is one of these rows, mean ± standard error over the seeds. A claim that "
    "two figures make of the same runs counts once. Bounds of our own, and claims that are "
    "not in the paper, do not count."
)


@dataclass(frozen=True)
class Headline:
    """A main claim of a paper.

    Parameters
    ----------
    words : str
        The claim, as a clause.
    rows : str
        Regular expression for its rows: searched in "place: words".
    shown : str
        Regular expression for the row whose figure is shown: in "place: words; setting".
    condition : tuple of (str, str), default=()
        In words, and as a regular expression for the rows: where it holds, if not everywhere.
    """

    words: str
    rows: str
    shown: str
    condition: tuple[str, str] | tuple[()] = ()

    def of(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that judge the claim."""
        return [row for row in rows if re.search(self.rows, f"{row.place}: {row.words}")]

    def example(self, rows: Iterable[Row]) -> Row | None:
        """Return the row whose figure is shown; None if it is not among ``rows``."""
        return next((row for row in self.of(rows) if _matches(self.shown, row)), None)


@dataclass(frozen=True)
class Paper:
    """A paper's main claims, in its own order of importance.

    Parameters
    ----------
    name : str
        As titles of sections begin.
    headlines : sequence of Headline
        Its main claims.
    rates : tuple of (str, str), default=()
        The learning rate that the paper states, and the calibrated one; empty for one verdict.
    note : str, default=""
        What a reader has to know of its table.
    """

    name: str
    headlines: Sequence[Headline]
    rates: tuple[str, str] | tuple[()] = ()
    note: str = ""

    def judged(self, rows: Iterable[Row]) -> Iterator[tuple[Headline, list[list[Row]]]]:
        """Yield each main claim with its rows: in one list, or at the stated and other rate.

        Rows without a learning rate are in the first list. Rows at rates that are neither are left
        out.
        """
        own = [row for row in rows if row.section.startswith(self.name)]
        for headline in self.headlines:
            found = _distinct(headline.of(own))
            if not self.rates:
                yield headline, [found]
                continue
            stated, calibrated = self.rates
            first = [row for row in found if row.rate in ("", stated)]
            yield headline, [first, [row for row in found if row.rate == calibrated]]


def _distinct(rows: Iterable[Row]) -> list[Row]:
    """Return the rows without those whose claim another row makes of the same runs."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        found.setdefault((row.data, row.words, row.setting, row.paper), row)
    return list(found.values())


def _matches(pattern: str, row: Row) -> bool:
    return re.search(pattern, f"{row.place}: {row.words}; {row.setting}") is not None


def overall(rows: Sequence[Row]) -> str:
    """Return one verdict for some rows, by ``RULE``.

    Raises
    ------
    ValueError
        If there are none.
    """
    if not rows:
        raise ValueError("no rows to judge.")
    verdicts = [row.verdict for row in rows]
    if set(verdicts) == {SHORTENED}:
        return SHORTENED
    if verdicts.count(HOLDS) >= 0.75 * len(rows):
        return HOLDS
    return PARTLY if len(rows) - verdicts.count(FAILS) >= 0.25 * len(rows) else FAILS


def screen(paper: Paper, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a paper's table and of its conclusion."""
    verdicts = (
        [f"at {paper.rates[0]}, as stated", f"at {paper.rates[1]}, calibrated"]
        if paper.rates
        else ["verdict"]
    )
    lines = [
        [headline.words, *_verdicts(groups), _figure(headline, groups), _links(groups)]
        for headline, groups in paper.judged(rows)
    ]
    yield from markdown([paper.name, *verdicts, "for example", "rows by figure"], lines)
    if paper.note:
        yield paper.note
        yield ""
    yield from _conclusion(paper, rows)


def first_lines(paper: Paper, rows: Sequence[Row], n: int) -> Iterator[list[str]]:
    """Yield a paper's first claims: in words, and its verdicts where it has been run."""
    texts = ("at the paper's learning rate, {}, ", "at a calibrated one, {}, ")
    rates = zip(texts, paper.rates, strict=True)
    names = [text.format(rate) for text, rate in rates] if paper.rates else [""]
    for headline, groups in list(paper.judged(rows))[:n]:
        run = [(name, group) for name, group in zip(names, groups, strict=True) if group]
        cells = [f"{name}{_verdict(group)}" for name, group in run]
        yield [f"{paper.name}: {headline.words}", "; ".join(cells) or "-"]


def calibrated_alone(paper: Paper, rows: Sequence[Row]) -> set[Row]:
    """Return the rows that hold at the calibrated rate, but not at the one that is stated."""
    if not paper.rates:
        return set()
    stated, calibrated = paper.rates
    failed = {
        (row.place, row.words, row.setting)
        for row in rows
        if row.rate == stated and row.verdict != HOLDS
    }
    return {
        row
        for row in rows
        if row.rate == calibrated
        and row.verdict == HOLDS
        and (row.place, row.words, row.setting.replace(calibrated, stated)) in failed
    }


def anchor(title: str) -> str:
    """Return the name by which GitHub links to a section."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _verdicts(groups: Sequence[Sequence[Row]]) -> list[str]:
    """Return a cell for each group of rows: its verdict and how many of them hold."""
    cells = [_verdict(rows) if rows else "-" for rows in groups]
    if len(groups) == 2 and groups[0] and not any(row.rate for row in groups[0]):
        cells[0] += ", at a rate of its own"
    elif len(groups) == 2 and all(groups) and overall(groups[1]) == HOLDS != overall(groups[0]):
        cells[1] += ", only here"
    return cells


def _verdict(rows: Sequence[Row]) -> str:
    return f"*{overall(rows)}*: {_held(rows)}"


def _figure(headline: Headline, groups: Sequence[Sequence[Row]]) -> str:
    """Return the figure of an example, at the calibrated rate where it has been run."""
    for rows in reversed(groups):
        row = headline.example(rows)
        if row is not None:
            who = row.words.partition(":")[0]
            return f"{who}: {row.measured} (paper: {row.paper}), {row.setting}"
    return ""


def _links(groups: Sequence[Sequence[Row]]) -> str:
    """Return links to the sections of some rows."""
    titles = list(dict.fromkeys(row.section for rows in groups for row in rows))
    labels = _labels(titles)
    pairs = zip(labels, titles, strict=True)
    return ", ".join(
        f"[{label.removeprefix('Figure ')}](#{anchor(title)})" for label, title in pairs
    )


def _labels(titles: Sequence[str]) -> list[str]:
    """Return short names of sections; where two are the same, the titles after the paper's name."""
    short = [_label(title) for title in titles]
    return [
        title.partition(", ")[2] if short.count(label) > 1 else label
        for label, title in zip(short, titles, strict=True)
    ]


def _label(title: str) -> str:
    """Return a short name of a section: its figure, and its learning rate."""
    name = title.partition(", ")[2].partition(":")[0]
    rate = re.search(r", lr=([\d.]+)$", title)
    return f"{name} at {rate[1]}" if rate else name


def _conclusion(paper: Paper, rows: Sequence[Row]) -> Iterator[str]:
    """Yield three sentences: what a reader may rely on, where it depends, and what not.

    A claim of which no row holds is in the last one, also if some hold partly.
    """
    clauses: dict[str, list[str]] = {HOLDS: [], PARTLY: [], FAILS: []}
    for headline, groups in paper.judged(rows):
        found = [group for group in groups if group]
        if found:
            verdicts = {overall(group) for group in found}
            verdict = verdicts.pop() if len(verdicts) == 1 else PARTLY
            if not any(row.verdict == HOLDS for group in found for row in group):
                verdict = FAILS
            clauses[verdict].append(_clause(headline, found, verdict))
    sure, depends, not_so = ("; ".join(texts) or "nothing" for texts in clauses.values())
    rates = ", at both rates where there are two" * bool(paper.rates)
    yield f"- A reader may rely on this{rates} (in brackets, in how many rows it holds): {sure}."
    yield f"- This depends on the setting, or holds in part: {depends}."
    yield f"- A reader may not rely on this, or not as far as the paper says{rates}: {not_so}."
    yield ""


def _clause(headline: Headline, groups: Sequence[Sequence[Row]], verdict: str) -> str:
    """Return a claim's words, with what they depend on."""
    rows = [row for group in groups for row in group]
    if verdict != FAILS and headline.condition:
        where, pattern = headline.condition
        inside = [row for row in rows if _matches(pattern, row)]
        outside = [row for row in rows if row not in inside]
        if inside and outside and overall(inside) == HOLDS != overall(outside):
            return f"{headline.words}: {where} ({_held(inside)}; elsewhere {_held(outside)})"
    held = "; ".join(_held(group) + f" at {group[0].rate}" * (len(groups) > 1) for group in groups)
    without = _sections_without(rows) if verdict == HOLDS else ""
    return f"{headline.words} ({held}{without})"


def _sections_without(rows: Sequence[Row]) -> str:
    """Return the sections in which no row holds, as the end of a clause."""
    titles = list(dict.fromkeys(row.section for row in rows))
    by_title = zip(_labels(titles), titles, strict=True)
    groups = [(label, [row for row in rows if row.section == title]) for label, title in by_title]
    none = [label for label, group in groups if all(row.verdict != HOLDS for row in group)]
    return "".join(f"; none in {label}" for label in none)


def _held(rows: Sequence[Row]) -> str:
    """Return how many rows hold, and hold partly."""
    n_partly = sum(row.verdict == PARTLY for row in rows)
    n_held = sum(row.verdict == HOLDS for row in rows)
    return f"{n_held} of {len(rows)}" + f", {n_partly} partly" * (n_partly > 0)

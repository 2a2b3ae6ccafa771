"""The papers at a glance: one line for each of their main claims, over all rows that judge it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.papers.rows import Row
from benchmarks.results import table as markdown

HOLDS, PARTLY, FAILS = "holds", "holds partly", "does not hold"
RULE = (
    "A line is judged by the rows of its sections, each a claim in one setting. It *holds* when at "
    "least three quarters of them hold, and *holds partly* when at least a quarter hold or hold "
    "partly; its figure is one of these rows, mean ± standard error over the seeds."
)

UNFINISHED = "\\*"  # marks claims without rows at the calibrated rate


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
        In words, and as a regular expression for the rows: where it holds, if it does not always.
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
    """

    name: str
    headlines: Sequence[Headline]
    rates: tuple[str, str] | tuple[()] = ()

    def judged(self, rows: Iterable[Row]) -> Iterator[tuple[Headline, list[list[Row]]]]:
        """Yield each main claim with its rows: in one list, or at the stated and other rate.

        Rows without a learning rate are in the first list. Rows at rates that are neither are left
        out.
        """
        own = [row for row in rows if row.section.startswith(self.name)]
        for headline in self.headlines:
            found = headline.of(own)
            if not self.rates:
                yield headline, [found]
                continue
            stated, calibrated = self.rates
            first = [row for row in found if row.rate in ("", stated)]
            yield headline, [first, [row for row in found if row.rate == calibrated]]


def _matches(pattern: str, row: Row) -> bool:
    return re.search(pattern, f"{row.place}: {row.words}; {row.setting}") is not None


def overall(rows: Sequence[Row]) -> str:
    """Return one verdict for some rows, by ``RULE``."""
    verdicts = [row.verdict for row in rows]
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
    yield from _conclusion(paper, rows)


def first_lines(paper: Paper, rows: Sequence[Row], n: int) -> Iterator[list[str]]:
    """Yield a paper's first claims: in words, and its verdicts where it has been run."""
    texts = ("at the paper's learning rate, {}, ", "at a calibrated one, {}, ")
    rates = zip(texts, paper.rates, strict=True)
    names = [text.format(rate) for text, rate in rates] if paper.rates else [""]
    for headline, groups in list(paper.judged(rows))[:n]:
        run = [(name, group) for name, group in zip(names, groups, strict=True) if group]
        cells = [f"{name}{_verdict(group)}" for name, group in run]
        yield [f"{paper.name}: {headline.words}", "; ".join(cells) or "not run yet"]


def mark_rates(section: str, paper: Paper, rows: Iterable[Row]) -> str:
    """Return a section whose claims say where they hold at the calibrated rate alone."""
    stated, calibrated = paper.rates or ("", "")
    elsewhere = {
        (row.place, row.words, row.setting): row.verdict for row in rows if row.rate == stated
    }
    mark = f", not at lr={stated}"
    lines = section.replace(mark, "").splitlines()
    for i, line in enumerate(lines):
        if not line.endswith(f"| *{HOLDS}* |"):
            continue
        words, place, setting = (cell.strip() for cell in line.split("|")[1:4])
        same = setting.replace(f"lr={calibrated}", f"lr={stated}")
        if same != setting and elsewhere.get((place, words, same), HOLDS) != HOLDS:
            lines[i] = line.removesuffix(" |") + f"{mark} |"
    return "\n".join(lines)


def anchor(title: str) -> str:
    """Return the name by which GitHub links to a section."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _verdicts(groups: Sequence[Sequence[Row]]) -> list[str]:
    """Return a cell for each group of rows: its verdict and how many of them hold."""
    cells = [_verdict(rows) for rows in groups]
    if len(groups) == 2 and groups[0] and groups[1]:
        stated, calibrated = map(overall, groups)
        if calibrated == HOLDS != stated:
            cells[1] += ", only here"
    if len(groups) == 2 and groups[0] and not any(row.rate for row in groups[0]):
        cells[1] = "only as stated"
    return cells


def _verdict(rows: Sequence[Row]) -> str:
    if not rows:
        return "not run yet"
    n_partly = sum(row.verdict == PARTLY for row in rows)
    return f"*{overall(rows)}*: {_held(rows)}" + f", {n_partly} partly" * (n_partly > 0)


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
    titles = dict.fromkeys(row.section for rows in groups for row in rows)
    return ", ".join(f"[{_label(title)}](#{anchor(title)})" for title in titles)


def _label(title: str) -> str:
    """Return a short name of a section: its figure's number, and its learning rate."""
    name = title.partition(", ")[2].partition(":")[0].removeprefix("Figure ")
    rate = re.search(r", lr=([\d.]+)$", title)
    return f"{name} at {rate[1]}" if rate else name


def _conclusion(paper: Paper, rows: Sequence[Row]) -> Iterator[str]:
    """Yield three sentences: what a reader may rely on, where it depends, and what not."""
    clauses: dict[str, list[str]] = {HOLDS: [], PARTLY: [], FAILS: []}
    for headline, groups in paper.judged(rows):
        found = {overall(group) for group in groups if group}
        if found:
            verdict = found.pop() if len(found) == 1 else PARTLY
            clauses[verdict].append(_clause(headline, groups, verdict))
    sure, depends, not_so = ("; ".join(texts) or "nothing" for texts in clauses.values())
    rates = ", at both rates where there are two" * bool(paper.rates)
    yield f"- A reader may rely on this{rates} (in brackets, in how many rows it holds): {sure}."
    yield f"- This depends: {depends}."
    yield f"- A reader may not rely on this{rates}: {not_so}."
    yield ""
    if UNFINISHED in sure + depends + not_so and paper.rates:
        yield f"{UNFINISHED} So far run at {paper.rates[0]} alone."
        yield ""


def _clause(headline: Headline, groups: Sequence[Sequence[Row]], verdict: str) -> str:
    """Return a claim's words, with what they depend on."""
    words = headline.words
    if len(groups) == 2 and not groups[1] and any(row.rate for row in groups[0]):
        words += UNFINISHED
    rows = [row for group in groups for row in group]
    if verdict == PARTLY and headline.condition:
        where, pattern = headline.condition
        inside = [row for row in rows if _matches(pattern, row)]
        outside = [row for row in rows if row not in inside]
        if inside and outside and overall(inside) == HOLDS != overall(outside):
            return f"{words}: {where} ({_held(inside)}, elsewhere {_held(outside)})"
    if len(groups) == 2 and all(groups):
        rates = (f"{_held(group)} at {group[-1].rate}" for group in groups)
        return f"{words} ({', '.join(rates)})"
    return f"{words} ({_held(rows)})"


def _held(rows: Sequence[Row]) -> str:
    return f"{sum(row.verdict == HOLDS for row in rows)} of {len(rows)}"

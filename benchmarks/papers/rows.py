"""The tables of RESULTS.md's sections, read back: sections of earlier runs have nothing else."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import nan


@dataclass(frozen=True)
class Row:
    """A claim in one setting, as a row of a section.

    Parameters
    ----------
    section : str
        Title of the section.
    words, place, setting, paper, measured, verdict : str
        The cells. The verdict is "holds", "holds partly" or "does not hold".
    """

    section: str
    words: str
    place: str
    setting: str
    paper: str
    measured: str
    verdict: str

    @property
    def rate(self) -> str:
        """The learning rate in the setting; empty if it names none."""
        found = re.search(r"lr=([\d.]+)", self.setting)
        return found[1] if found else ""


@dataclass(frozen=True)
class Value:
    """A cell of a section's table of values.

    Parameters
    ----------
    section, setting, strategy, heading : str
        Where it is.
    mean, deviation : float
        Mean over the seeds and standard deviation; 0 where there is one seed. NaN if some seeds
        never reached what is measured.
    paper : str
        The paper's value; empty if it gives none.
    """

    section: str
    setting: str
    strategy: str
    heading: str
    mean: float
    deviation: float
    paper: str


NUMBERS = re.compile(r"^([+-]?[\d.]+)(?: points)?(?: ± ([\d.]+))?")


def number(cell: str) -> tuple[float, float] | None:
    """Return a cell's mean and what follows its ±, or None if it has no number."""
    found = NUMBERS.match(cell)
    return (float(found[1]), float(found[2] or 0)) if found else None


def sections_of(text: str) -> dict[str, str]:
    """Return the sections of a RESULTS.md by title."""
    return {part.partition("\n")[0]: f"## {part}" for part in text.split("\n## ")[1:]}


def claims_of(sections: Iterable[str]) -> list[Row]:
    """Return the claims' rows of some sections."""
    found = []
    for section in sections:
        for headings, cells in table_rows(section):
            if headings[0] == "claim":
                verdict = re.match(r"\*(.+?)\*", cells[-1])
                assert verdict is not None, cells
                found.append(Row(_title(section), *cells[:-1], verdict[1]))
    return found


def values_of(sections: Iterable[str]) -> list[Value]:
    """Return the numbers in some sections' tables of values."""
    found = []
    for section in sections:
        for headings, cells in table_rows(section):
            if headings[:2] != ["setting", "strategy"]:
                continue
            after = [*headings[1:], ""]
            for i, (heading, cell) in enumerate(zip(headings, cells, strict=True)):
                parsed = (nan, nan) if cell.startswith("never") else number(cell)
                if i > 1 and heading != "paper" and parsed:
                    paper = cells[i + 1] if after[i] == "paper" else ""
                    found.append(Value(_title(section), *cells[:2], heading, *parsed, paper))
    return found


def _title(section: str) -> str:
    return section.partition("\n")[0].removeprefix("## ")


def table_rows(section: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the headings and the cells of each row of a section's tables."""
    headings: list[str] = []
    for line in section.splitlines():
        if not line.startswith("|"):
            headings = []
        elif not headings:
            headings = _cells(line)
        elif not set(line) <= set("|- "):
            yield headings, _cells(line)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]

"""The four most important lines of RESULTS.md, as README.md shows them."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers.fedalign._headlines import PAPER as FEDALIGN
from benchmarks.papers.power_of_choice._headlines import PAPER as POWER_OF_CHOICE
from benchmarks.papers.rows import Row
from benchmarks.papers.summary import first_lines
from benchmarks.results import table as markdown

README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- written by python -m benchmarks.papers --report -->\n"
END = "<!-- end of what it writes -->\n"


def refreshed(readme: str, rows: Sequence[Row]) -> str:
    """Return the text of README.md with the lines that belong to the rows of RESULTS.md.

    Raises
    ------
    ValueError
        If it has no place for them.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md needs the lines {BEGIN.strip()} and {END.strip()}.")
    lines = [
        cells for paper in (FEDALIGN, POWER_OF_CHOICE) for cells in first_lines(paper, rows, 2)
    ]
    table = "\n".join(
        markdown(["claim of the paper", "in these experiments: comparisons that hold"], lines)
    )
    return f"{before}{begin}{table}{end}{after}"

"""Directives for tables of benchmarks, with the commands that fill them."""

import re
from pathlib import Path

from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "papers" / "RESULTS.md"
SELECTION = BENCHMARKS / "selection" / "RESULTS.md"


def table_of(experiment: str, setting: str, columns: list[str]) -> list[list[str]]:
    """Return some columns of an experiment's table, for one setting; the first row is the header.

    Raises
    ------
    LookupError
        If there is no such experiment, setting or column.
    """
    text = RESULTS.read_text(encoding="utf-8")
    section = re.search(
        rf"^`python -m benchmarks.papers {experiment}`.*?(?=^## |\Z)", text, re.M | re.S
    )
    if section is None:
        raise LookupError(f"RESULTS.md has no experiment {experiment!r}.")
    cells = cells_of(section[0])
    start = next(i for i, row in enumerate(cells) if row[0] == "setting")
    header, rows = cells[start], [row for row in cells[start + 2 :] if row[0] == setting]
    missing = [column for column in columns if column not in header]
    if missing or not rows:
        raise LookupError(f"{experiment}: RESULTS.md has no {missing or setting!r}.")
    at = [header.index(column) for column in columns]
    return [columns, *([row[i] for i in at] for row in rows)]


def cells_of(text: str) -> list[list[str]]:
    """Return the cells of the lines of a Markdown table, and of the line below its header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def decisions() -> tuple[str, list[list[str]]]:
    """Return the first line of the benchmark of selection, and its table of decisions."""
    text = SELECTION.read_text(encoding="utf-8")
    verdict = re.search(r"^\*\*(.+)\*\*$", text, re.M)
    section = re.search(r"^## Which rule for my federation$.*?(?=^## )", text, re.M | re.S)
    if verdict is None or section is None:
        raise LookupError("RESULTS.md of the benchmark of selection has no table of decisions.")
    header, _, *rows = cells_of(re.sub(r"\[([^]]+)\]\(#[^)]+\)", r"\1", section[0]))
    return verdict[1], [header, *rows]


def list_table(title: str, rows: list[list[str]]) -> str:
    """Return a table whose first row is the header."""
    lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
    for row in rows:
        texts = ["\\-" if cell == "-" else cell for cell in row]  # else it would be a list
        lines += [f"   {'* -' if i == 0 else '  -'} {text}" for i, text in enumerate(texts)]
    return "\n".join(lines)


class Decisions(SphinxDirective):
    """``.. selection-decisions::``, which rules are better than random selection, and where."""

    def run(self):
        """Return the sentence and the table."""
        self.env.note_dependency(str(SELECTION))
        try:
            verdict, rows = decisions()
        except LookupError as error:
            raise self.error(str(error)) from error
        table = list_table("``python -m benchmarks.selection``: differences in points", rows)
        return self.parse_text_to_nodes(f"{verdict}\n\n{table}")


class Results(SphinxDirective):
    """``.. results:: EXPERIMENT`` with ``:setting:`` and ``:columns:``, separated by semicolons."""

    required_arguments = 1
    option_spec = {"setting": directives.unchanged, "columns": directives.unchanged}

    def run(self):
        """Return the table."""
        self.env.note_dependency(str(RESULTS))
        (experiment,) = self.arguments
        columns = [column.strip() for column in self.options["columns"].split(";")]
        try:
            rows = table_of(experiment, self.options["setting"], columns)
        except LookupError as error:
            raise self.error(str(error)) from error
        title = f"``python -m benchmarks.papers {experiment}``: {self.options['setting']}"
        return self.parse_text_to_nodes(list_table(title, rows))


def setup(app):
    """Register the directives."""
    app.add_directive("results", Results)
    app.add_directive("selection-decisions", Decisions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""A directive for tables of benchmarks/papers/RESULTS.md, with the command that fills them."""

import re
from pathlib import Path

from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

RESULTS = Path(__file__).parents[2] / "benchmarks" / "papers" / "RESULTS.md"


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
    lines = [line for line in section[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    start = next(i for i, row in enumerate(cells) if row[0] == "setting")
    header, rows = cells[start], [row for row in cells[start + 2 :] if row[0] == setting]
    missing = [column for column in columns if column not in header]
    if missing or not rows:
        raise LookupError(f"{experiment}: RESULTS.md has no {missing or setting!r}.")
    at = [header.index(column) for column in columns]
    return [columns, *([row[i] for i in at] for row in rows)]


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
        lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
        for row in rows:
            lines += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(row)]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app):
    """Register the directive."""
    app.add_directive("results", Results)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

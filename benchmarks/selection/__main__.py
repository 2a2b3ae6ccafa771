"""Compare rules of selection: ``python -m benchmarks.selection``, or ``--list``."""

import argparse
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from benchmarks.runs.tables import Tables
from benchmarks.selection import table
from benchmarks.selection.campaign import n_runs, run_cells
from benchmarks.selection.cells import TIERS, Cell, named_cells, with_rules
from benchmarks.selection.conditions import CONDITIONS
from benchmarks.selection.data import DATA
from benchmarks.selection.estimate import announce
from benchmarks.selection.models import MODELS
from benchmarks.selection.page import page
from benchmarks.selection.pictures import draw
from benchmarks.selection.rules import LOWEST, RANDOM, RULES, Rule, outside_rule

HERE = Path(__file__).resolve().parent
QUICK = [
    Cell("digits", "linear", "devices", rounds=8),
    Cell("synthetic-1-1", "linear", "always", rounds=8),
]
QUICK_RULES = [RANDOM, LOWEST, "power-of-choice", "Oort"]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection", description=__doc__)
    parser.add_argument("--tier", choices=TIERS, default="small", help="cells and seeds to run")
    parser.add_argument("--quick", action="store_true", help="four rules, two cells, eight rounds")
    parser.add_argument(
        "--cells", nargs="+", help="cells instead of a tier's: data/model/condition, * for all"
    )
    parser.add_argument("--rules", nargs="+", help="rules beside random (default: all)")
    parser.add_argument(
        "--rule", action="append", default=[], help="a rule of your own: mypackage:MySelector()"
    )
    parser.add_argument("--seeds", type=int, help="reported runs of a rule (default: the tier's)")
    parser.add_argument("--jobs", type=int, help="runs at the same time (default: one a core)")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for runs, tables, page and pictures (default: benchmarks/selection; with "
        "--quick, --rules, --rule or --seeds benchmarks/selection/shortened)",
    )
    parser.add_argument("--report", action="store_true", help="page and pictures from the tables")
    parser.add_argument("--list", action="store_true", help="list cells and rules")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run what the options say."""
    given = parse(arguments)
    if given.list:
        return _list()
    shortened = given.quick or given.rules or given.rule or given.seeds
    out = given.out or (HERE / "shortened" if shortened else HERE)
    if not given.report:
        try:
            rules, cells, n_seeds = chosen(given)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        tables = Tables(out / "runs")
        print(announce(tables, cells, n_seeds, given.jobs), flush=True)
        run_cells(tables, cells, range(n_seeds), given.jobs)
        others = [] if given.quick else stored(tables, rules)
        by_name = {cell.name: cell for cell in [*others, *cells]}
        found = table.collect(tables, list(by_name.values()))
        table.write(out, *(found if given.quick else table.with_others(out, *found)))
    return report(out)


def chosen(given: argparse.Namespace) -> tuple[Mapping[str, Rule], list[Cell], int]:
    """Return the rules, the cells and the number of seeds that the options ask for."""
    names = QUICK_RULES if given.quick and not given.rules else given.rules
    unknown = [name for name in names or () if name not in RULES]
    if unknown:
        raise ValueError(f"unknown rules: {', '.join(unknown)}; --list shows them.")
    rules = RULES if not names else {n: RULES[n] for n in RULES if n in (RANDOM, *names)}
    rules = {**rules, **dict(outside_rule(text) for text in given.rule)}
    cells, n_seeds = (QUICK, 2) if given.quick else TIERS[given.tier]
    cells = named_cells(given.cells) if given.cells else cells
    lacking = {c.name: c.of_data.missing() for c in cells if c.of_data.missing is not None}
    for name, what in lacking.items():
        if what:
            print(f"{name} is left out: it needs {what}.", file=sys.stderr)
    cells = [cell for cell in cells if not lacking.get(cell.name)]
    return rules, with_rules(cells, rules), given.seeds or n_seeds


def stored(tables: Tables, rules: Mapping[str, Rule]) -> list[Cell]:
    """Return the cells that the tables have, whichever were asked for now."""
    known = (Cell(*names, rules=rules) for names in product(DATA, MODELS, CONDITIONS))
    return [cell for cell in known if (tables.folder / cell.name).exists()]


def report(out: Path) -> int:
    """Write the page and the pictures from the tables of a folder."""
    try:
        results, trials = table.read(out)
    except FileNotFoundError as error:
        print(f"{error.filename} is missing: run something first.", file=sys.stderr)
        return 1
    text = page(results, trials)
    (out / "RESULTS.md").write_text(text, encoding="utf-8")
    draw(results, out / "pictures")
    print(text.split("\n## ")[0])
    return 0


def _list() -> int:
    """Print the cells of the tiers with their numbers of runs, and the rules."""
    for tier, (cells, n_seeds) in TIERS.items():
        total = sum(n_runs(cell, n_seeds) for cell in cells)
        print(f"{tier}: {n_seeds} seeds, {total} runs")
        for cell in cells:
            print(f"  {cell.name:40} {n_runs(cell, n_seeds):4} runs of {cell.n_rounds} rounds")
    print("rules:")
    for name, rule in RULES.items():
        own = "" if rule.parameter is None else f"{rule.parameter}: {rule.values}"
        print(f"  {name:26} {own}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

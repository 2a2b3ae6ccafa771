"""Rerun a figure or table of the papers: ``python -m benchmarks.papers NAME``, or ``--list``."""

import argparse
import sys
from pathlib import Path

from benchmarks.papers.catalogue import experiments, shortened
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.readme import README, refreshed
from benchmarks.papers.report import draw, report, section, tables_of
from benchmarks.papers.rows import findings
from benchmarks.runs.runner import run_missing
from benchmarks.runs.tables import Tables

HERE = Path(__file__).resolve().parent


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    parser.add_argument("names", nargs="*", help="experiments, or 'all'")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument(
        "--seeds",
        type=_positive,
        help="runs of each strategy (default: those of its configuration)",
    )
    parser.add_argument(
        "--rounds", type=_positive, help="rounds of a run (default: those of its configuration)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for tables and pictures (default: benchmarks/papers; with --quick, --seeds or "
        "--rounds benchmarks/papers/shortened)",
    )
    parser.add_argument("--device", default="cpu", help="torch device, such as cuda")
    parser.add_argument("--jobs", type=int, help="runs at the same time (default: one a core)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two rounds of one seed, with a tenth of the rows and local steps",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="run nothing: with names, draw their pictures again; without, write RESULTS.md, all "
        "pictures, and README.md's lines on the papers",
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    known = experiments()
    if given.list or not (given.names or given.report):
        for name, experiment in known.items():
            print(f"{name:34} {experiment.title}")
        return 0
    names = _named(given.names, known)
    if names is None:
        return 2
    n_seeds, n_rounds, thin = (1, 2, 10) if given.quick else (given.seeds, given.rounds, 1)
    chosen = {name: shortened(known[name], n_seeds, n_rounds, thin) for name in names}
    out = given.out or (HERE if (n_seeds, n_rounds) == (None, None) else HERE / "shortened")
    tables = Tables(out / "tables")
    if given.report and not given.names:
        return _report(chosen, tables, out)
    if not given.report:
        runs = [run for experiment in chosen.values() for run in experiment.runs]
        run_missing(tables, runs, jobs=given.jobs, device=given.device)
    for name, experiment in chosen.items():
        found = tables_of(experiment, tables)
        if found is None:
            print(f"{name} has not been run: leave --report out.", file=sys.stderr)
            return 1
        draw(name, experiment, found, out)
        print("\n".join(section(name, findings(experiment, found))))
    return 0


def _report(experiments: dict[str, Experiment], tables: Tables, out: Path) -> int:
    """Write RESULTS.md and the pictures, and README.md's lines if these are the repository's."""
    complete = report(experiments, tables, out)
    if not complete:
        print(f"{tables.folder} has no complete experiment: run some first.", file=sys.stderr)
        return 1
    if out.resolve() == HERE:
        rows = [row for found in complete.values() for row in found.rows]
        text = refreshed(README.read_text(encoding="utf-8"), rows)
        README.write_text(text, encoding="utf-8")
    missing = experiments.keys() - complete.keys()
    if missing:
        print(f"no tables here: {', '.join(sorted(missing))}")
    return 0


def _named(names: list[str], known: dict[str, Experiment]) -> list[str] | None:
    """Return the experiments that are named, all of them without a name.

    "all" leaves out those whose data are not on disk.
    """
    if not names:
        return list(known)
    unknown = [name for name in names if name not in known and name != "all"]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; --list shows the names.", file=sys.stderr)
        return None
    if "all" not in names:
        return names
    without_data = [
        name for name, experiment in known.items() if experiment.needs and not experiment.needs()
    ]
    if without_data:
        print(f"left out, as their data are missing: {', '.join(without_data)}", file=sys.stderr)
    return [name for name in known if name not in without_data]


if __name__ == "__main__":
    sys.exit(main())

"""Rerun a figure or table of the papers: ``python -m benchmarks.papers NAME``, or ``--list``."""

import argparse
import sys
from pathlib import Path

from benchmarks.papers.catalogue import experiments, shortened
from benchmarks.papers.report import report, section, tables_of, write
from benchmarks.papers.runner import Tables, run_missing

HERE = Path(__file__).parent


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    parser.add_argument("names", nargs="*", help="experiments, or 'all'")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument("--seeds", type=int, help="runs of each strategy (default: as the paper)")
    parser.add_argument("--rounds", type=int, help="rounds of a run (default: as the paper)")
    parser.add_argument(
        "--out", type=Path, default=HERE, help="folder for tables, pictures and RESULTS.md"
    )
    parser.add_argument("--device", default="cpu", help="torch device, such as cuda")
    parser.add_argument("--jobs", type=int, help="runs side by side (default: one a core)")
    parser.add_argument("--quick", action="store_true", help="two rounds of one seed")
    parser.add_argument("--report", action="store_true", help="only write RESULTS.md and pictures")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    known = experiments()
    if given.list or not (given.names or given.report):
        for name, experiment in known.items():
            print(f"{name:26} {experiment.title}")
        return 0
    names = list(known) if given.names == ["all"] or not given.names else given.names
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; --list shows the names.", file=sys.stderr)
        return 2
    n_seeds, n_rounds = (1, 2) if given.quick else (given.seeds, given.rounds)
    chosen = {name: shortened(known[name], n_seeds, n_rounds) for name in names}
    tables = Tables(given.out / "tables")
    if not given.report:
        wanted = [
            (panel.setting, strategy, seed)
            for experiment in chosen.values()
            for panel in experiment.panels
            for strategy in panel.strategies
            for seed in range(experiment.n_seeds)
        ]
        run_missing(tables, wanted, jobs=given.jobs, device=given.device)
        for name, experiment in chosen.items():
            write(name, experiment, tables, given.out)
            found = tables_of(experiment, tables)
            print("\n".join(section(name, experiment, found)))
        return 0
    incomplete = report(chosen, tables, given.out)
    if incomplete:
        print(f"not yet complete, and left out: {', '.join(incomplete)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

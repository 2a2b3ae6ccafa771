"""CPU and wall seconds of the example's rounds over processes, with and without forks.

``python -m benchmarks.federation_rounds [--rounds 5]`` (with SKFED_DATA and flwr; several minutes)
runs ``examples/federation`` twice, its nodes started by ``flower-supernode`` and by
``skfed.flower.warm``, whose messages share what they import, and prints a table. Linux alone.
"""

import argparse
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.results import table

EXAMPLE = Path(__file__).parents[1] / "examples" / "federation"
sys.path.insert(0, str(EXAMPLE))

from loopback import Loopback, _family  # noqa: E402
from run import write_sites  # noqa: E402

NODES = {"flower-supernode": False, "skfed.flower.warm": True}
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Return those of all processes that this one has started, and of those that they have."""
    ticks = 0
    for process in _family(os.getpid())[:-1]:
        with suppress(FileNotFoundError, ProcessLookupError):  # its parent has them now
            stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, stat[11:15]))  # its own, and of children that it has waited for
    return ticks / _TICKS


def measure(rounds: int, *, warm: bool) -> list[tuple[float, float]]:
    """Return CPU and wall seconds of all, and of a round."""
    first: list[float] = []

    def notice(line: str) -> None:
        if f"[ROUND 1/{rounds}]" in line:
            first.extend((cpu_seconds(), time.monotonic()))

    with tempfile.TemporaryDirectory() as folder:
        sites, began = write_sites(Path(folder) / "sites"), time.monotonic()
        with Loopback(folder, warm=warm) as federation:
            for site, data in sites.items():
                federation.node(site, data)
            out = str(Path(folder) / "model.safetensors")
            run = federation.submit(EXAMPLE, rounds=rounds, out=out)
            federation.wait(run, 7200.0, notice)
            cpu, ended = cpu_seconds(), time.monotonic()
    a_round = (cpu - first[0]) / rounds, (ended - first[1]) / rounds
    return [(cpu, ended - began), a_round]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    rows, found = [], []
    for name, warm in NODES.items():
        found.append([one for pair in measure(rounds, warm=warm) for one in pair])
        load = os.getloadavg()[2]
        rows.append([name, *(f"{one:.1f}" for one in found[-1]), f"{load:.0f}"])
        print(rows[-1], flush=True)
    ratios = [after / before for before, after in zip(*found, strict=True)]
    rows.append(["ratio", *(f"{one:.2f}" for one in ratios), ""])
    header = ["nodes", "CPU s", "wall s", "a round's CPU s", "a round's wall s", "load"]
    print(f"{rounds} rounds, {os.cpu_count()} cores\n")
    print("\n".join(table(header, rows)))


if __name__ == "__main__":
    main()

"""Writes RESULTS.md from the JSON of a benchmark run.

``python -m pytest benchmarks --benchmark-json=bench.json`` (with SKFED_DATA and, for the other
packages, SKFED_PEERS), then ``python -m benchmarks.results bench.json > benchmarks/RESULTS.md``.
Given the JSON of several runs on one machine, each benchmark is taken from the last that has it.
RESULTS_INTEL.md, RESULTS_ZEN3.md and RESULTS_ZEN5.md are made in the same way, on other machines,
and RESULTS_GPU.md on one with a GPU.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

WORKLOADS = {
    "W1": "power-of-choice, Fashion-MNIST, K=100, m=3 of d=6, MLP 784-64-30-10, tau=30, b=64",
    "W2": "FedAvg, 60 clients x 1000, softmax regression, E=5, b=32",
    "W3": "FedAvg, 1000 clients x 60, 100 a round, the same MLP, E=1, b=20",
    "W4": "FedAvg, 100 clients x 600, 10 a round, CNN of two 5x5 convolutions, E=1, b=32",
    "W5": "FedAvg, 500 clients x 120, 12 a round, images by row through a GRU(16), Adam, E=1, b=32",
}


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    header = list(header)
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""


def seconds(value: float) -> str:
    return f"{value:.4f}" if value < 1 else f"{value:.2f}"


def ratio(values: list[float]) -> str:
    middle, low, high = values
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def workloads(found: list[dict]) -> Iterator[str]:
    yield "## Workloads"
    yield ""
    yield (
        "Seconds a round on one core, float32, polls and aggregation included; in brackets the "
        "same over the floor. Medians of rounds taken in turns, those of a workload in one run, "
        "each contestant in a process of its own. The floor is the larger of two times: the FLOPs "
        "of the round's products at this core's measured rate, and the bytes of the rows that it "
        "has to read from memory, at the measured rate of gathers."
    )
    yield ""
    for info in found:
        yield f"- {info['workload']}: {WORKLOADS[info['workload']]}"
    yield ""
    names = list(dict.fromkeys(name for info in found for name in info["seconds"]))
    rows: list[list[object]] = [
        [kind, *(seconds(info[kind]) for info in found)]
        for kind in ("floor by FLOPs", "floor by bytes")
    ]
    for name in names:
        cells = []
        for info in found:
            value = info["seconds"].get(name)
            cells.append(f"{seconds(value)} ({value / info['floor']:.1f})" if value else "-")
        rows.append([name, *cells])
    yield from table(["", *(info["workload"] for info in found)], rows)
    yield (
        "How many times faster the engine is that `engine='auto'` takes: median of the ratios "
        "within a turn, and its 95% interval."
    )
    yield ""
    rows = [["engine", *(info["base"].removeprefix("skfed ") for info in found)]]
    for name in names:
        cells = [ratio(r) if (r := info["ratios"].get(name)) else "-" for info in found]
        rows.append([name, *cells])
    yield from table(["than", *(info["workload"] for info in found)], rows)
    for name, reason in {k: v for info in found for k, v in info["absent"].items()}.items():
        yield f"{name} was left out: {reason}."
    yield ""


def comparison(title: str, note: str, found: list[dict], keys: tuple[str, ...]) -> Iterator[str]:
    """Yield a section with a table of seconds and ratios, whose first columns are ``keys``."""
    yield f"## {title}"
    yield ""
    yield note
    yield ""
    names = list(dict.fromkeys(name for info in found for name in info["seconds"]))
    compared = list(dict.fromkeys(name for info in found for name in info["ratios"]))
    rows = [
        [
            *(info.get(key, "") for key in keys),
            *(seconds(info["seconds"][name]) for name in names),
            *(ratio(info["ratios"][name]) for name in compared),
        ]
        for info in found
    ]
    ratios = [f"{name} / {found[0]['base']}" for name in compared]
    yield from table([*keys, *names, *ratios], rows)


def rates(found: list[dict]) -> str:
    """Return the rates that were measured beside the workloads."""
    if not found:
        return ""
    flops, read = (median(info[rate] for info in found) for rate in ("FLOP/s", "bytes/s"))
    return (
        f" One core multiplies matrices at {flops / 1e9:.0f} GFLOP/s and gathers rows of 784 floats"
        f" from memory at {read / 1e9:.1f} GB/s: medians over the workloads."
    )


def processor(machine: dict) -> str:
    """Return the name of the processor, with what of it decides about speed."""
    cpu = machine["cpu"]
    name = cpu.get("brand_raw", machine["machine"])
    if "family" in cpu:  # some names are those of many processors
        name += f" (family {cpu['family']}, model {cpu['model']})"
    if "avx512f" in cpu.get("flags", []):
        name += " with AVX-512"
    caches = ", ".join(f"{k} {v // 1024:,} KiB" for k, v in machine.get("caches", {}).items())
    return f"{name}, {cpu.get('count')} cores, caches {caches or 'unknown'}"


def report(runs: list[dict]) -> Iterator[str]:
    data = joined(runs)
    machine = data["machine_info"]
    source = "a run" if len(runs) == 1 else f"{len(runs)} runs, the last of each benchmark,"
    groups: dict[str, list[dict]] = {}
    for entry in data["benchmarks"]:
        groups.setdefault(entry["group"] or "", []).append(entry["extra_info"])
    yield "# Benchmark results"
    yield ""
    yield (
        f"Made by `python -m benchmarks.results` from {source} of `python -m pytest benchmarks` on "
        f"{processor(machine)}, Python {machine['python_version']}, torch "
        f"{machine.get('torch', '')}.{rates(groups.get('workloads', []))}"
    )
    yield ""
    if "workloads" in groups:
        yield from workloads(groups["workloads"])
    sections = {
        "jobs": (
            "Two jobs",
            "Seconds a round on two cores. In brackets, here and below, the 95% interval of the "
            "median ratio within a turn. The last line, products of 256 x 256 in cache, is what "
            "the machine's two cores give: a virtual core may be half of a real one.",
            ("workload",),
        ),
        "processes": (
            "Two processes",
            "Seconds a round of one fit, and of two fits at once in two processes, each of half "
            "the clients a round. Unlike two jobs, they exchange nothing and do not wait for each "
            "other.",
            ("workload",),
        ),
        "grid": (
            "Two jobs for a grid",
            "Seconds of GridSearchCV over 8 candidates and three folds of WISDM on two cores.",
            (),
        ),
        "modules": (
            "Other modules",
            "Seconds a round of 12 of 500 clients, about 120 images each, on one core and "
            "in one process.",
            ("module", "engine='auto' takes", "floor"),
        ),
        "probe": (
            "Before the first round",
            "Seconds of a fit of one round on 6,000 images without the round, on one core. What "
            "engine='auto' or 'stacked' takes more than 'loop' is the probe of the net.",
            ("workload", "a round"),
        ),
        "polling": ("Polls", "Seconds of a poll of 100 clients with 60 images each.", ("floor",)),
        "predict": (
            "Predictions",
            "Seconds of predict on 10,000 images on one core, and of torch by hand in batches of "
            "training or of 512 rows, without checks of X or probabilities.",
            ("model of", "batch"),
        ),
        "rounds": (
            "Rounds of each selector",
            "Seconds a round, tau=30, b=64, m=3 of 36 phone users or of 100 clients with images.",
            ("data", "selector"),
        ),
        "selection": (
            "Selections",
            "Seconds of a selection of m=100 of K clients on one core, without polls and training. "
            "All clients have trained before. With public devices, those of a fit after its first "
            "round, in which the devices of all are drawn; few clients have trained before.",
            ("selector",),
        ),
        "grouping": (
            "Selections of rules that cluster or fit",
            "Likewise, for fewer clients.",
            ("selector",),
        ),
        "contributions": (
            "Subsets of a cohort",
            "Seconds of the round of 10 clients of 600 images, E=1, b=32, on one core; of the "
            "losses of the model and of the averages of 64 subsets of them, on 1,200 rows of two "
            "clients.",
            ("net",),
        ),
        "contributions, m": (
            "Subsets of larger cohorts",
            "Seconds of the same losses, by the number of clients.",
            ("net",),
        ),
        "contributions, subsets": (
            "More subsets of a cohort",
            "Seconds of the same losses, by the number of subsets.",
            ("net",),
        ),
        "preprocessing": (
            "Preprocessing",
            "Seconds of fitting transformers to 292,000 rows of 12 clients, one-hot encoder to 10 "
            "columns, the others to 70, on one core; pooled are scikit-learn's, on all rows.",
            ("steps",),
        ),
        "scale": (
            "Scale in clients",
            "Seconds a round of power-of-choice, m=10 of d=100, by the number of clients.",
            (),
        ),
        "devices": (
            "Scale in clients, with devices",
            "The same rounds on a simulated clock, with speeds that are drawn for the clients that "
            "are asked.",
            (),
        ),
    }
    for group, (title, note, keys) in sections.items():
        if group in groups:
            for info in groups[group]:
                info["floor"] = seconds(info.get("floor", 0.0))
                info["engine='auto' takes"] = info.get("auto", "")
            yield from comparison(title, note, groups[group], keys)
    memory = {k: v for entry in data["benchmarks"] for k, v in entry["extra_info"].items()}
    memory = {k: v for k, v in memory.items() if k.startswith("bytes ")}  # not bytes/s
    if memory:
        yield "## Memory"
        yield ""
        if "bytes a client" in memory:
            yield f"- {memory['bytes a client']:.0f} bytes a client beyond X and y, of a million."
        if "bytes resident" in memory:
            yield (
                f"- {memory['bytes resident'] / 1e9:.2f} GB resident beyond the page cache while "
                f"a memory map of {memory['bytes of X'] / 1e9:.0f} GB trains."
            )
        yield ""
    yield from gpu(groups.get("gpu", []))


def gpu(found: list[dict]) -> Iterator[str]:
    yield "## GPU"
    yield ""
    if not found:
        yield "None was available here: `RESULTS_GPU.md` has rounds on a GPU."
        return
    flops, read = (median(info[rate] for info in found) for rate in ("FLOP/s", "bytes/s"))
    yield (
        f"Milliseconds a round on one {found[0]['card']}: medians of rounds taken in turns; "
        "the loop's are the first of a fit. Without CUDA graphs Python launches each kernel by "
        "itself. The floor is the larger of two times: the FLOPs of the round's products at the "
        f"measured rate of float32, {flops / 1e12:.0f} TFLOP/s, and the bytes of its rows at that "
        f"of gathers, {read / 1e12:.1f} TB/s. Convolutions may take less: torch lets cuDNN round "
        "to TF32."
    )
    yield ""
    names = [name for name in found[0]["seconds"] if name != found[0]["base"]]
    rows = [
        [
            info["workload"],
            info["auto"],
            f"{1e3 * info['floor']:.3f}",
            *(f"{1e3 * value:.1f}" for value in info["seconds"].values()),
            *(ratio(info["ratios"][name]) for name in names),
        ]
        for info in found
    ]
    times = [*found[0]["seconds"], *(f"{name} / {found[0]['base']}" for name in names)]
    for info in found:
        yield f"- {info['workload']}: {WORKLOADS[info['workload']]}"
    yield ""
    yield from table(["", "engine='auto' takes", "floor", *times], rows)


def joined(runs: list[dict]) -> dict:
    """Return the data of several runs as of one, each benchmark of the last run that has it."""
    machines = {processor(run["machine_info"]) for run in runs}
    if len(machines) > 1:
        raise ValueError(f"these runs are of several machines: {'; '.join(sorted(machines))}")
    last = {one["fullname"]: one for run in runs for one in run["benchmarks"]}
    return {**runs[-1], "benchmarks": [*last.values()]}


if __name__ == "__main__":
    runs = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    print("\n".join(report(runs)))

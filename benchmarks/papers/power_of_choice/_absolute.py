"""Which absolute figures of power-of-choice's Tables 1 and 2 can be had, and at which rate."""

import re
from collections.abc import Iterable, Iterator
from math import inf, isnan
from pathlib import Path

from benchmarks.papers.experiment import ACCURACY, TO_60
from benchmarks.papers.power_of_choice._images import CALIBRATED_LR, RAND_10
from benchmarks.papers.rows import Value, number, table_rows
from benchmarks.results import table as markdown

LOG = Path(__file__).parents[1] / "calibration.md"
MEASURES = {TO_60.heading: "{:.0f}", ACCURACY.heading: "{:.1f}"}


def is_had(value: Value) -> bool:
    """Return whether a value meets the paper's, within both standard deviations."""
    mean, deviation = _theirs(value)
    return abs(value.mean - mean) <= value.deviation + deviation


def section(values: Iterable[Value]) -> Iterator[str]:
    """Yield the lines of the section."""
    found: dict[tuple[str, str], dict[str, list[Value]]] = {}
    for value in values:
        alpha = value.setting.partition(",")[0]
        if re.match("Power-of-choice, Table [12]:", value.section) and value.heading in MEASURES:
            cells = found.setdefault((alpha, value.strategy), {})
            cells.setdefault(value.heading, []).append(value)
    if not found:
        return
    lines = []
    for (alpha, strategy), of in found.items():
        cells = [alpha, strategy]
        for heading, form in MEASURES.items():
            closest = min(of[heading], key=_distance)
            ours = f"{form.format(closest.mean)} ± {form.format(closest.deviation)}"
            ours += f" at {_rate(closest)}"
            had = [_rate(one) for one in of[heading] if is_had(one)]
            cells += [
                closest.paper,
                "never reached" if isnan(closest.mean) else ours,
                ", ".join(dict.fromkeys(had)) or "none",
            ]
        lines.append(cells)
    yield "## Power-of-choice: the absolute figures of its tables"
    yield ""
    yield (
        "A figure can be had at a learning rate if ours meets the paper's there, within the "
        "standard deviations of both over the seeds. All rates that were run are counted. At "
        f"{CALIBRATED_LR:g} random selection at C=0.1 takes the paper's rounds to 60%, within 1.6 "
        "standard errors at both alphas, on partitions that are not used here ([how it was "
        "found](calibration.md)). It is one rate, as in the paper: those that are closest for each "
        "alpha, 0.00028 and 0.00033, differ by little more than a standard error."
    )
    yield ""
    headings = ["", "strategy"]
    for heading in MEASURES:
        headings += [f"{heading}, paper", "closest", "can be had at"]
    yield from markdown(headings, lines)
    yield from _conclusion(found)


def _conclusion(found: dict[tuple[str, str], dict[str, list[Value]]]) -> Iterator[str]:
    """Yield what can be had at the calibrated rate, and what at none."""
    for heading in MEASURES:
        cells = {key: of[heading] for key, of in found.items()}
        run = {k: [v for v in of if _rate(v) == f"{CALIBRATED_LR:g}"] for k, of in cells.items()}
        had = [_name(key) for key, of in run.items() if any(map(is_had, of))]
        never = [_name(key) for key, of in cells.items() if not any(map(is_had, of))]
        at = f"at {CALIBRATED_LR:g}: {'; '.join(had) or 'none'}"
        if not any(run.values()):
            at = f"at {CALIBRATED_LR:g}: not run yet"
        yield f"- The paper's {heading}: {at}. At no rate: {'; '.join(never) or 'none'}."
    for _, (alpha, rate, _, rounds, accuracy) in table_rows(LOG.read_text(encoding="utf-8")):
        of = found.get((f"alpha={alpha}", RAND_10))
        if rate == f"{CALIBRATED_LR:g}" and of:
            pairs = zip(MEASURES, (rounds, accuracy), strict=True)
            texts = (f"{heading} {mine} (paper: {of[heading][0].paper})" for heading, mine in pairs)
            yield f"- {RAND_10}, alpha={alpha}, in the calibration at {rate}: {'; '.join(texts)}."
    yield ""


def _name(key: tuple[str, str]) -> str:
    alpha, strategy = key
    return f"{strategy} ({alpha})"


def _distance(value: Value) -> float:
    """Return how far a value is from the paper's; one that was never reached is farthest."""
    distance = abs(value.mean - _theirs(value)[0])
    return inf if isnan(distance) else distance


def _theirs(value: Value) -> tuple[float, float]:
    theirs = number(value.paper)
    assert theirs is not None, value
    return theirs


def _rate(value: Value) -> str:
    return value.setting.rpartition("lr=")[2]

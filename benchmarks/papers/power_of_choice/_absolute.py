"""Which absolute figures of power-of-choice's Tables 1 and 2 can be had, and at which rate."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isnan

from benchmarks.papers.calibration import FULL, Trial
from benchmarks.papers.experiment import ACCURACY, TO_60
from benchmarks.papers.power_of_choice._images import CALIBRATED_LR, RAND_10
from benchmarks.papers.rows import Value
from benchmarks.results import table as markdown

TABLES = r"Power-of-choice, Tables? [12]"
MEASURES = {TO_60.heading: "{:.0f}", ACCURACY.heading: "{:.1f}"}
Key = tuple[str, str]  # alpha and strategy
Values = Mapping[Key, Mapping[str, Sequence[Value]]]  # by key and heading


def is_had(value: Value) -> bool:
    """Return whether a value meets the paper's, within both standard deviations."""
    mean, deviation = _theirs(value)
    return abs(value.mean - mean) <= value.deviation + deviation


def section(values: Iterable[Value], trials: Sequence[Trial]) -> Iterator[str]:
    """Yield the lines of the section.

    Parameters
    ----------
    values : iterable of Value
        Of all experiments.
    trials : sequence of Trial
        Of the calibration, at the rate that was found.
    """
    found = _of_the_tables(values)
    if not found:
        return
    yield "## Power-of-choice: the absolute figures of its tables"
    yield ""
    yield (
        "A figure can be had at a learning rate if ours differs from the paper's there by at most "
        "the sum of both standard deviations over the seeds; the paper gives none for rounds. The "
        "runs with one partition for all seeds count, and those with one for each seed."
    )
    yield ""
    headings = ["", "strategy"]
    for heading in MEASURES:
        headings += [f"{heading}, paper", "closest", "can be had at"]
    yield from markdown([*headings, "both at one rate"], map(_line, found, found.values()))
    yield from _conclusion(found)
    yield from _calibrated(found, trials)
    yield ""


def _of_the_tables(values: Iterable[Value]) -> Values:
    """Return the values of the tables' runs."""
    found: dict[Key, dict[str, list[Value]]] = {}
    for value in values:
        alpha = value.setting.partition(",")[0]
        if re.match(TABLES, value.section) and value.heading in MEASURES:
            cells = found.setdefault((alpha, value.strategy), {})
            cells.setdefault(value.heading, []).append(value)
    return found


def _line(key: Key, of: Mapping[str, Sequence[Value]]) -> list[str]:
    """Return the cells of a strategy's line."""
    cells = [*key]
    for heading, form in MEASURES.items():
        closest = min(of[heading], key=_distance)
        ours = f"{form.format(closest.mean)} ± {form.format(closest.deviation)}"
        ours = "never reached" if isnan(closest.mean) else f"{ours} at {_rate(closest)}"
        cells += [closest.paper, ours, ", ".join(_had_at(of[heading])) or "none"]
    return [*cells, ", ".join(_both_at(of)) or "none"]


def _had_at(values: Sequence[Value]) -> list[str]:
    """Return the rates at which a figure can be had."""
    return sorted({_rate(value) for value in values if is_had(value)}, key=float)


def _both_at(of: Mapping[str, Sequence[Value]]) -> list[str]:
    """Return the rates at which both figures of a strategy can be had."""
    rounds, accuracy = (_had_at(of[heading]) for heading in MEASURES)
    return [rate for rate in rounds if rate in accuracy]


def _conclusion(found: Values) -> Iterator[str]:
    """Yield what can be had at the calibrated rate, at none that was run, and at none at all."""
    at = f"{CALIBRATED_LR:g}"
    for heading in MEASURES:
        cells = {_name(key): of[heading] for key, of in found.items()}
        had = [name for name, of in cells.items() if any(is_had(v) for v in of if _rate(v) == at)]
        missed = {name: of for name, of in cells.items() if not any(map(is_had, of))}
        between = [name for name, of in missed.items() if _is_between(of)]
        never = [name for name in missed if name not in between]
        rates = sorted({_rate(v) for of in cells.values() for v in of}, key=float)
        yield (
            f"- The paper's {heading}, at {at}: {'; '.join(had) or 'none'}. At none of "
            f"{', '.join(rates)}, but between ours at two of them, so that another rate may have "
            f"it: {'; '.join(between) or 'none'}. Beyond ours at all of them: "
            f"{'; '.join(never) or 'none'}."
        )
    both = [
        f"{_name(key)} at {', '.join(_both_at(of))}" for key, of in found.items() if _both_at(of)
    ]
    yield f"- Both figures of a strategy at one rate: {'; '.join(both) or 'none'}."


def _calibrated(found: Values, trials: Sequence[Trial]) -> Iterator[str]:
    """Yield what random selection does at the calibrated rate: there, here and in the paper."""
    at = f"{CALIBRATED_LR:g}"
    for trial in trials:
        of = found.get((f"alpha={trial.alpha:g}", RAND_10), {}).get(TO_60.heading, ())
        here = [v for v in of if _rate(v) == at]
        if here:
            error = here[0].deviation / len(here[0].each) ** 0.5
            yield (
                f"- {RAND_10}, alpha={trial.alpha:g}, at {at} needs {trial.rounds.mean():.0f} ± "
                f"{trial.error:.0f} rounds to 60% on the partitions of the "
                f"[calibration](calibration.md), {here[0].mean:.0f} ± {error:.0f} on the tables', "
                f"± standard errors; {FULL.targets[trial.alpha]} in the paper. Its accuracy in the "
                f"calibration is {100 * trial.accuracies.mean():.1f}%."
            )
    if trials:
        ours = max(trials, key=lambda trial: trial.rounds.mean()).alpha
        theirs = max(FULL.targets, key=FULL.targets.__getitem__)
        yield (
            "- The rate is one for both alphas, as in the paper. Of the two, random selection is "
            f"slower at alpha={ours:g} in the calibration, at alpha={theirs:g} in the paper."
        )


def _name(key: Key) -> str:
    alpha, strategy = key
    return f"{strategy} ({alpha})"


def _is_between(values: Sequence[Value]) -> bool:
    """Return whether the paper's value is between two of ours."""
    theirs = _theirs(values[0])[0]
    ours = [value.mean for value in values if not isnan(value.mean)]
    return min(ours, default=inf) <= theirs <= max(ours, default=-inf)


def _distance(value: Value) -> float:
    """Return how far a value is from the paper's; one that was never reached is farthest."""
    distance = abs(value.mean - _theirs(value)[0])
    return inf if isnan(distance) else distance


def _theirs(value: Value) -> tuple[float, float]:
    found = re.match(r"([\d.]+)(?: ± ([\d.]+))?", value.paper)
    assert found is not None, value
    return float(found[1]), float(found[2] or 0)


def _rate(value: Value) -> str:
    return value.setting.rpartition("lr=")[2]

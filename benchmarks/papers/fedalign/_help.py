"""Does FedALIGN help? Its final accuracy and loss against the better of its two baselines."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.experiment import ACCURACY, LOSS
from benchmarks.papers.fedalign._images import ALL, BY_ACCURACY, BY_LOSS, BY_LOSS_04, PRIORITY
from benchmarks.papers.rows import Row, Value, number
from benchmarks.results import table as markdown

MATCHED = (BY_ACCURACY, BY_LOSS, BY_LOSS_04)
NEAR = 1.0  # points of accuracy


@dataclass(frozen=True)
class Gain:
    """A comparison with the better baseline in one setting.

    Parameters
    ----------
    section, setting, by : str
        Where, and how free clients are matched.
    better : str
        The baseline that is more accurate.
    points : float
        Points of accuracy above it: difference of the means over the seeds.
    error : float
        Its standard error; NaN where the section has no claim on it.
    loss_ratio : float
        Training loss F over the lower one of the baselines'.
    """

    section: str
    setting: str
    by: str
    better: str
    points: float
    error: float
    loss_ratio: float


def gains(values: Iterable[Value], rows: Iterable[Row]) -> list[Gain]:
    """Return the gains in all settings that have both baselines."""
    means: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for value in values:
        measures = means.setdefault((value.section, value.setting), {})
        measures.setdefault(value.heading, {})[value.strategy] = value.mean
    measured = {(row.section, row.setting, row.words): number(row.measured) for row in rows}
    found = []
    for (section, setting), of in means.items():
        accuracies, losses = of.get(ACCURACY.heading, {}), of.get(LOSS.heading, {})
        if not {PRIORITY, ALL} <= accuracies.keys():
            continue
        better = max((PRIORITY, ALL), key=lambda name: accuracies[name])
        for by in (name for name in MATCHED if name in accuracies):
            known = measured.get((section, setting, f"{by}: higher final accuracy than {better}"))
            found.append(
                Gain(
                    section,
                    setting,
                    by,
                    better,
                    points=round(accuracies[by] - accuracies[better], 2),
                    error=known[1] if known else np.nan,
                    loss_ratio=losses[by] / min(losses[PRIORITY], losses[ALL]),
                )
            )
    return found


def overview(found: Sequence[Gain]) -> Iterator[str]:
    """Yield the lines of a table of how often FedALIGN helps."""
    yield (
        f"*Does it help?* Against the better of `{PRIORITY}` and `{ALL}`, which one does not know "
        "beforehand ([each setting](#fedalign-does-it-help)):"
    )
    yield ""
    headings = [
        "",
        "more accurate",
        "by more than a standard error, where it is known",
        "within one point",
        "more than one point less accurate",
        "points, mean over the settings ± standard error",
        "training loss no higher than the lower one",
    ]
    lines = [_counts([gain for gain in found if gain.by == by]) for by in MATCHED]
    yield from markdown(headings, [line for line in lines if line])


def _counts(found: Sequence[Gain]) -> list[str]:
    """Return the cells of one way of matching; none if it was not run."""
    if not found:
        return []
    points = np.array([gain.points for gain in found])
    errors = np.array([gain.error for gain in found])
    known, n = ~np.isnan(errors), len(found)
    error = points.std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
    lower = sum(gain.loss_ratio <= 1 for gain in found)
    return [
        found[0].by,
        f"{(points > 0).sum()} of {n}",
        f"{(points > errors)[known].sum()} of {known.sum()}",
        f"{(np.abs(points) <= NEAR).sum()} of {n}",
        f"{(points < -NEAR).sum()} of {n}",
        f"{points.mean():+.2f} ± {error:.2f}",
        f"{lower} of {n}",
    ]


def each(found: Sequence[Gain]) -> Iterator[str]:
    """Yield the section with the gain in each setting."""
    yield "## FedALIGN: does it help?"
    yield ""
    yield (
        "Points of final accuracy above the better baseline of each setting, mean over the seeds ± "
        "standard error where a claim of the section gives it; in brackets the training loss over "
        "that of the lower baseline."
    )
    yield ""
    settings: dict[tuple[str, str, str], dict[str, str]] = {}
    for gain in found:
        cells = settings.setdefault((gain.section, gain.setting, gain.better), {})
        error = "" if np.isnan(gain.error) else f" ± {gain.error:.1f}"
        cells[gain.by] = f"{gain.points:+.2f}{error} ({gain.loss_ratio:.2f})"
    lines = [
        [place[0].removeprefix("FedALIGN, "), *place[1:], *(of.get(by, "") for by in MATCHED)]
        for place, of in settings.items()
    ]
    yield from markdown(["section", "setting", "better baseline", *MATCHED], lines)

"""Does FedALIGN help? Its final accuracy and loss against the better of its two baselines."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.claims import N_DECIMALS, beyond
from benchmarks.papers.experiment import ACCURACY, LOSS
from benchmarks.papers.fedalign._images import ALL, BY_ACCURACY, BY_LOSS, BY_LOSS_04, PRIORITY
from benchmarks.papers.rows import Value
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
    points, error : float
        Points of accuracy above it, seed by seed: their mean and its standard error.
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


def gains(values: Iterable[Value]) -> list[Gain]:
    """Return the gains in all settings that have both baselines."""
    measures: dict[tuple[str, str], dict[str, dict[str, Value]]] = {}
    for value in values:
        of = measures.setdefault((value.section, value.setting), {})
        of.setdefault(value.heading, {})[value.strategy] = value
    found = []
    for (section, setting), of in measures.items():
        accuracies, losses = of.get(ACCURACY.heading, {}), of.get(LOSS.heading, {})
        if not {PRIORITY, ALL} <= accuracies.keys():
            continue
        better = max((PRIORITY, ALL), key=lambda name: accuracies[name].mean)
        lower = min(losses[PRIORITY].mean, losses[ALL].mean)
        for by in (name for name in MATCHED if name in accuracies):
            points = np.round(accuracies[by].each - accuracies[better].each, N_DECIMALS)
            error = points.std(ddof=1) / np.sqrt(len(points)) if len(points) > 1 else 0.0
            ratio = losses[by].mean / lower
            found.append(Gain(section, setting, by, better, points.mean(), error, ratio))
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
        "by more than a standard error",
        "as accurate, to 0.01 points",
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
    points, n = np.array([_shown(gain) for gain in found]), len(found)
    error = points.std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
    surely = sum(beyond(gain.points, gain.error) for gain in found)
    lower = sum(gain.loss_ratio <= 1 for gain in found)
    return [
        found[0].by,
        f"{(points > 0).sum()} of {n}",
        f"{surely} of {n}",
        f"{(points == 0).sum()} of {n}",
        f"{(np.abs(points) <= NEAR).sum()} of {n}",
        f"{(points < -NEAR).sum()} of {n}",
        f"{points.mean():+.2f} ± {error:.2f}",
        f"{lower} of {n}",
    ]


def _shown(gain: Gain) -> float:
    """Return the points to two decimals, without a negative zero."""
    return round(gain.points, 2) + 0.0


def by_setting(found: Sequence[Gain]) -> Iterator[str]:
    """Yield the section with the gain in each setting."""
    yield "## FedALIGN: does it help?"
    yield ""
    yield (
        "Points of final accuracy above the better baseline of each setting, mean over the seeds ± "
        "standard error; in brackets the training loss over that of the lower baseline."
    )
    yield ""
    settings: dict[tuple[str, str, str], dict[str, str]] = {}
    for gain in found:
        cells = settings.setdefault((gain.section, gain.setting, gain.better), {})
        cells[gain.by] = f"{_shown(gain):+.2f} ± {gain.error:.2f} ({gain.loss_ratio:.2f})"
    lines = [
        [place[0].removeprefix("FedALIGN, "), *place[1:], *(of.get(by, "") for by in MATCHED)]
        for place, of in settings.items()
    ]
    yield from markdown(["section", "setting", "better baseline", *MATCHED], lines)

"""What Tables 1 and 2 have in common."""

from collections.abc import Mapping

from benchmarks.papers.experiment import ACCURACY, MODELS, SECONDS, TO_60, Experiment, Panel
from benchmarks.papers.pictures import curves
from benchmarks.papers.power_of_choice._images import (
    LOWER_LR,
    LOWEST_LR,
    LR,
    RAND_10,
    fashion_mnist,
    fewer_rounds,
    more_accurate,
)


def comparison(
    place: str,
    *,
    alpha: float,
    theirs: Mapping[str, tuple[str, str, str]],
    ratios: Mapping[str, float],
    points: float,
) -> Experiment:
    """Return a table's experiment: the paper's rows, and what its text claims.

    ``theirs`` has rounds to 60%, seconds a round and accuracy; ``ratios`` the shares of the rounds
    of random selection at C=0.1; ``points`` is how much more accurate the variants are than that.
    """
    headings = (TO_60.heading, SECONDS.heading, ACCURACY.heading)
    panels = [
        Panel(
            f"alpha={alpha:g}, lr={lr:g}",
            fashion_mnist(alpha, lr),
            list(theirs),
            [
                *(fewer_rounds(place, name, ratio, RAND_10) for name, ratio in ratios.items()),
                *(more_accurate(place, name, points, RAND_10) for name in list(ratios)[:3]),
            ],
            {name: dict(zip(headings, row, strict=True)) for name, row in theirs.items()},
        )
        for lr in (LR, LOWER_LR, LOWEST_LR)
    ]
    return Experiment(
        title=f"Power-of-choice, {place}: alpha={alpha:g}",
        panels=panels,
        columns=[TO_60, SECONDS, ACCURACY, MODELS],
        draw=curves(("test_accuracy", "test accuracy"), ("global_loss", "training loss")),
        baseline=RAND_10,
        note=(
            "In brackets, the share of random selection's at C=0.1. The paper's learning rate is "
            "0.005, at which 60% takes a tenth of the paper's rounds; a reproduction found its "
            "ratios at 0.0005; at 0.00025 random selection needs about as many rounds as in the "
            "paper, or more."
        ),
    )

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
    no_more_rounds,
)


def comparison(
    place: str,
    *,
    alpha: float,
    theirs: Mapping[str, tuple[str, str, str]],
    ratios: Mapping[str, float],
    points: float,
    bound: float,
) -> Experiment:
    """Return a table's experiment: the paper's rows, and what its text claims.

    ``theirs`` has rounds to 60%, seconds a round and accuracy; ``ratios`` the shares of the rounds
    of random selection at C=0.1; ``points`` is how much more accurate the variants are than that;
    ``bound`` is the share of rounds that we ask of them at lr=0.0005.
    """
    headings = (TO_60.heading, SECONDS.heading, ACCURACY.heading)
    rows = {name: dict(zip(headings, row, strict=True)) for name, row in theirs.items()}
    variants = list(ratios)[:3]
    claims = [
        *(fewer_rounds(place, name, ratio, RAND_10) for name, ratio in ratios.items()),
        *(more_accurate(place, name, points, RAND_10) for name in variants),
    ]
    ours = [no_more_rounds(name, bound, RAND_10) for name in variants]
    panels = [
        Panel(
            f"alpha={alpha:g}, lr={lr:g}",
            fashion_mnist(alpha, lr),
            list(theirs),
            [*claims, *ours] if lr == LOWER_LR else claims,
            rows,
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
            "0.005; a reproduction found its ratios at 0.0005; at 0.00025 random selection takes "
            "rounds by the hundred, as in the paper. The partition is one for all seeds, as in the "
            "paper's code; its text has one a seed."
        ),
    )

"""The experiments of Tables 1 and 2."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.papers.experiment import ACCURACY, MODELS, TO_60, Experiment, Panel
from benchmarks.papers.pictures import curves
from benchmarks.papers.power_of_choice._images import (
    CALIBRATED_LR,
    CALIBRATION,
    LOWER_LR,
    LOWEST_LR,
    LR,
    RAND_10,
    fashion_mnist,
    fewer_rounds,
    more_accurate,
    no_more_rounds,
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper.

    Parameters
    ----------
    place : str
        Its name in the paper.
    alpha : float
        Parameter of the Dirichlet partition.
    theirs : mapping of str to tuple
        Each strategy's rounds to 60%, seconds a round and accuracy in the paper. The seconds are
        compared in seconds_a_round.py.
    ratios : mapping of str to float
        Each strategy's share of the rounds of random selection at C=0.1.
    points : float
        Points of accuracy by which the variants are above random selection at C=0.1.
    bound : float
        Our own bound on the variants' share of rounds at lr=0.0005.
    """

    place: str
    alpha: float
    theirs: Mapping[str, tuple[str, str, str]]
    ratios: Mapping[str, float]
    points: float
    bound: float

    def panel(self, lr: float, *, redrawn: bool = False) -> Panel:
        """Return the panel at a learning rate; ``redrawn`` gives each seed its own partition."""
        variants = list(self.ratios)[:3]
        claims = [
            *(fewer_rounds(self.place, name, r, RAND_10) for name, r in self.ratios.items()),
            *(more_accurate(self.place, name, self.points, RAND_10) for name in variants),
        ]
        ours = [no_more_rounds(name, self.bound, RAND_10) for name in variants]
        return Panel(
            f"alpha={self.alpha:g}, lr={lr:g}",
            fashion_mnist(self.alpha, lr, redrawn=redrawn),
            list(self.theirs),
            [*claims, *ours] if lr == LOWER_LR else claims,
            {
                name: {TO_60.heading: rounds, ACCURACY.heading: accuracy}
                for name, (rounds, _, accuracy) in self.theirs.items()
            },
        )


def comparison(title: str, panels: Sequence[Panel], *, note: str, n_seeds: int = 3) -> Experiment:
    """Return the experiment that compares panels with the paper's rows."""
    return Experiment(
        title=f"Power-of-choice, {title}",
        panels=panels,
        columns=[TO_60, ACCURACY, MODELS],
        draw=curves(("test_accuracy", "test accuracy"), ("global_loss", "training loss")),
        n_seeds=n_seeds,
        baseline=RAND_10,
        note=f"In brackets: the share of the value of random selection at C=0.1. {note}",
    )


def at_three_rates(table: Table) -> Experiment:
    """Return a table's experiment, with one partition for all seeds."""
    return comparison(
        f"{table.place}: alpha={table.alpha:g}",
        [table.panel(lr) for lr in (LR, LOWER_LR, LOWEST_LR)],
        note=(
            "The paper's learning rate is 0.005; a reproduction (peng-ju/Power-of-Choice) found "
            "its ratios at 0.0005; at 0.00025 random selection takes hundreds of rounds, as in the "
            "paper. All seeds share one partition, as in the paper's code; its text has one for "
            "each seed (power-of-choice-tables-redrawn)."
        ),
    )


def at_the_calibrated_rate(table: Table) -> Experiment:
    """Return a table's experiment at the rate that was found by random selection alone."""
    return comparison(
        f"{table.place}: alpha={table.alpha:g}, lr={CALIBRATED_LR:g}",
        [table.panel(CALIBRATED_LR)],
        n_seeds=5,
        note=f"{CALIBRATION} All seeds share one partition, as in the paper's code.",
    )

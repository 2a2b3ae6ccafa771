"""Figures on images: panels by alpha and learning rate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.papers.claims import Claim
from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, TO_60, Experiment, Panel
from benchmarks.papers.pictures import curves
from benchmarks.papers.power_of_choice._images import CALIBRATED_LR, CALIBRATION
from benchmarks.runs.settings import Setting

ONE_PARTITION = "All seeds share one partition, as in the paper's code."
REPRODUCTION = (
    "The paper's learning rate is 0.005; a reproduction (peng-ju/Power-of-Choice) found its ratios "
    "at 0.0005."
)


@dataclass(frozen=True)
class ImageFigure:
    """A figure of the paper, to be run at several learning rates.

    Parameters
    ----------
    title : str
        Title, without the paper's name.
    setting : callable
        Takes alpha and the learning rate; returns the setting.
    strategies : sequence of str
        The strategies that it shows.
    claims : mapping of float to sequence of Claim
        The paper's claims, by alpha.
    note : str, default=""
        Added to the note of all figures.
    """

    title: str
    setting: Callable[[float, float], Setting]
    strategies: Sequence[str]
    claims: Mapping[float, Sequence[Claim]]
    note: str = ""

    def at(self, *rates: float, n_seeds: int = 3) -> Experiment:
        """Return the experiment with a panel for each alpha and rate."""
        of_rates = CALIBRATION if rates == (CALIBRATED_LR,) else REPRODUCTION
        return Experiment(
            title=f"Power-of-choice, {self.title}" + f", lr={rates[0]:g}" * (len(rates) == 1),
            panels=[
                Panel(
                    f"alpha={alpha:g}, lr={lr:g}", self.setting(alpha, lr), self.strategies, claims
                )
                for lr in rates
                for alpha, claims in self.claims.items()
            ],
            columns=[TO_60, ACCURACY, LOSS, MODELS],
            draw=curves(("test_accuracy", "test accuracy"), ("global_loss", "training loss")),
            n_seeds=n_seeds,
            note=f"{ONE_PARTITION} {of_rates} {self.note}".strip(),
        )

    def at_the_calibrated_rate(self) -> Experiment:
        """Return the experiment at the rate that was found by random selection alone."""
        return self.at(CALIBRATED_LR, n_seeds=5)

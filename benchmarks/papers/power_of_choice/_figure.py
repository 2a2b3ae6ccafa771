"""Figures on images: panels by alpha and learning rate."""

from collections.abc import Callable, Mapping, Sequence

from benchmarks.papers.claims import Claim
from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, SECONDS, TO_60, Experiment, Panel
from benchmarks.papers.pictures import curves
from benchmarks.papers.power_of_choice._images import LOWER_LR, LR
from benchmarks.papers.settings import Setting


def figure(
    title: str,
    setting: Callable[[float, float], Setting],
    strategies: Sequence[str],
    claims: Mapping[float, Sequence[Claim]],
    *,
    rates: Sequence[float] = (LR, LOWER_LR),
    note: str = "",
) -> Experiment:
    """Return a figure with a panel for each alpha that ``claims`` names and each learning rate.

    ``setting`` takes alpha and the learning rate. ``note`` is added to the note of all figures.
    """
    return Experiment(
        title=title,
        panels=[
            Panel(f"alpha={alpha:g}, lr={lr:g}", setting(alpha, lr), strategies, claims[alpha])
            for lr in rates
            for alpha in claims
        ],
        columns=[TO_60, ACCURACY, LOSS, SECONDS, MODELS],
        draw=curves(("test_accuracy", "test accuracy"), ("global_loss", "training loss")),
        note=(
            "All seeds share one partition, as in the paper's code. The paper's learning rate is "
            f"0.005; a reproduction (peng-ju/Power-of-Choice) found its ratios at 0.0005. {note}"
        ).strip(),
    )

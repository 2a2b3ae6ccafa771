"""What the figures on images have in common: curves of the test accuracy, and their table."""

from collections.abc import Callable, Sequence

from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._images import WARMUP
from benchmarks.papers.pictures import curves


def figure(
    title: str,
    panels: Sequence[Panel],
    *,
    note: str,
    n_seeds: int = 5,
    needs: Callable[[], bool] | None = None,
) -> Experiment:
    """Return a figure of the test accuracy; see :class:`Experiment`."""
    return Experiment(
        title=f"FedALIGN, {title}",
        panels=panels,
        columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained"), MODELS],
        draw=curves(("test_accuracy", "test accuracy"), warmup=WARMUP),
        n_seeds=n_seeds,
        note=note,
        needs=needs,
    )

"""Figure 6: more priority clients."""

from collections.abc import Mapping

from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import SHARDS, advantage
from benchmarks.papers.fedalign._images import MAIN, WARMUP, fashion_mnist, mnist
from benchmarks.papers.pictures import curves
from benchmarks.papers.settings import Setting


def figure(title: str, settings: Mapping[str, Setting]) -> Experiment:
    """Return the figure for some settings: for all of them it takes more than half an hour."""
    return Experiment(
        title=f"FedALIGN, Figure 6: {title}",
        panels=[
            Panel(name, setting, MAIN, advantage("Figure 6")) for name, setting in settings.items()
        ],
        columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained"), MODELS],
        draw=curves(("test_accuracy", "test accuracy"), warmup=WARMUP),
        n_seeds=5,
        note=SHARDS,
    )


EXPERIMENT = figure(
    "more priority clients",
    {
        "Fashion-MNIST, 6 priority": fashion_mnist(6),
        "MNIST for EMNIST, 5 shards, 18 priority": mnist(18),
    },
)

"""Figure 6 with three local steps; all of Figure 6 takes more than half an hour."""

from benchmarks.papers.experiment import Panel
from benchmarks.papers.fedalign._claims import SHARDS, advantage
from benchmarks.papers.fedalign._figure import figure
from benchmarks.papers.fedalign._images import MAIN, mnist

EXPERIMENT = figure(
    "Figure 6: nine priority clients, E=3",
    [
        Panel(
            "MNIST for EMNIST, 5 shards, 9 priority, E=3",
            mnist(9, steps=3),
            MAIN,
            advantage("Figure 6"),
        )
    ],
    note=SHARDS,
)

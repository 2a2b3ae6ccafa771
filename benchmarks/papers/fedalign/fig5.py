"""Figure 5: partial participation."""

from benchmarks.papers.experiment import Panel
from benchmarks.papers.fedalign._claims import PARTICIPATION, SHARDS, advantage
from benchmarks.papers.fedalign._figure import figure
from benchmarks.papers.fedalign._images import MAIN, fashion_mnist, mnist

EXPERIMENT = figure(
    "Figure 5: partial participation",
    [
        Panel(
            "Fashion-MNIST, 18 priority, 0.3 take part",
            fashion_mnist(18, participation=0.3),
            MAIN,
            advantage("Figure 5"),
        ),
        Panel(
            "MNIST for EMNIST, 5 shards, 4 priority, 0.5 take part",
            mnist(4, participation=0.5),
            MAIN,
            advantage("Figure 5"),
        ),
    ],
    note=f"{PARTICIPATION} {SHARDS}",
)

"""Figure 6: more priority clients."""

from benchmarks.papers.experiment import Panel
from benchmarks.papers.fedalign._claims import SHARDS, advantage
from benchmarks.papers.fedalign._figure import figure
from benchmarks.papers.fedalign._images import MAIN, fashion_mnist, mnist

EXPERIMENT = figure(
    "Figure 6: more priority clients",
    [
        Panel("Fashion-MNIST, 6 priority", fashion_mnist(6), MAIN, advantage("Figure 6")),
        Panel("MNIST for EMNIST, 5 shards, 18 priority", mnist(18), MAIN, advantage("Figure 6")),
    ],
    note=SHARDS,
)

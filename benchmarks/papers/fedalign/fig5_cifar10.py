"""Figure 5 on CIFAR-10, where it is on disk: 18 priority clients, 0.3 take part."""

from benchmarks.papers.experiment import Panel
from benchmarks.papers.fedalign._claims import PARTICIPATION, advantage
from benchmarks.papers.fedalign._figure import figure
from benchmarks.papers.fedalign._images import MAIN, cifar10
from benchmarks.runs.problems import has_cifar10

EXPERIMENT = figure(
    "Figure 5 on CIFAR-10",
    [Panel("CIFAR-10", cifar10(18, participation=0.3), MAIN, advantage("Figure 5"))],
    note=f"{PARTICIPATION} It needs a GPU.",
    needs=has_cifar10,
)

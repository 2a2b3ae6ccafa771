"""Figure 1 on CIFAR-10, where it is on disk: two priority clients of 60, E=5."""

from benchmarks.papers.experiment import Panel
from benchmarks.papers.fedalign._claims import advantage, all_deteriorates
from benchmarks.papers.fedalign._figure import figure
from benchmarks.papers.fedalign._images import MAIN, cifar10
from benchmarks.runs.problems import has_cifar10

PLACE = "Figure 1"
EXPERIMENT = figure(
    "Figure 1 on CIFAR-10",
    [Panel("CIFAR-10", cifar10(), MAIN, [all_deteriorates(PLACE), *advantage(PLACE)])],
    note="Shards have 416 images, as there are too few for 120 of 500. It needs a GPU.",
    needs=has_cifar10,
)

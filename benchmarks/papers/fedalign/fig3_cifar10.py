"""Figure 3 on CIFAR-10, where it is on disk: local models of free clients with 50 samples."""

from benchmarks.papers.fedalign.fig3 import comparison
from benchmarks.runs.problems import has_cifar10

EXPERIMENT = comparison(
    "FedALIGN, Figure 3 on CIFAR-10",
    ["CIFAR-10"],
    "It needs a GPU.",
    needs=has_cifar10,
)

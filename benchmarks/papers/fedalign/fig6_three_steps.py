"""Figure 6's fewer local steps."""

from benchmarks.papers.fedalign._images import mnist
from benchmarks.papers.fedalign.fig6 import figure

EXPERIMENT = figure(
    "nine priority clients, E=3",
    {"MNIST for EMNIST, 5 shards, 9 priority, E=3": mnist(9, steps=3)},
)

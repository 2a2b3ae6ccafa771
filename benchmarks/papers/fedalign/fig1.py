"""Figure 1: two priority clients of 60, E=5; test accuracy on their labels."""

from benchmarks.papers.experiment import Panel
from benchmarks.papers.fedalign._claims import (
    SHARDS,
    advantage,
    all_deteriorates,
    bounds_of_figure_1,
)
from benchmarks.papers.fedalign._figure import figure
from benchmarks.papers.fedalign._images import BY_LOSS_04, MAIN, fashion_mnist, mnist

PLACE = "Figure 1"
CLAIMS = [all_deteriorates(PLACE), *advantage(PLACE)]
EXPERIMENT = figure(
    "Figure 1: two priority clients",
    [
        Panel(
            "Fashion-MNIST",
            fashion_mnist(),
            [*MAIN, BY_LOSS_04],
            [*CLAIMS, *bounds_of_figure_1()],
        ),
        Panel("MNIST for EMNIST, 5 shards", mnist(), [*MAIN, BY_LOSS_04], CLAIMS),
    ],
    note=(
        f"{SHARDS} CIFAR-10 is fedalign-fig1-cifar10. By accuracy is what the authors' code does, "
        "by loss what the algorithm states."
    ),
)

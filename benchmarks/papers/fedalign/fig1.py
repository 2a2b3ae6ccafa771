"""Figure 1: two priority clients of 60, E=5; test accuracy on their labels."""

from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import (
    SHARDS,
    advantage,
    all_deteriorates,
    bounds_of_figure_1,
)
from benchmarks.papers.fedalign._images import BY_LOSS_04, MAIN, WARMUP, fashion_mnist, mnist
from benchmarks.papers.pictures import curves

PLACE = "Figure 1"
CLAIMS = [all_deteriorates(PLACE), *advantage(PLACE)]
EXPERIMENT = Experiment(
    title="FedALIGN, Figure 1: two priority clients",
    panels=[
        Panel(
            "Fashion-MNIST",
            fashion_mnist(),
            [*MAIN, BY_LOSS_04],
            [*CLAIMS, *bounds_of_figure_1()],
        ),
        Panel("MNIST for EMNIST, 5 shards", mnist(), [*MAIN, BY_LOSS_04], CLAIMS),
    ],
    columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained"), MODELS],
    draw=curves(("test_accuracy", "test accuracy"), warmup=WARMUP),
    n_seeds=5,
    note=(
        f"{SHARDS} CIFAR-10 is fedalign-fig1-cifar10. By accuracy is what the authors' code does, "
        "by loss what the algorithm states."
    ),
)

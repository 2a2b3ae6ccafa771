"""Figure 1 on CIFAR-10, where it is on disk: two priority clients of 60, E=5."""

from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import advantage, all_deteriorates
from benchmarks.papers.fedalign._images import MAIN, WARMUP, cifar10
from benchmarks.papers.pictures import curves
from benchmarks.papers.problems import has_cifar10

PLACE = "Figure 1"
EXPERIMENT = Experiment(
    title="FedALIGN, Figure 1 on CIFAR-10",
    panels=[Panel("CIFAR-10", cifar10(), MAIN, [all_deteriorates(PLACE), *advantage(PLACE)])],
    columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained"), MODELS],
    draw=curves(("test_accuracy", "test accuracy"), warmup=WARMUP),
    n_seeds=5,
    note="Shards have 416 images, since 120 of 500 are more than there are. It wants a GPU.",
    needs=has_cifar10,
)

"""Figure 5 on CIFAR-10, where it is on disk: 18 priority clients, 0.3 take part."""

from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import PARTICIPATION, advantage
from benchmarks.papers.fedalign._images import MAIN, WARMUP, cifar10
from benchmarks.papers.pictures import curves
from benchmarks.papers.problems import has_cifar10

EXPERIMENT = Experiment(
    title="FedALIGN, Figure 5 on CIFAR-10",
    panels=[Panel("CIFAR-10", cifar10(18, participation=0.3), MAIN, advantage("Figure 5"))],
    columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained"), MODELS],
    draw=curves(("test_accuracy", "test accuracy"), warmup=WARMUP),
    n_seeds=5,
    note=f"{PARTICIPATION} It wants a GPU.",
    needs=has_cifar10,
)

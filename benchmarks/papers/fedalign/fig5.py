"""Figure 5: partial participation."""

from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import main_claims
from benchmarks.papers.fedalign._images import MAIN, WARMUP, cifar10, fashion_mnist, mnist
from benchmarks.papers.pictures import curves
from benchmarks.papers.problems import has_cifar10

CIFAR = Panel(
    "CIFAR-10, 18 priority, 0.3 take part",
    cifar10(18, participation=0.3),
    MAIN,
    main_claims("Figure 5"),
)
EXPERIMENT = Experiment(
    title="FedALIGN, Figure 5: partial participation",
    panels=[
        Panel(
            "Fashion-MNIST, 18 priority, 0.3 take part",
            fashion_mnist(18, participation=0.3),
            MAIN,
            main_claims("Figure 5"),
        ),
        Panel(
            "MNIST for EMNIST, 5 shards, 4 priority, 0.5 take part",
            mnist(4, participation=0.5),
            MAIN,
            main_claims("Figure 5"),
        ),
        *([CIFAR] if has_cifar10() else []),
    ],
    columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained"), MODELS],
    draw=curves(("test_accuracy", "test accuracy"), warmup=WARMUP),
    n_seeds=5,
    note="Priority clients are drawn by size with replacement (equation 55).",
)

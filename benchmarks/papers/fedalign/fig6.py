"""Figure 6: more priority clients, and fewer local steps."""

from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import SHARDS, advantage
from benchmarks.papers.fedalign._images import MAIN, WARMUP, fashion_mnist, mnist
from benchmarks.papers.pictures import curves

EXPERIMENT = Experiment(
    title="FedALIGN, Figure 6: more priority clients, and E=3",
    panels=[
        Panel("Fashion-MNIST, 6 priority, E=5", fashion_mnist(6), MAIN, advantage("Figure 6")),
        Panel(
            "MNIST for EMNIST, 5 shards, 9 priority, E=3",
            mnist(9, steps=3),
            MAIN,
            advantage("Figure 6"),
        ),
        Panel(
            "MNIST for EMNIST, 5 shards, 18 priority, E=5",
            mnist(18),
            MAIN,
            advantage("Figure 6"),
        ),
    ],
    columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained"), MODELS],
    draw=curves(("test_accuracy", "test accuracy"), warmup=WARMUP),
    n_seeds=5,
    note=SHARDS,
)

"""Figure 5: partial participation."""

from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import PARTICIPATION, SHARDS, advantage
from benchmarks.papers.fedalign._images import MAIN, WARMUP, fashion_mnist, mnist
from benchmarks.papers.pictures import curves

EXPERIMENT = Experiment(
    title="FedALIGN, Figure 5: partial participation",
    panels=[
        Panel(
            "Fashion-MNIST, 18 priority, 0.3 take part",
            fashion_mnist(18, participation=0.3),
            MAIN,
            advantage("Figure 5"),
        ),
        Panel(
            "MNIST for EMNIST, 5 shards, 4 priority, 0.5 take part",
            mnist(4, participation=0.5),
            MAIN,
            advantage("Figure 5"),
        ),
    ],
    columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained"), MODELS],
    draw=curves(("test_accuracy", "test accuracy"), warmup=WARMUP),
    n_seeds=5,
    note=f"{PARTICIPATION} {SHARDS}",
)

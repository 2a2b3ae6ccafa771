"""Figure 4: FedALIGN on top of FedProx, four priority clients."""

from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import SHARDS, advantage
from benchmarks.papers.fedalign._images import MAIN, WARMUP, fashion_mnist, mnist
from benchmarks.papers.pictures import curves

EXPERIMENT = Experiment(
    title="FedALIGN, Figure 4: on top of FedProx (mu=1), four priority clients",
    panels=[
        Panel("Fashion-MNIST", fashion_mnist(4, proximal_mu=1.0), MAIN, advantage("Figure 4")),
        Panel(
            "MNIST for EMNIST, 5 shards",
            mnist(4, proximal_mu=1.0),
            MAIN,
            advantage("Figure 4"),
        ),
    ],
    columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained"), MODELS],
    draw=curves(("test_accuracy", "test accuracy"), warmup=WARMUP),
    n_seeds=5,
    note=(
        "The penalty of the authors' code has no gradient; here it is mu/2 ||w - w_t||^2. The text "
        "has 60 clients besides the four, the caption 60 in all, as here. " + SHARDS
    ),
)

"""Figure 4: FedALIGN on top of FedProx, four priority clients."""

from benchmarks.papers.experiment import Panel
from benchmarks.papers.fedalign._claims import SHARDS, advantage
from benchmarks.papers.fedalign._figure import figure
from benchmarks.papers.fedalign._images import MAIN, fashion_mnist, mnist

EXPERIMENT = figure(
    "Figure 4: on top of FedProx (mu=1), four priority clients",
    [
        Panel("Fashion-MNIST", fashion_mnist(4, proximal_mu=1.0), MAIN, advantage("Figure 4")),
        Panel(
            "MNIST for EMNIST, 5 shards",
            mnist(4, proximal_mu=1.0),
            MAIN,
            advantage("Figure 4"),
        ),
    ],
    note=(
        "The penalty of the authors' code has no gradient; here it is mu/2 ||w - w_t||^2. The text "
        "has 60 clients besides the four, the caption 60 in all, as here. " + SHARDS
    ),
)

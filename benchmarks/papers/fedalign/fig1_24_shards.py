"""Figure 1 with EMNIST's 24 shards a client, on MNIST, where clients hold similar data."""

from benchmarks.papers.experiment import Panel
from benchmarks.papers.fedalign._claims import advantage, all_deteriorates
from benchmarks.papers.fedalign._figure import figure
from benchmarks.papers.fedalign._images import MAIN, mnist

EXPERIMENT = figure(
    "Figure 1 with 24 shards a client: EMNIST's set-up on MNIST",
    [
        Panel(
            "MNIST for EMNIST, 24 shards",
            mnist(shards_per_client=24),
            MAIN,
            [all_deteriorates("Figure 1"), *advantage("Figure 1")],
        )
    ],
    n_seeds=3,
    note=(
        "With ten classes instead of 47, nearly every client holds nearly every digit. Three "
        "seeds, not five, so that it ends in half an hour: a round polls 144,000 images."
    ),
)

"""Figure 1 with EMNIST's 24 shards a client, on MNIST: there clients are nearly alike."""

from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import advantage, all_deteriorates
from benchmarks.papers.fedalign._images import MAIN, WARMUP, mnist
from benchmarks.papers.pictures import curves

EXPERIMENT = Experiment(
    title="FedALIGN, Figure 1 with 24 shards a client: EMNIST's set-up on MNIST",
    panels=[
        Panel(
            "MNIST for EMNIST, 24 shards",
            mnist(shards_per_client=24),
            MAIN,
            [all_deteriorates("Figure 1"), *advantage("Figure 1")],
        )
    ],
    columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained"), MODELS],
    draw=curves(("test_accuracy", "test accuracy"), warmup=WARMUP),
    note=(
        "With ten classes instead of 47, nearly every client holds nearly every digit. Three "
        "seeds, not five, so that it ends in half an hour: a round polls 144,000 images."
    ),
)

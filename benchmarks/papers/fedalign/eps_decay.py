"""Corollary 2: with eps that goes to 0 the bias of the free clients vanishes."""

from benchmarks.papers.claims import Claim, Direction, in_the_end
from benchmarks.papers.experiment import ACCURACY, LOSS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import ends_higher
from benchmarks.papers.fedalign._images import (
    BY_ACCURACY,
    BY_ACCURACY_TO_0,
    BY_LOSS,
    BY_LOSS_TO_0,
    EXPONENTIAL,
    PRIORITY,
    STEPWISE,
    WARMUP,
    fashion_mnist,
)
from benchmarks.papers.pictures import curves


def no_higher_loss(by: str, than: str) -> Claim:
    """Claim that a bias vanishes: the objective ends no higher."""
    return Direction(
        words=f"{by}: F ends lower than {than}'s (ratio)",
        place="Corollary 2",
        measure=lambda table: (
            in_the_end(table, by, "global_loss") / in_the_end(table, than, "global_loss")
        ),
        more=False,
        neutral=1,
        tolerance=0.05,
        paper="no bias is left",
    )


DECAYED = [BY_ACCURACY_TO_0, STEPWISE, EXPONENTIAL]
PLACE = "Section 4, eps 0.2 and eventually 0"
EXPERIMENT = Experiment(
    title="FedALIGN, Corollary 2: eps 0.2, fixed and reduced to 0",
    panels=[
        Panel(
            "Fashion-MNIST",
            fashion_mnist(),
            [PRIORITY, BY_ACCURACY, *DECAYED, BY_LOSS, BY_LOSS_TO_0],
            [
                *(no_higher_loss(by, BY_ACCURACY) for by in DECAYED),
                *(no_higher_loss(by, PRIORITY) for by in DECAYED),
                no_higher_loss(BY_LOSS_TO_0, BY_LOSS),
                *(ends_higher(PLACE, by, BY_ACCURACY) for by in DECAYED),
                ends_higher(PLACE, BY_LOSS_TO_0, BY_LOSS),
            ],
        )
    ],
    columns=[ACCURACY, LOSS, mean_of("n_trained", "clients trained")],
    draw=curves(
        ("test_accuracy", "test accuracy"),
        ("global_loss", "F(w)"),
        ("n_trained", "clients trained"),
        warmup=WARMUP,
    ),
    n_seeds=5,
)

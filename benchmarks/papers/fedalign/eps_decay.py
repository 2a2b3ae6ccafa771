"""Corollary 2: with eps that goes to 0 the bias of the free clients vanishes."""

from benchmarks.papers.claims import Claim, in_the_end
from benchmarks.papers.experiment import ACCURACY, LOSS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import ends_higher
from benchmarks.papers.fedalign._images import (
    BY_ACCURACY,
    BY_ACCURACY_TO_0,
    BY_LOSS,
    BY_LOSS_TO_0,
    PRIORITY,
    WARMUP,
    fashion_mnist,
)
from benchmarks.papers.pictures import curves


def lower_loss(by: str, than: str) -> Claim:
    """Claim that a bias vanishes: the objective ends lower than with eps fixed."""
    return Claim(
        f"{by}: F ends lower than with eps 0.2 throughout (ratio)",
        "Corollary 2",
        lambda table: in_the_end(table, by, "global_loss") / in_the_end(table, than, "global_loss"),
        claimed=1.0,
        neutral=1.05,
        strict=True,
        paper="no bias is left",
    )


EXPERIMENT = Experiment(
    title="FedALIGN, Corollary 2: eps 0.2, fixed and reduced to 0",
    panels=[
        Panel(
            "Fashion-MNIST",
            fashion_mnist(),
            [PRIORITY, BY_ACCURACY, BY_ACCURACY_TO_0, BY_LOSS, BY_LOSS_TO_0],
            [
                lower_loss(BY_ACCURACY_TO_0, BY_ACCURACY),
                lower_loss(BY_LOSS_TO_0, BY_LOSS),
                ends_higher("Section 4, eps 0.2 and eventually 0", BY_ACCURACY_TO_0, BY_ACCURACY),
                ends_higher("Section 4, eps 0.2 and eventually 0", BY_LOSS_TO_0, BY_LOSS),
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

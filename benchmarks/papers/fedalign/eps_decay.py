"""Corollary 2: with eps that goes to 0 the bias of the free clients vanishes."""

from benchmarks.papers.claims import POINTS, Claim, Direction, NoHigher, final_gain
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


def lower_loss(by: str, than: str) -> Claim:
    """Claim that the final objective is lower than with a constant eps."""
    return Direction(
        words=f"{by}: F ends lower than {than}'s",
        place="Corollary 2",
        measure=final_gain(by, than, "global_loss"),
        more=False,
        form="{:+.3f}",
        paper="less bias",
    )


def no_bias(by: str) -> Claim:
    """Claim that no bias is left: the final objective is that of the priority clients alone."""
    return NoHigher(
        words=f"{by}: F ends no higher than {PRIORITY}'s",
        place="Corollary 2",
        measure=final_gain(by, PRIORITY, "global_loss"),
        form="{:+.3f}",
        paper="no bias is left",
    )


def no_need(by: str, than: str) -> Claim:
    """Claim of the preprint: reducing eps gains no accuracy."""
    return NoHigher(
        words=f"{by}: final accuracy no higher than {than}'s",
        place="preprint, Section 4",
        measure=final_gain(by, than, "test_accuracy", 100),
        form=POINTS,
        paper="no need to reduce eps",
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
                *(lower_loss(by, BY_ACCURACY) for by in DECAYED),
                lower_loss(BY_LOSS_TO_0, BY_LOSS),
                *(no_bias(by) for by in (*DECAYED, BY_LOSS_TO_0)),
                *(ends_higher(PLACE, by, BY_ACCURACY) for by in DECAYED),
                ends_higher(PLACE, BY_LOSS_TO_0, BY_LOSS),
                *(no_need(by, BY_ACCURACY) for by in DECAYED),
                no_need(BY_LOSS_TO_0, BY_LOSS),
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
    note="The two versions of the paper disagree on whether eps must be reduced; both are checked.",
)

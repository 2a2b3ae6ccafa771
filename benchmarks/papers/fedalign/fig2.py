"""Figure 2: Synthetic(1, 1), 10 priority and 10 free clients at three levels of noise."""

from functools import partial

from benchmarks.papers.claims import Bound, Claim, Direction, in_the_end
from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import ends_higher, faster_after_warmup
from benchmarks.papers.fedalign._images import (
    ALL,
    BY_ACCURACY,
    BY_LOSS,
    BY_LOSS_04,
    BY_LOSS_TO_0,
    N_ROUNDS,
    PRIORITY,
    WARMUP,
    softmax_regression,
    strategies,
)
from benchmarks.papers.pictures import curves
from benchmarks.papers.problems import noisy_synthetic
from benchmarks.papers.settings import Setting

SKEWS = {"low": 0.5, "medium": 1.5, "high": 5.0}
NAMED = {"low": BY_LOSS, "medium": BY_LOSS, "high": BY_LOSS_04}  # with the eps the paper names
MILD = {"label_noise": 0.5, "irrelevant": 0.5}


def setting(noise: str, **factors: float) -> Setting:
    """Return the setting at one level of noise; the paper's factors unless others are given."""
    return Setting(
        name=f"fedalign-synthetic-{noise}" + "-mild" * bool(factors),
        problem=partial(noisy_synthetic, skew=SKEWS[noise], **factors),
        net=partial(softmax_regression, 60, 10),
        training={"local_steps": 5},
        strategies=strategies(),
        n_rounds=N_ROUNDS,
    )


def loss_ratio(by: str, than: str):
    """Measure a strategy's training loss in the end over another's."""
    return lambda table: (
        in_the_end(table, by, "global_loss") / in_the_end(table, than, "global_loss")
    )


def lower_loss(by: str, than: str) -> Claim:
    """Claim that FedALIGN's final training loss is lower."""
    return Direction(
        words=f"{by}: lower training loss in the end than {than} (ratio)",
        place="Figure 2",
        measure=loss_ratio(by, than),
        more=False,
        neutral=1,
        form="{:.3f}",
        paper="lower",
    )


def no_higher_loss(by: str, than: str) -> Claim:
    """Ask for a final training loss that is at most another's."""
    return Bound(
        words=f"{by}: training loss in the end over that of {than}",
        measure=loss_ratio(by, than),
        limit=1,
        form="{:.3f}",
        paper="at most 1",
    )


def panel(title: str, noise: str, **factors: float) -> Panel:
    return Panel(
        title,
        setting(noise, **factors),
        [PRIORITY, ALL, BY_ACCURACY, BY_LOSS, BY_LOSS_04, BY_LOSS_TO_0],
        [
            *(
                claim(NAMED[noise], than)
                for claim in (lower_loss, no_higher_loss)
                for than in (PRIORITY, ALL)
            ),
            *(ends_higher("Figure 2", NAMED[noise], than) for than in (PRIORITY, ALL)),
            faster_after_warmup("Figure 2", NAMED[noise]),
        ],
    )


EXPERIMENT = Experiment(
    title="FedALIGN, Figure 2: Synthetic(1, 1) with noisy free clients",
    panels=[
        *(panel(f"{noise} noise", noise) for noise in SKEWS),
        *(panel(f"{noise} noise, factors 0.5", noise, **MILD) for noise in SKEWS),
    ],
    columns=[LOSS, ACCURACY, mean_of("n_trained", "clients trained"), MODELS],
    draw=curves(
        ("global_loss", "training loss"), ("test_accuracy", "test accuracy"), warmup=WARMUP
    ),
    n_seeds=5,
    note=(
        "The paper names the noise generator's factors (2.5 for labels, 1 for irrelevant rows) and "
        "does not define it; the definition taken is that of `make_prioritized_synthetic`. What "
        "was tried besides: both factors at 0.5."
    ),
)

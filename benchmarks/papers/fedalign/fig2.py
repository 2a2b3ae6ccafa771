"""Figure 2: Synthetic(1, 1), 10 priority and 10 free clients at three levels of noise."""

from functools import partial

from benchmarks.papers.claims import Bound, Claim, Direction, final_mean
from benchmarks.papers.experiment import ACCURACY, LOSS, MODELS, Experiment, Panel, mean_of
from benchmarks.papers.fedalign._claims import ends_higher, faster_after_warmup
from benchmarks.papers.fedalign._images import (
    ALL,
    BY_ACCURACY,
    BY_LOSS,
    BY_LOSS_04,
    N_ROUNDS,
    PRIORITY,
    WARMUP,
    softmax_regression,
    strategies,
)
from benchmarks.papers.pictures import curves
from benchmarks.runs.problems import noisy_synthetic
from benchmarks.runs.settings import Setting

SKEWS = {"low": 0.5, "medium": 1.5, "high": 5.0}
NAMED = {"low": BY_LOSS, "medium": BY_LOSS, "high": BY_LOSS_04}  # with the eps the paper names
OTHER = {BY_LOSS: BY_LOSS_04, BY_LOSS_04: BY_LOSS}


def setting(noise: str, factor: float | None = None) -> Setting:
    """Return the setting at one level of noise; ``factor`` replaces the paper's two factors."""
    factors = {} if factor is None else {"label_noise": factor, "irrelevant": factor}
    return Setting(
        name=f"fedalign-synthetic-{noise}" + ("" if factor is None else f"-factor{factor:g}"),
        problem=partial(noisy_synthetic, skew=SKEWS[noise], **factors),
        net=partial(softmax_regression, 60, 10),
        training={"local_steps": 5},
        strategies=strategies(),
        n_rounds=N_ROUNDS,
    )


def loss_ratio(by: str, than: str):
    """Measure a strategy's final training loss over another's."""
    return lambda table: (
        final_mean(table, by, "global_loss") / final_mean(table, than, "global_loss")
    )


def lower_loss(by: str, than: str, place: str = "Figure 2", paper: str = "lower") -> Claim:
    """Claim that FedALIGN's final training loss is lower."""
    return Direction(
        words=f"{by}: lower training loss in the end than {than} (ratio)",
        place=place,
        measure=loss_ratio(by, than),
        more=False,
        neutral=1,
        form="{:.3f}",
        paper=paper,
    )


def no_higher_loss(by: str, than: str) -> Claim:
    """Require that a final training loss is at most another's."""
    return Bound(
        words=f"{by}: training loss in the end over that of {than}",
        measure=loss_ratio(by, than),
        limit=1,
        form="{:.3f}",
        paper="at most 1",
    )


def panel(noise: str, factor: float | None = None) -> Panel:
    return Panel(
        f"{noise} noise" + ("" if factor is None else f", factors {factor:g}"),
        setting(noise, factor),
        [PRIORITY, ALL, BY_ACCURACY, BY_LOSS, BY_LOSS_04],
        [
            *(
                claim(NAMED[noise], than)
                for claim in (lower_loss, no_higher_loss)
                for than in (PRIORITY, ALL)
            ),
            *(ends_higher("Figure 2", NAMED[noise], than) for than in (PRIORITY, ALL)),
            faster_after_warmup("Figure 2", NAMED[noise]),
            lower_loss(NAMED[noise], OTHER[NAMED[noise]], "Section 4", "the best eps"),
        ],
    )


def figure(title: str, panels: list[Panel], note: str) -> Experiment:
    """Return the figure for some levels and factors of noise."""
    return Experiment(
        title=f"FedALIGN, Figure 2: Synthetic(1, 1) with {title}",
        panels=panels,
        columns=[LOSS, ACCURACY, mean_of("n_trained", "clients trained"), MODELS],
        draw=curves(
            ("global_loss", "training loss"),
            ("global_loss", f"that above {PRIORITY}", PRIORITY),
            warmup=WARMUP,
        ),
        n_seeds=5,
        note=(
            "The paper names the noise generator's factors (2.5 for labels, 1 for irrelevant rows) "
            "and does not define it; the definition taken is that of `make_prioritized_synthetic`. "
            "Where 10.0 clients trained, almost no free client matched: FedALIGN is then training "
            f"on the 10 priority clients. {note}"
        ),
    )


EXPERIMENT = figure(
    "noisy free clients",
    [panel(noise) for noise in SKEWS],
    "fedalign-fig2-milder has less noise, with which some match.",
)

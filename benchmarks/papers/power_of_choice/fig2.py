"""Figure 2: quadratic objectives, K=30: speed against bias, and adapow-d."""

import numpy as np

from benchmarks.papers.claims import (
    Claim,
    Direction,
    Equal,
    Figure,
    NoHigher,
    final_mean,
    of_seeds,
)
from benchmarks.papers.experiment import Column, Experiment, Panel, final_of
from benchmarks.papers.pictures import curves
from benchmarks.papers.power_of_choice._quadratic import (
    ADAPOWD,
    FEW,
    RAND,
    QuadraticSetting,
    powd,
)

PLACE = "Figure 2"


def early(table, strategy):
    """Return each seed's mean of log(F - F*) over the first tenth of the rounds."""
    values = np.log(of_seeds(table, strategy, "global_gap"))
    n_rounds = values.index[-1] + 1
    return values[values.index < n_rounds / 10].mean().to_numpy()


def faster(strategy: str, than: str) -> Claim:
    """Claim that a strategy converges faster at first."""
    return Direction(
        words=f"{strategy}: faster than {than} (mean log gap over the first tenth of the rounds)",
        place=PLACE,
        measure=lambda table: early(table, strategy) - early(table, than),
        more=False,
        form="{:+.3f}",
        paper="faster",
    )


def as_fast(strategy: str, than: str) -> Claim:
    """Claim that two strategies are equally fast at first."""
    return Equal(
        words=f"{strategy}: as fast as {than} (mean log gap over the first tenth of the rounds)",
        place=PLACE,
        measure=lambda table: early(table, strategy) - early(table, than),
        tolerance=0.05,
        form="{:+.3f}",
        paper="nearly identical",
    )


def floors(strategy: str, than: str):
    """Measure the log of the ratio of two error floors."""
    return lambda table: np.log(
        final_mean(table, strategy, "global_gap") / final_mean(table, than, "global_gap")
    )


def higher_floor(strategy: str, than: str) -> Claim:
    """Claim that a strategy's error floor is above another's."""
    return Direction(
        words=f"{strategy}: higher error floor than {than} (log of the ratio)",
        place=PLACE,
        measure=floors(strategy, than),
        form="{:+.2f}",
        paper="above",
    )


NEGLIGIBLE = Equal(
    words=f"{powd(6)}: error floor as {RAND}'s (log of the ratio)",
    place=PLACE,
    measure=floors(powd(6), RAND),
    tolerance=0.05,
    form="{:+.2f}",
    paper="nearly negligible bias",
)
SAME_MINIMUM = NoHigher(
    words=f"{ADAPOWD}: error floor no higher than {RAND}'s (log of the ratio)",
    place=PLACE,
    measure=floors(ADAPOWD, RAND),
    form="{:+.2f}",
    paper="the same minimum",
)


def bias_gone(most: str) -> Claim:
    """Claim that adapow-d does not keep power-of-choice's final bias."""

    def left(table):
        rand = final_mean(table, RAND, "global_gap")
        biased = final_mean(table, most, "global_gap") - rand
        return (final_mean(table, ADAPOWD, "global_gap") - rand) / biased

    return Figure(
        words=f"{ADAPOWD}: share left of the bias that {most} ends with",
        place=PLACE,
        measure=left,
        claimed=0.01,
        neutral=1,
        form="{:.4f}",
        paper="none (we ask for at most 0.01)",
    )


def figure(setting: QuadraticSetting, *more: Claim) -> Experiment:
    """Return the figure for one K; both together take more than half an hour."""
    least, *_, most = setting.powds
    claims = [
        *(faster(name, RAND) for name in setting.powds),
        faster(most, least),
        as_fast(ADAPOWD, most),
        higher_floor(most, RAND),
        higher_floor(most, least),
        bias_gone(most),
        SAME_MINIMUM,
        *more,
    ]
    k = f"K={setting.n_clients}"
    return Experiment(
        title=f"Power-of-choice, Figure 2: quadratic objectives, {k}, C=0.1",
        panels=[Panel(k, setting, list(setting.strategies), claims)],
        columns=[
            Column("mean log gap, first tenth", early, "{:.3f}"),
            final_of("global_gap", "F - F* in the end", form="{:.5f}"),
        ],
        draw=curves(("global_gap", "F(w) - F*"), log=True),
        note=(
            "The local optima, arbitrary in the paper, are N(2, 1) here in each of 5 dimensions; "
            "all seeds share one draw of them. The paper does not state its number of rounds; in "
            f"{setting.n_rounds:,} adapow-d reaches d=m, and then rand's gap."
        ),
    )


EXPERIMENT = figure(FEW, NEGLIGIBLE)

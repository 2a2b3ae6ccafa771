"""Figure 3: the estimated skews rho-bar and rho-tilde / rho-bar of the quadratic objectives."""

import numpy as np

from benchmarks.papers.claims import Claim, Direction, Equal, of_seeds
from benchmarks.papers.experiment import Column, Experiment, Panel
from benchmarks.papers.pictures import bars
from benchmarks.papers.power_of_choice._quadratic import FEW, MANY, RAND, powd
from benchmarks.papers.power_of_choice._skew import SkewSetting

PLACE = "Figure 3"


def rho_bar(table, strategy):
    """Return each seed's lowest skew over the grid (equation 6)."""
    lowest = of_seeds(table, strategy, "lowest").min()
    return np.minimum(lowest, of_seeds(table, strategy, "at_optimum").min()).to_numpy()


def bias(table, strategy):
    """Return each seed's rho-tilde / rho-bar."""
    return of_seeds(table, strategy, "at_optimum").max().to_numpy() / rho_bar(table, strategy)


def larger(of, words: str, strategy: str, than: str) -> Claim:
    """Claim that an estimate is larger."""
    return Direction(
        words=f"{strategy}: {words} than {than}'s",
        place=PLACE,
        measure=lambda table: of(table, strategy) - of(table, than),
        form="{:+.3f}",
        paper="larger",
    )


SMALL_BIAS = Equal(
    words=f"{powd(15)}: rho-tilde / rho-bar as {RAND}'s",
    place=PLACE,
    measure=lambda table: bias(table, powd(15)) - bias(table, RAND),
    tolerance=0.05,
    form="{:+.3f}",
    paper="approximately identical",
)


def panel(quadratic, *more):
    least, *_, most = quadratic.powds
    return Panel(
        f"K={quadratic.n_clients}",
        SkewSetting.of(quadratic),
        [RAND, *quadratic.powds],
        [
            *(larger(rho_bar, "larger rho-bar", name, RAND) for name in quadratic.powds),
            larger(bias, "larger rho-tilde / rho-bar", most, least),
            *more,
        ],
    )


EXPERIMENT = Experiment(
    title="Power-of-choice, Figure 3: estimated selection skews",
    panels=[panel(FEW), panel(MANY, SMALL_BIAS)],
    columns=[
        Column("rho-bar", rho_bar, "{:.3f}"),
        Column("rho-tilde / rho-bar", bias, "{:.3f}"),
    ],
    draw=bars,
    note=(
        "Over 50 points at distances from w* up to that of the farthest local optimum or of the "
        "start, 10,000 cohorts each; the paper does not state its grid. All seeds share one draw "
        "of the objectives."
    ),
)

"""Figure 3: the estimated skews rho-bar and rho-tilde / rho-bar of the quadratic objectives."""

import numpy as np

from benchmarks.papers.claims import Claim, of_seeds
from benchmarks.papers.experiment import Column, Experiment, Panel
from benchmarks.papers.pictures import bars
from benchmarks.papers.power_of_choice._quadratic import FEW, MANY, RAND, powd
from benchmarks.papers.power_of_choice._skew import SkewSetting


def rho_bar(table, strategy):
    """Return each seed's least skew over the grid (equation 6)."""
    lowest = of_seeds(table, strategy, "lowest").min()
    return np.minimum(lowest, of_seeds(table, strategy, "at_optimum").min()).to_numpy()


def bias(table, strategy):
    """Return each seed's rho-tilde / rho-bar."""
    return of_seeds(table, strategy, "at_optimum").max().to_numpy() / rho_bar(table, strategy)


def larger(of, words: str, strategy: str, than: str) -> Claim:
    return Claim(
        f"{strategy}: {words} than {than}'s",
        "Figure 3",
        lambda table: of(table, strategy) - of(table, than),
        claimed=0,
        neutral=-0.05,
        strict=True,
        form="{:+.3f}",
        paper="larger",
    )


def panel(title, quadratic, candidates):
    return Panel(
        title,
        SkewSetting.of(quadratic),
        [RAND, *map(powd, candidates)],
        [
            *(larger(rho_bar, "larger rho-bar", powd(d), RAND) for d in candidates),
            larger(bias, "larger rho-tilde / rho-bar", powd(candidates[-1]), powd(candidates[0])),
        ],
    )


EXPERIMENT = Experiment(
    title="Power-of-choice, Figure 3: estimated selection skews",
    panels=[panel("K=30", FEW, (6, 15, 30)), panel("K=100", MANY, (15, 30, 100))],
    columns=[
        Column("rho-bar", rho_bar, "{:.3f}"),
        Column("rho-tilde / rho-bar", bias, "{:.3f}"),
    ],
    draw=bars,
    note=(
        "Over 50 points at distances from w* up to thrice the spread of the local optima, 10,000 "
        "cohorts each; the paper does not state its grid."
    ),
)

"""Figure 2: quadratic objectives, K=30 and 100: speed against bias, and adapow-d."""

import numpy as np

from benchmarks.papers.claims import Claim, in_the_end, of_seeds
from benchmarks.papers.experiment import Column, Experiment, Panel, end_of
from benchmarks.papers.pictures import curves
from benchmarks.papers.power_of_choice._quadratic import ADAPOWD, FEW, MANY, RAND, powd


def early(table, strategy):
    """Return each seed's mean log gap over the first fifth of the rounds."""
    values = np.log(of_seeds(table, strategy, "global_gap"))
    return values.iloc[: len(values) // 5].mean().to_numpy()


def faster(strategy: str, than: str) -> Claim:
    return Claim(
        f"{strategy}: converges faster than {than} (mean log gap over the first fifth)",
        "Figure 2",
        lambda table: early(table, strategy) - early(table, than),
        claimed=0,
        neutral=0.05,
        strict=True,
        form="{:+.3f}",
        paper="faster",
    )


def floor(strategy: str, than: str, above: bool) -> Claim:
    """Claim that a strategy's error floor is above another's, or is not."""
    return Claim(
        f"{strategy}: error floor {'above' if above else 'not above'} {than}'s (ratio)",
        "Figure 2",
        lambda table: (
            in_the_end(table, strategy, "global_gap") / in_the_end(table, than, "global_gap")
        ),
        claimed=1.0,
        neutral=0.95 if above else 1.5,
        strict=above,
        paper="above" if above else "the same",
    )


def panel(title, setting, candidates):
    most = candidates[-1]
    return Panel(
        title,
        setting,
        [RAND, *map(powd, candidates), ADAPOWD],
        [
            *(faster(powd(d), RAND) for d in candidates),
            faster(powd(most), powd(candidates[0])),
            faster(ADAPOWD, RAND),
            floor(powd(most), RAND, above=True),
            floor(powd(most), powd(candidates[0]), above=True),
            floor(ADAPOWD, RAND, above=False),
        ],
    )


EXPERIMENT = Experiment(
    title="Power-of-choice, Figure 2: quadratic objectives, C=0.1",
    panels=[panel("K=30", FEW, (6, 15, 30)), panel("K=100", MANY, (15, 30, 100))],
    columns=[
        Column("mean log gap, first fifth", early, "{:.3f}"),
        end_of("global_gap", "F - F* in the end", form="{:.5f}"),
    ],
    draw=curves(("global_gap", "F(w) - F*"), log=True),
)

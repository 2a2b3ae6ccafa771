"""Figure 4: Synthetic(1, 1), K=30, m in {1, 2, 3}."""

from functools import partial

from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.papers.claims import (
    Bound,
    Claim,
    Direction,
    Equal,
    Figure,
    NoHigher,
    final_gain,
    final_mean,
    ratio_to,
    rounds_to,
)
from benchmarks.papers.experiment import LOSS, TO_LOSS, Experiment, Panel
from benchmarks.papers.pictures import curves
from benchmarks.runs.problems import synthetic
from benchmarks.runs.settings import Setting
from skfed import PowerOfChoice, RandomSelector
from skfed.schedules import StepDecay

RAND, FEW, MANY, ADAPOWD = "rand", "pow-d, d=2m", "pow-d, d=10m", "adapow-d"
PLACE, K = "Figure 4", 30


def softmax_regression() -> NeuralNetClassifier:
    """Return 60-10 without bias, zero-initialised."""
    return NeuralNetClassifier(ZeroLinear, criterion=nn.CrossEntropyLoss, lr=0.05, batch_size=50)


class ZeroLinear(nn.Linear):
    """A linear layer without bias, zero-initialised."""

    def __init__(self):
        super().__init__(60, 10, bias=False)
        nn.init.zeros_(self.weight)


def setting(m: int, largest: float) -> Setting:
    """Return the setting at m clients a round; the learning rate is halved at 300 and 600."""
    return Setting(
        name=f"pow-synthetic-largest{largest:g}-m{m}",
        problem=partial(synthetic, largest=largest),
        net=softmax_regression,
        training={"local_steps": 30, "lr_schedule": StepDecay(0.05, 0.5, [300, 600])},
        strategies={
            RAND: {"selector": RandomSelector(m)},
            FEW: {"selector": PowerOfChoice(2 * m, m)},
            MANY: {"selector": PowerOfChoice(10 * m, m)},
            ADAPOWD: {"selector": PowerOfChoice(StepDecay(K, m / K, [0.5]), m)},
        },
        n_rounds=800,
    )


def to_loss(strategy: str, than: str):
    """Measure the share of another's rounds that a strategy needs to reach the loss 0.7."""
    return ratio_to(strategy, than, "global_loss", 0.7, falling=True)


def faster(strategy: str, share: float) -> Claim:
    """Claim that a strategy needs a share of random's rounds to reach the loss 0.7."""
    return Figure(
        words=f"{strategy}: rounds to loss 0.7 over those of {RAND}",
        place=PLACE,
        measure=to_loss(strategy, RAND),
        claimed=share,
        neutral=1,
        paper=f"{share:.2f}",
    )


def to_the_minimum(table):
    """Return the share of random's rounds that adapow-d needs to reach random's final loss."""
    minimum = final_mean(table, RAND, "global_loss")
    ours, theirs = (
        rounds_to(table, strategy, "global_loss", minimum, falling=True)
        for strategy in (ADAPOWD, RAND)
    )
    return ours / theirs


CLAIMS = [
    faster(MANY, 1 / 3),
    faster(FEW, 1 / 2),
    Figure(
        words=f"{ADAPOWD}: rounds to the loss {RAND} ends with, over those of {RAND}",
        place=PLACE,
        measure=to_the_minimum,
        claimed=1 / 3,
        neutral=1,
        paper="0.33",
    ),
    Equal(
        words=f"{ADAPOWD}: rounds to loss 0.7 over those of {MANY}",
        place=PLACE,
        measure=to_loss(ADAPOWD, MANY),
        neutral=1,
        tolerance=0.05,
        paper="similar",
    ),
    Bound(
        words=f"{ADAPOWD}: rounds to loss 0.7 over those of {RAND}",
        measure=to_loss(ADAPOWD, RAND),
        limit=0.5,
        paper="at most 0.5",
    ),
    Direction(
        words=f"{MANY}: slightly higher error floor than {RAND}",
        place=PLACE,
        measure=final_gain(MANY, RAND, "global_loss"),
        form="{:+.3f}",
        paper="higher",
    ),
    NoHigher(
        words=f"{ADAPOWD}: ends at {RAND}'s floor, or below",
        place=PLACE,
        measure=final_gain(ADAPOWD, RAND, "global_loss"),
        form="{:+.3f}",
        paper="the minimum",
    ),
]
EXPERIMENT = Experiment(
    title="Power-of-choice, Figure 4: Synthetic(1, 1)",
    panels=[
        Panel(
            f"m={m}" + f", no client above {largest:.0%}" * (largest < 1),
            setting(m, largest),
            [RAND, FEW, MANY, ADAPOWD],
            CLAIMS,
        )
        for largest in (1, 0.25)
        for m in (1, 2, 3)
    ],
    columns=[TO_LOSS, LOSS],
    draw=curves(("global_loss", "training loss"), log=True),
    n_seeds=5,
    note=(
        "The generator's client sizes have a long tail: in many draws one client holds half of all "
        "rows, and random selection by size trains little else. Each seed has a data set of its "
        "own: any draw in the first three panels, in the others a draw in which no client holds "
        "more than a quarter of the rows."
    ),
)

"""Figure 5: how many candidates, Fashion-MNIST, m=3."""

from benchmarks.papers.experiment import ACCURACY, LOSS, TO_60, Experiment, Panel
from benchmarks.papers.pictures import curves
from benchmarks.papers.power_of_choice._images import (
    AFL,
    LOWER_LR,
    LR,
    RAND,
    fashion_mnist,
    higher,
    more_accurate,
    powd,
)

PLACE = "Figure 5"
WHICH_D = {2: higher(PLACE, powd(15), powd(6)), 0.3: higher(PLACE, powd(6), powd(15))}
EXPERIMENT = Experiment(
    title="Power-of-choice, Figure 5: candidates d, C=0.03",
    panels=[
        Panel(
            f"alpha={alpha:g}, lr={lr:g}",
            fashion_mnist(alpha, lr),
            [RAND, powd(6), powd(9), powd(15), AFL],
            [
                more_accurate(PLACE, powd(6), 10),
                more_accurate(PLACE, powd(6), 5, AFL),
                WHICH_D[alpha],
            ],
        )
        for lr in (LR, LOWER_LR)
        for alpha in (2, 0.3)
    ],
    columns=[TO_60, ACCURACY, LOSS],
    draw=curves(("test_accuracy", "test accuracy"), ("global_loss", "training loss")),
)

"""Figure 8: intermittent availability; two halves of the clients alternate."""

from functools import partial

from benchmarks.papers.power_of_choice._figure import ImageFigure
from benchmarks.papers.power_of_choice._images import (
    LOWER_LR,
    LR,
    RAND,
    fashion_mnist,
    more_accurate,
    powd,
    rpowd,
)

PLACE = "Figure 8"
FIGURE = ImageFigure(
    "Figure 8: intermittent availability",
    partial(fashion_mnist, intermittent=True),
    [RAND, powd(6), rpowd(50)],
    {
        2: [more_accurate(PLACE, powd(6), 10), more_accurate(PLACE, rpowd(50), 5)],
        3: [more_accurate(PLACE, powd(6), 10), more_accurate(PLACE, rpowd(50), 10)],
    },
    note=(
        "Two fixed halves of the clients are available in alternate rounds, each less 10% of it; "
        "the paper's code leaves out 20%. rpow-d's 50 candidates are then all available clients."
    ),
)
EXPERIMENT = FIGURE.at(LR, LOWER_LR)

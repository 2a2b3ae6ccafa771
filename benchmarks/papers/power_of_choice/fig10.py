"""Figure 10: the variants, EMNIST's set-up (K=500, m=15) on MNIST."""

from benchmarks.papers.power_of_choice._figure import ImageFigure
from benchmarks.papers.power_of_choice._images import (
    AFL,
    LR,
    RAND,
    as_good,
    cpowd,
    higher,
    mnist,
    powd,
    rpowd,
)

PLACE = "Figure 10"
FIGURE = ImageFigure(
    "Figure 10: cheaper variants, K=500, EMNIST's set-up on MNIST",
    mnist,
    [RAND, powd(30), cpowd(30), rpowd(250), AFL],
    {
        2: [
            as_good(PLACE, cpowd(30), powd(30)),
            *(higher(PLACE, name, rpowd(250)) for name in (powd(30), cpowd(30))),
        ],
        0.3: [as_good(PLACE, name, powd(30)) for name in (cpowd(30), rpowd(250))],
    },
    note="EMNIST is not available here; its set-up is run on MNIST's digits.",
)
EXPERIMENT = FIGURE.at(LR)

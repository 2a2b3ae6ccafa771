"""Figure 11: ten clients a round; Fashion-MNIST."""

from functools import partial

from benchmarks.papers.power_of_choice._figure import ImageFigure
from benchmarks.papers.power_of_choice._images import (
    AFL,
    LOWER_LR,
    LR,
    RAND,
    as_good,
    cpowd,
    fashion_mnist,
    higher,
    more_accurate,
    powd,
    rpowd,
)

PLACE = "Figure 11"
FIGURE = ImageFigure(
    "Figure 11: C=0.1",
    partial(fashion_mnist, m=10),
    [RAND, powd(20), cpowd(20), rpowd(50), AFL],
    {
        2: [
            more_accurate(PLACE, powd(20), 15),
            higher(PLACE, cpowd(20)),
            higher(PLACE, cpowd(20), AFL),
            as_good(PLACE, rpowd(50), AFL),
        ],
        0.3: [
            *(more_accurate(PLACE, name, 5) for name in (powd(20), cpowd(20), rpowd(50))),
            *(higher(PLACE, name, AFL) for name in (powd(20), cpowd(20), rpowd(50))),
        ],
    },
)
EXPERIMENT = FIGURE.at(LR, LOWER_LR)

"""Figure 6: the variants that compute or communicate less; Fashion-MNIST, m=3."""

from benchmarks.papers.power_of_choice._figure import ImageFigure
from benchmarks.papers.power_of_choice._images import (
    AFL,
    LOWER_LR,
    LR,
    RAND,
    as_good,
    cpowd,
    fashion_mnist,
    faster_loss,
    higher,
    more_accurate,
    powd,
    rpowd,
)

PLACE = "Figure 6"
FIGURE = ImageFigure(
    "Figure 6: cheaper variants, C=0.03",
    fashion_mnist,
    [RAND, powd(6), cpowd(6), rpowd(50), AFL],
    {
        2: [
            more_accurate(PLACE, rpowd(50), 5),
            more_accurate(PLACE, cpowd(6), 6),
            *(higher(PLACE, powd(6), name) for name in (cpowd(6), rpowd(50))),
            *(higher(PLACE, name, AFL) for name in (powd(6), cpowd(6), rpowd(50))),
        ],
        0.3: [
            *(more_accurate(PLACE, name, 10) for name in (powd(6), cpowd(6), rpowd(50))),
            *(as_good(PLACE, name, powd(6)) for name in (cpowd(6), rpowd(50))),
            *(higher(PLACE, name, AFL) for name in (powd(6), cpowd(6), rpowd(50))),
            *(faster_loss(PLACE, name, AFL) for name in (powd(6), cpowd(6), rpowd(50))),
        ],
    },
)
EXPERIMENT = FIGURE.at(LR, LOWER_LR)

"""Figure 14: 100 local steps, the number of candidates; Fashion-MNIST, m=3."""

from functools import partial

from benchmarks.papers.power_of_choice._figure import ImageFigure
from benchmarks.papers.power_of_choice._images import (
    AFL,
    LR,
    RAND,
    as_good,
    fashion_mnist,
    more_accurate,
    powd,
)

PLACE = "Figure 14"
FIGURE = ImageFigure(
    "Figure 14: 100 local steps",
    partial(fashion_mnist, batch_size=64, tau=100),
    [RAND, powd(6), powd(9), powd(15), AFL],
    {
        2: [more_accurate(PLACE, powd(6), 10)],
        0.3: [as_good(PLACE, powd(6), RAND)],
    },
)
EXPERIMENT = FIGURE.at(LR)

"""Figure 12: batches of 128, the number of candidates; Fashion-MNIST, m=3."""

from functools import partial

from benchmarks.papers.power_of_choice._figure import ImageFigure
from benchmarks.papers.power_of_choice._images import (
    AFL,
    LOWER_LR,
    LR,
    RAND,
    fashion_mnist,
    more_accurate,
    powd,
)

PLACE = "Figure 12"
CLAIMS = [more_accurate(PLACE, powd(6), 10), more_accurate(PLACE, powd(6), 5, AFL)]
FIGURE = ImageFigure(
    "Figure 12: batches of 128",
    partial(fashion_mnist, batch_size=128, tau=30),
    [RAND, powd(6), powd(9), powd(15), AFL],
    {2: CLAIMS, 0.3: CLAIMS},
)
EXPERIMENT = FIGURE.at(LR, LOWER_LR)

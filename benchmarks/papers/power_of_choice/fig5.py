"""Figure 5: the number of candidates; Fashion-MNIST, m=3."""

from benchmarks.papers.power_of_choice._figure import ImageFigure
from benchmarks.papers.power_of_choice._images import (
    AFL,
    LOWER_LR,
    LR,
    RAND,
    fashion_mnist,
    faster_loss,
    higher,
    more_accurate,
    powd,
)

PLACE = "Figure 5"
CLAIMS = [
    more_accurate(PLACE, powd(6), 10),
    more_accurate(PLACE, powd(6), 5, AFL),
    faster_loss(PLACE, powd(6)),
]
FIGURE = ImageFigure(
    "Figure 5: candidates d, C=0.03",
    fashion_mnist,
    [RAND, powd(6), powd(9), powd(15), AFL],
    {
        2: [*CLAIMS, higher(PLACE, powd(15), powd(6))],
        0.3: [*CLAIMS, higher(PLACE, powd(6), powd(15))],
    },
)
EXPERIMENT = FIGURE.at(LR, LOWER_LR)

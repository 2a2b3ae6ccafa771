"""Figure 13: batches of 128, all variants; Fashion-MNIST, m=3."""

from functools import partial

from benchmarks.papers.power_of_choice._figure import ImageFigure
from benchmarks.papers.power_of_choice._images import (
    AFL,
    LOWER_LR,
    LR,
    RAND,
    cpowd,
    fashion_mnist,
    higher,
    powd,
    rpowd,
)

PLACE = "Section 5, on Figure 12"
CLAIMS = [higher(PLACE, name) for name in (powd(6), cpowd(6), rpowd(50))]
FIGURE = ImageFigure(
    "Figure 13: batches of 128, all variants",
    partial(fashion_mnist, batch_size=128, tau=30),
    [RAND, powd(6), cpowd(6), rpowd(50), AFL],
    {2: CLAIMS, 0.3: CLAIMS},
)
EXPERIMENT = FIGURE.at(LR, LOWER_LR)

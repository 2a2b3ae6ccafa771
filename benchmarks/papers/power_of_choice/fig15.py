"""Figure 15: 100 local steps, all variants; Fashion-MNIST, m=3."""

from functools import partial

from benchmarks.papers.power_of_choice._figure import ImageFigure
from benchmarks.papers.power_of_choice._images import (
    AFL,
    LR,
    RAND,
    as_good,
    cpowd,
    fashion_mnist,
    higher,
    powd,
    rpowd,
)

PLACE = "Section 5, on Figure 14"
FIGURE = ImageFigure(
    "Figure 15: 100 local steps, all variants",
    partial(fashion_mnist, batch_size=64, tau=100),
    [RAND, powd(6), cpowd(6), rpowd(50), AFL],
    {
        2: [higher(PLACE, name) for name in (powd(6), cpowd(6), rpowd(50))],
        0.3: [as_good(PLACE, powd(6), RAND)],
    },
)
EXPERIMENT = FIGURE.at(LR)

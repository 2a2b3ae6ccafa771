"""Figure 9: the number of candidates, EMNIST's set-up (K=500, m=15) on MNIST."""

from benchmarks.papers.power_of_choice._figure import ImageFigure
from benchmarks.papers.power_of_choice._images import (
    AFL,
    LR,
    RAND,
    as_good,
    faster,
    higher,
    mnist,
    powd,
)

PLACE = "Figure 9"
CLAIMS = [higher(PLACE, powd(d)) for d in (30, 45, 75)]
FIGURE = ImageFigure(
    "Figure 9: K=500, EMNIST's set-up on MNIST",
    mnist,
    [RAND, powd(30), powd(45), powd(75), AFL],
    {2: [*CLAIMS, as_good(PLACE, AFL, powd(30)), faster(PLACE, powd(30), AFL)], 0.3: CLAIMS},
    note="EMNIST is not available here; its set-up is run on MNIST's digits.",
)
EXPERIMENT = FIGURE.at(LR)

"""Figure 14: 100 local steps, the number of candidates; Fashion-MNIST, m=3."""

from functools import partial

from benchmarks.papers.experiment import Experiment
from benchmarks.papers.power_of_choice._figure import figure
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


def at(lr: float) -> Experiment:
    """Return the figure at one learning rate; both together take more than half an hour."""
    return figure(
        f"Power-of-choice, Figure 14: 100 local steps, lr={lr:g}",
        partial(fashion_mnist, batch_size=64, tau=100),
        [RAND, powd(6), powd(9), powd(15), AFL],
        {
            2: [more_accurate(PLACE, powd(6), 10)],
            0.3: [as_good(PLACE, powd(6), RAND)],
        },
        rates=[lr],
    )


EXPERIMENT = at(LR)

"""Figure 15: 100 local steps, all variants; Fashion-MNIST, m=3."""

from functools import partial

from benchmarks.papers.experiment import Experiment
from benchmarks.papers.power_of_choice._figure import figure
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


def at(lr: float) -> Experiment:
    """Return the figure at one learning rate; both together take more than half an hour."""
    return figure(
        f"Power-of-choice, Figure 15: 100 local steps, all variants, lr={lr:g}",
        partial(fashion_mnist, batch_size=64, tau=100),
        [RAND, powd(6), cpowd(6), rpowd(50), AFL],
        {
            2: [higher(PLACE, name) for name in (powd(6), cpowd(6), rpowd(50))],
            0.3: [as_good(PLACE, powd(6), RAND)],
        },
        rates=[lr],
    )


EXPERIMENT = at(LR)

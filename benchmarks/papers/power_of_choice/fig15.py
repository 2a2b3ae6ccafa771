"""Figure 15: 100 local steps, all variants; Fashion-MNIST, m=3."""

from functools import partial

from benchmarks.papers.power_of_choice._images import (
    AFL,
    RAND,
    as_good,
    cpowd,
    fashion_mnist,
    higher,
    powd,
    rpowd,
)
from benchmarks.papers.power_of_choice._variants import figure

PLACE = "Figure 15"
EXPERIMENT = figure(
    "Power-of-choice, Figure 15: 100 local steps, all variants",
    partial(fashion_mnist, batch_size=64, tau=100),
    [RAND, powd(6), cpowd(6), rpowd(50), AFL],
    {
        2: [
            higher(f"{PLACE}, read off its curves", name) for name in (powd(6), cpowd(6), rpowd(50))
        ],
        0.3: [as_good(PLACE, powd(6), RAND)],
    },
)

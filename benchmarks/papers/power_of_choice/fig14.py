"""Figure 14: 100 local steps, how many candidates; Fashion-MNIST, m=3."""

from functools import partial

from benchmarks.papers.power_of_choice._images import (
    AFL,
    RAND,
    fashion_mnist,
    higher,
    no_gain,
    powd,
)
from benchmarks.papers.power_of_choice._variants import figure

PLACE = "Figure 14"
EXPERIMENT = figure(
    "Power-of-choice, Figure 14: 100 local steps",
    partial(fashion_mnist, batch_size=64, tau=100),
    [RAND, powd(6), powd(9), powd(15), AFL],
    {
        2: [higher(PLACE, powd(6)), higher(PLACE, powd(6), AFL)],
        0.3: [no_gain(PLACE, powd(6))],
    },
)

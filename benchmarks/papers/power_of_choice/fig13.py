"""Figure 13: batches of 128, all variants; Fashion-MNIST, m=3."""

from functools import partial

from benchmarks.papers.power_of_choice._figure import figure
from benchmarks.papers.power_of_choice._images import (
    AFL,
    RAND,
    cpowd,
    fashion_mnist,
    higher,
    powd,
    rpowd,
)

PLACE = "Section 5, on Figure 12"
CLAIMS = [higher(PLACE, name) for name in (powd(6), cpowd(6), rpowd(50))]
EXPERIMENT = figure(
    "Power-of-choice, Figure 13: batches of 128, all variants",
    partial(fashion_mnist, batch_size=128, tau=30),
    [RAND, powd(6), cpowd(6), rpowd(50), AFL],
    {2: CLAIMS, 0.3: CLAIMS},
)

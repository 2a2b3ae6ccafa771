"""Figure 15 at the learning rate at which a reproduction found the paper's ratios."""

from benchmarks.papers.power_of_choice._images import LOWER_LR
from benchmarks.papers.power_of_choice.fig15 import FIGURE

EXPERIMENT = FIGURE.at(LOWER_LR)

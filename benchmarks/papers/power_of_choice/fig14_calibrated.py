"""Figure 14 at the calibrated learning rate."""

from benchmarks.papers.power_of_choice.fig14 import FIGURE

EXPERIMENT = FIGURE.at_the_calibrated_rate()

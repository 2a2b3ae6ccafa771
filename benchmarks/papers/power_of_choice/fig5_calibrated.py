"""Figure 5 at the calibrated learning rate."""

from benchmarks.papers.power_of_choice.fig5 import FIGURE

EXPERIMENT = FIGURE.at_the_calibrated_rate()

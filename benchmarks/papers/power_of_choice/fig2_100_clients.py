"""Figure 2 with K=100."""

from benchmarks.papers.power_of_choice._quadratic import MANY
from benchmarks.papers.power_of_choice.fig2 import figure

EXPERIMENT = figure(MANY)

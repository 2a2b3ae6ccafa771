"""Figure 2 with less noise than the paper's factors give, so that free clients match."""

from benchmarks.papers.fedalign.fig2 import SKEWS, figure, panel

EXPERIMENT = figure(
    "milder noise",
    [panel(noise, factor) for factor in (0.5, 0.2) for noise in SKEWS],
    "Here both factors are 0.5, or 0.2.",
)

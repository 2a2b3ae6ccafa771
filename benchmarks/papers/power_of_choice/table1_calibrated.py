"""Table 1 at the calibrated learning rate."""

from benchmarks.papers.power_of_choice._table import at_the_calibrated_rate
from benchmarks.papers.power_of_choice.table1 import TABLE

EXPERIMENT = at_the_calibrated_rate(TABLE)

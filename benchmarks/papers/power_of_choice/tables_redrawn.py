"""Tables 1 and 2 with a partition for each seed, as in the paper's text."""

from benchmarks.papers.power_of_choice import table1, table2
from benchmarks.papers.power_of_choice._images import LOWER_LR
from benchmarks.papers.power_of_choice._table import comparison

EXPERIMENT = comparison(
    "Tables 1 and 2 with a partition a seed",
    [table.TABLE.panel(LOWER_LR, redrawn=True) for table in (table1, table2)],
    n_seeds=5,
    note=(
        "Each seed has a partition of its own, as in the paper's text. The saving depends on the "
        "partition: compare the spread with that of Tables 1 and 2."
    ),
)

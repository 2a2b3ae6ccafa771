"""Table 1: rounds to 60%, time and accuracy at alpha 0.3, m=3 against random's m=10."""

from benchmarks.papers.power_of_choice._table import Table, at_three_rates

TABLE = Table(
    place="Table 1",
    alpha=0.3,
    theirs={
        "rand, C=0.1": ("172", "0.43", "71.21 ± 2.41"),
        "rand": ("234 (1.36)", "0.36 (0.85)", "64.87 ± 1.97"),
        "pow-d, d=6": ("89 (0.52)", "0.48 (1.13)", "76.47 ± 0.87"),
        "cpow-d, d=6": ("80 (0.47)", "0.37 (0.88)", "76.63 ± 0.79"),
        "rpow-d, d=50": ("98 (0.57)", "0.37 (0.85)", "76.56 ± 1.00"),
        "afl": ("121 (0.70)", "0.36 (0.84)", "73.28 ± 1.05"),
    },
    ratios={"pow-d, d=6": 0.52, "cpow-d, d=6": 0.47, "rpow-d, d=50": 0.57, "afl": 0.70},
    points=5,
    bound=0.7,
)
EXPERIMENT = at_three_rates(TABLE)

"""Table 2: rounds to 60%, time and accuracy at alpha 2, m=3 against random's m=10."""

from benchmarks.papers.power_of_choice._table import Table, at_three_rates

TABLE = Table(
    place="Table 2",
    alpha=2,
    theirs={
        "rand, C=0.1": ("135", "0.42", "63.50 ± 2.74"),
        "rand": ("136 (1.01)", "0.36 (0.85)", "66.03 ± 1.47"),
        "pow-d, d=6": ("82 (0.61)", "0.46 (1.08)", "73.81 ± 1.14"),
        "cpow-d, d=6": ("89 (0.66)", "0.38 (0.88)", "73.36 ± 1.17"),
        "rpow-d, d=50": ("99 (0.73)", "0.36 (0.86)", "72.52 ± 0.89"),
        "afl": ("131 (0.97)", "0.36 (0.85)", "70.64 ± 1.99"),
    },
    ratios={"pow-d, d=6": 0.61, "cpow-d, d=6": 0.66, "rpow-d, d=50": 0.73, "afl": 0.97},
    points=10,
    bound=0.85,
)
EXPERIMENT = at_three_rates(TABLE)

"""Tables 1 and 2: seconds a round, predicted by devices that are fitted to random selection."""

from benchmarks.papers.claims import Direction
from benchmarks.papers.experiment import MODELS, Experiment, Panel
from benchmarks.papers.pictures import bars
from benchmarks.papers.power_of_choice import table1, table2
from benchmarks.papers.power_of_choice._images import CALIBRATED_LR, RAND, RAND_10, strategies
from benchmarks.papers.power_of_choice._table import Table
from benchmarks.papers.power_of_choice._time import (
    SIMULATED,
    Printed,
    clocked,
    computing,
    seconds_a_round,
)
from skfed import RandomSelector

# Of benchmarks/papers/seconds.md, from the two seconds of random selection in Table 1.
ROWS_PER_SECOND, SPREAD = 6700.0, 0.26
N_ROUNDS = 60
# Without replacement: a client drawn twice trains twice on its device, and even on equal devices
# rounds of ten would take longer beside those of three than they do in the paper (seconds.md).
STRATEGIES = strategies(3, 100) | {
    RAND: {"selector": RandomSelector(3, replace=False)},
    RAND_10: {"selector": RandomSelector(10, replace=False)},
}


def printed(table: Table, strategy: str) -> str:
    """Return the paper's seconds of a round, as text."""
    return table.theirs[strategy][1]


def as_printed(table: Table, strategy: str) -> Printed:
    """Claim that a round takes the seconds of the paper's table."""
    seconds = float(printed(table, strategy).split()[0])
    return Printed(
        words=f"{strategy}: seconds a round",
        place=table.place,
        measure=lambda results: seconds_a_round(results, strategy),
        neutral=seconds,
        tolerance=0.05,
        form="{:.3f}",
        paper=f"{seconds:.2f}",
    )


def than_random(table: Table, strategy: str, more: bool) -> Direction:
    """Claim that a round takes more, or less, time than one of random selection of ten."""
    return Direction(
        words=f"{strategy}: seconds a round over those of {RAND_10}",
        place=table.place,
        measure=lambda results: (
            seconds_a_round(results, strategy) / seconds_a_round(results, RAND_10)
        ),
        more=more,
        neutral=1,
        paper="more" if more else "less",
    )


def panel(table: Table) -> Panel:
    """Return the panel of a table; in Table 1 random selection is fitted, so it has no claim."""
    powd, cpowd, rpowd, afl = table.ratios
    fitted = (RAND, RAND_10) if table is table1.TABLE else ()
    return Panel(
        f"alpha={table.alpha:g}, lr={CALIBRATED_LR:g}",
        clocked("time", table.alpha, computing(ROWS_PER_SECOND, SPREAD), STRATEGIES, N_ROUNDS),
        list(table.theirs),
        [
            *(as_printed(table, name) for name in table.theirs if name not in fitted),
            than_random(table, powd, more=True),
            *(than_random(table, name, more=False) for name in (cpowd, rpowd, afl)),
        ],
        {name: {SIMULATED.heading: printed(table, name)} for name in table.theirs},
    )


EXPERIMENT = Experiment(
    title="Power-of-choice, Tables 1 and 2: seconds a round",
    panels=[panel(table) for table in (table1.TABLE, table2.TABLE)],
    columns=[SIMULATED, MODELS],
    draw=bars,
    n_seeds=3,
    baseline=RAND_10,
    note=(
        f"Seconds are simulated. The devices train {ROWS_PER_SECOND:,.0f} rows a second (the "
        f"median; a standard deviation of {SPREAD:g} of the logarithm), and messages take no time, "
        "as the paper counts computation alone. Both numbers are fitted to the two seconds of "
        "random selection in Table 1, 0.36 and 0.43 (seconds.md); all others are predictions. A "
        "row of a poll takes a third of a trained one. A claim on seconds holds within a standard "
        "error and half of the last printed digit, and partly within 0.05 s. Random selection is "
        "without replacement, as clients drawn twice would train twice on one device."
    ),
)

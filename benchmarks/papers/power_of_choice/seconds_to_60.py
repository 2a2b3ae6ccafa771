"""Simulated seconds to 60% on devices that differ, alone and with a deadline; not in the paper."""

from benchmarks.papers.claims import Direction
from benchmarks.papers.experiment import ACCURACY, TO_60, Experiment, Panel
from benchmarks.papers.pictures import curves_by_seconds
from benchmarks.papers.power_of_choice._images import (
    AFL,
    RAND,
    cpowd,
    powd,
    rpowd,
    strategies,
)
from benchmarks.papers.power_of_choice._time import (
    SECONDS_TO_60,
    SIMULATED,
    clocked,
    seconds_over,
)
from skfed import PowerOfChoice
from skfed.devices import LognormalDevices
from skfed.schedules import StepDecay

ADAPOWD, DEADLINE, N_ROUNDS = "adapow-d", 10.0, 250
# A median client trains for about 5 seconds: 1920 rows, a model of 210 kB down and up.
DEVICES = LognormalDevices(
    500.0,
    1e6,
    2.5e5,
    latency=0.1,
    rows_sigma=1.0,
    bytes_down_sigma=1.0,
    bytes_up_sigma=1.0,
    correlation=0.5,
    jitter=0.1,
)
ALONE = {
    **{name: strategies(3, 100)[name] for name in (RAND, powd(6), cpowd(6), rpowd(50))},
    # As in the paper's Figure 4: all clients for half of the rounds, then m.
    ADAPOWD: {"selector": PowerOfChoice(StepDecay(100, 0.03, [0.5]), 3)},
    AFL: strategies(3, 100)[AFL],
}


def late(strategy: str) -> str:
    """Return the name of a strategy with the deadline."""
    return f"{strategy}, deadline"


SETTING = clocked(
    "devices",
    0.3,
    DEVICES,
    ALONE | {late(name): {**given, "deadline": DEADLINE} for name, given in ALONE.items()},
    N_ROUNDS,
)


def sooner(strategy: str, than: str) -> Direction:
    """Claim that a strategy takes fewer simulated seconds to 60% than another."""
    return Direction(
        words=f"{strategy}: seconds to 60% over those of {than}",
        place="not in the paper",
        measure=seconds_over(strategy, than, 0.6),
        more=False,
        neutral=1,
        paper="less",
    )


EXPERIMENT = Experiment(
    title="Power-of-choice: seconds to 60% on devices that differ",
    panels=[
        Panel(
            "alone",
            SETTING,
            list(ALONE),
            [sooner(name, RAND) for name in ALONE if name != RAND],
        ),
        Panel(
            f"deadline of {DEADLINE:g} s",
            SETTING,
            [late(name) for name in ALONE],
            [
                *(sooner(late(name), name) for name in ALONE),
                *(sooner(late(name), late(RAND)) for name in ALONE if name != RAND),
            ],
        ),
    ],
    columns=[SECONDS_TO_60, TO_60, SIMULATED, ACCURACY],
    draw=curves_by_seconds,
    note=(
        "Fashion-MNIST, alpha=0.3, C=0.03, at the calibrated learning rate of 0.0003; seconds are "
        f"simulated. The median device trains {DEVICES.rows_per_second:g} rows a second and "
        "receives 1 MB and sends 0.25 MB; the logarithms have a standard deviation of 1 and a "
        "correlation of 0.5. adapow-d polls all 100 clients for half of the "
        f"{N_ROUNDS} rounds, and then as many as it selects. With the deadline each poll and each "
        f"training ends after {DEADLINE:g} s, without those that are late."
    ),
)

"""Claims that several of FedALIGN's figures make."""

from benchmarks.papers.claims import POINTS, Bound, Claim, Direction, final_gain, gain_over
from benchmarks.papers.fedalign._images import ALL, BY_ACCURACY, BY_LOSS, PRIORITY, WARMUP

AFTERWARDS = WARMUP, WARMUP + 0.2  # the 40 of 200 rounds after the warm-up
SHARDS = (
    "EMNIST is not available here: its set-up (600 shards, 784-200-200) is run on MNIST, whose "
    "shards have 100 images instead of EMNIST's 180. A client has 5 of them, and so 41% of the "
    "classes, as with EMNIST's 24 (fedalign-fig1-24-shards has 24)."
)


PARTICIPATION = (
    "FedALIGN and the baseline on priority clients draw these by size with replacement (appendix "
    "A.4, equation 56); the experiment's text (C.3) has both groups drawn uniformly, the authors' "
    "code without replacement. The baseline on all takes a uniform sample of all clients."
)


def ends_higher(place: str, by: str, than: str = PRIORITY) -> Claim:
    """Claim that FedALIGN's final accuracy is higher."""
    return Direction(
        words=f"{by}: higher final accuracy than {than}",
        place=place,
        measure=final_gain(by, than, "test_accuracy", 100),
        form=POINTS,
        paper="higher",
    )


def faster_after_warmup(place: str, by: str) -> Claim:
    """Claim that FedALIGN is more accurate after the warm-up."""
    return Direction(
        words=f"{by}: ahead of {PRIORITY} in the mean over the 40 rounds after the warm-up",
        place=place,
        measure=gain_over(by, PRIORITY, "test_accuracy", *AFTERWARDS, 100),
        form=POINTS,
        paper="clear increase of the rate",
    )


def all_deteriorates(place: str) -> Claim:
    """Claim that FedAvg on all is less accurate after the warm-up."""
    return Direction(
        words=f"FedAvg on all: behind {PRIORITY} in the mean over the 40 rounds after the warm-up",
        place=place,
        measure=gain_over(ALL, PRIORITY, "test_accuracy", *AFTERWARDS, 100),
        more=False,
        form=POINTS,
        paper="deterioration",
    )


def advantage(place: str) -> list[Claim]:
    """Return the claims of the appendix's figures: FedALIGN is faster, and better than both."""
    return [
        *(faster_after_warmup(place, by) for by in (BY_ACCURACY, BY_LOSS)),
        *(
            ends_higher(place, by, than)
            for than in (PRIORITY, ALL)
            for by in (BY_ACCURACY, BY_LOSS)
        ),
    ]


def bounds_of_figure_1() -> list[Claim]:
    """Return our own bounds for Figure 1 on Fashion-MNIST."""
    return [
        Bound(
            words=f"FedAvg on all: at least 5 points behind {PRIORITY} after the warm-up",
            measure=gain_over(ALL, PRIORITY, "test_accuracy", *AFTERWARDS, 100),
            limit=-5,
            form=POINTS,
            paper="-5.0 points",
        ),
        Bound(
            words=f"{BY_ACCURACY}: ends no more than 0.5 points behind {PRIORITY}",
            measure=final_gain(BY_ACCURACY, PRIORITY, "test_accuracy", 100),
            limit=-0.5,
            at_most=False,
            form=POINTS,
            paper="-0.5 points",
        ),
    ]

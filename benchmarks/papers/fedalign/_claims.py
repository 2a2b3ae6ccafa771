"""The claims that FedALIGN's figures make alike."""

from benchmarks.papers.claims import Claim, gain_in_the_end, gain_over
from benchmarks.papers.fedalign._images import ALL, BY_ACCURACY, BY_LOSS, PRIORITY, WARMUP

POINTS = "{:+.1f} points"


def ends_higher(place: str, by: str, than: str = PRIORITY) -> Claim:
    """Claim that FedALIGN's final accuracy is higher."""
    return Claim(
        f"{by}: higher final accuracy than {than}",
        place,
        gain_in_the_end(by, than, "test_accuracy", 100),
        claimed=0,
        neutral=-0.5,
        strict=True,
        form=POINTS,
        paper="higher",
    )


def faster_after_warmup(place: str, by: str) -> Claim:
    """Claim that FedALIGN is ahead in the 40 of 200 rounds after the warm-up."""
    return Claim(
        f"{by}: clear increase of the rate after the warm-up (mean over the next 40 rounds, "
        f"against {PRIORITY})",
        place,
        gain_over(by, PRIORITY, "test_accuracy", WARMUP, WARMUP + 0.2, 100),
        claimed=0,
        neutral=-0.5,
        strict=True,
        form=POINTS,
        paper="ahead",
    )


def all_deteriorates(place: str) -> Claim:
    """Claim that FedAvg on all falls after the warm-up."""
    return Claim(
        "deterioration of FedAvg on all after the warm-up (mean over the next 40 rounds, against "
        f"{PRIORITY})",
        place,
        gain_over(ALL, PRIORITY, "test_accuracy", WARMUP, WARMUP + 0.2, 100),
        claimed=0,
        neutral=0.5,
        strict=True,
        form=POINTS,
        paper="behind",
    )


def main_claims(place: str) -> list[Claim]:
    """Return the three claims of Figure 1, for both ways of matching."""
    return [
        all_deteriorates(place),
        *(faster_after_warmup(place, by) for by in (BY_ACCURACY, BY_LOSS)),
        *(ends_higher(place, by) for by in (BY_ACCURACY, BY_LOSS)),
        *(ends_higher(place, by, ALL) for by in (BY_ACCURACY, BY_LOSS)),
    ]

"""The kinds of exchanges, and all in which they differ. A new kind is an entry here."""

from dataclasses import dataclass

from skfed.utils._seeding import Purpose


@dataclass(frozen=True)
class Kind:
    """A kind of exchange."""

    name: str  # in tables
    done: str  # what a client that has answered has done, in pictures
    rows_as_one: int = 1  # rows that take a client the time of one that it trains on
    trains: bool = False  # whether clients train, and so have an update
    evaluates: bool = False  # whether clients evaluate models
    has_deadline: bool = True  # else all clients are waited for
    has_goal: bool = False  # whether the report goal ends it
    noise: Purpose | None = None  # of the loss that a client sends; None: it sends none


STATISTICS = Kind("statistics", "sent statistics", has_deadline=False)
#: The rows of a poll have no backward pass.
POLL = Kind("poll", "polled", rows_as_one=3, evaluates=True, noise=Purpose.POLL_NOISE)
TRAINING = Kind("training", "trained", trains=True, has_goal=True, noise=Purpose.LOSS_NOISE)
#: Of a copy of the model, which is thrown away.
TRIAL = Kind("trial", "trained on trial", trains=True, noise=Purpose.TRIAL_LOSS_NOISE)
SKETCH = Kind("sketch", "sent a sketch")
#: The two phases of a rule with ``admit``: a training without its update, and the update.
REPORT = Kind("report", "trained", trains=True, has_goal=True, noise=Purpose.LOSS_NOISE)
UPLOAD = Kind("upload", "uploaded")
#: Of the models that some of the round's updates make, after the round.
VALUATION = Kind("valuation", "evaluated subsets", rows_as_one=3, evaluates=True)
#: Of the new model, on rows that clients keep aside, after the round.
EVALUATION = Kind("evaluation", "evaluated", rows_as_one=3, evaluates=True)

_ALL = STATISTICS, POLL, SKETCH, TRIAL, TRAINING, REPORT, UPLOAD, VALUATION, EVALUATION
KINDS = {kind.name: kind for kind in _ALL}

"""Sets up the rounds of a fit: rules, callbacks, progress; publishes where they have come."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from skfed._callbacks import RoundCallbacks, Rows
from skfed._federation import Federation
from skfed._fitted import fitted
from skfed._linear_model import NAMES
from skfed._nets import get_model, set_model
from skfed._progress import Progress
from skfed._rounds import Rounds
from skfed._rules import make_rules, warn_of_ignored_priority
from skfed._server import Server
from skfed._sklearn_callbacks import SklearnCallbacks
from skfed._validation import Validation
from skfed.checkpoint import Run
from skfed.engines import Polls
from skfed.utils._ambient import without_autocast

if TYPE_CHECKING:
    from skfed._estimator import BaseFederated


@contextmanager
def rounds_of(
    model: "BaseFederated",
    server: Server,
    federation: Federation,
    polls: Polls,
    until: int,
    train: Rows | None,
    validation: Validation | None = None,
    more: Sequence[SklearnCallbacks] = (),
    run: Run | None = None,
) -> Iterator[Rounds]:
    """Lend the rounds of an estimator's fit, up to ``until``; publish what came, however it ends.

    ``train`` are the rows that callbacks see, where the server has them.
    """
    rules = make_rules(model, server.net)
    warn_of_ignored_priority(rules.selector, federation, server.told)
    round_callbacks = RoundCallbacks(server.net, train, validation)
    progress = Progress(server.round, until, shown=bool(model.verbose))
    try:
        weights = get_model(server.net)
        round_callbacks.begin(server.reminder, server.begun)
        if server.round:  # the model is that of the round before, whatever
            set_model(server.net, weights)  # a callback sets at the beginning
        server.reminder, server.begun = None, set()
        for one in more:
            one.begin()
        with without_autocast(server.net.device):  # which the clients' work has by itself
            yield Rounds(
                server,
                federation,
                polls,
                rules,
                until=until,
                validation=validation,
                watchers=[progress, round_callbacks, *more],
                keep=None if run is None else partial(run.keep, server),
            )
        round_callbacks.end(complete=server.round >= model.n_rounds)
        for one in more:
            one.end()
    finally:
        progress.close()
        for name in NAMES:  # of an earlier fit, whose net was linear
            model.__dict__.pop(name, None)
        model.__dict__.update(fitted(server, federation, model._output_shape))

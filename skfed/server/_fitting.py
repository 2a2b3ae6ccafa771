"""Sets up the rounds of a fit: rules, callbacks, progress; publishes where they have come."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from skfed._federation import Federation
from skfed.callbacks._progress import Progress
from skfed.callbacks._sklearn import SklearnCallbacks
from skfed.callbacks._skorch import RoundCallbacks, Rows
from skfed.checkpoint._run import Run
from skfed.engines import Evaluator
from skfed.nets import LINEAR_ATTRIBUTES, get_state, set_state
from skfed.server._config import RoundConfig, warn_of_ignored_priority
from skfed.server._fitted import fitted
from skfed.server._rounds import Rounds
from skfed.server._state import ServerState
from skfed.server._validation import Validation
from skfed.utils._torch_context import without_autocast

if TYPE_CHECKING:
    from skfed._estimator import BaseFederated


@contextmanager
def rounds_of(
    model: "BaseFederated",
    server: ServerState,
    federation: Federation,
    polls: Evaluator,
    until: int,
    train: Rows | None,
    validation: Validation | None = None,
    more: Sequence[SklearnCallbacks] = (),
    run: Run | None = None,
) -> Iterator[Rounds]:
    """Lend the rounds of an estimator's fit, up to ``until``; publish what came, however it ends.

    ``train`` are the rows that callbacks see, where the server has them.
    """
    rules = RoundConfig.from_params(vars(model), server.net)
    warn_of_ignored_priority(rules.selector, federation, server.told)
    round_callbacks = RoundCallbacks(server.net, train, validation)
    progress = Progress(server.round, until, shown=bool(model.verbose))
    try:
        weights = get_state(server.net)
        round_callbacks.begin(server.reminder, server.begun)
        if server.round:  # the model is that of the round before, whatever
            set_state(server.net, weights)  # a callback sets at the beginning
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
        for name in LINEAR_ATTRIBUTES:  # of an earlier fit, whose net was linear
            model.__dict__.pop(name, None)
        model.__dict__.update(fitted(server, federation, model._problem.output_shape))

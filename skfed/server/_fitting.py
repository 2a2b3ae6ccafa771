"""The rounds of a fit with their callbacks, and the fitted attributes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from skfed._federation import Federation
from skfed.callbacks._progress import Progress
from skfed.callbacks._round import call_on_round_end, is_of_callback
from skfed.callbacks._sklearn import SklearnCallbacks, callback_attributes
from skfed.callbacks._skorch import RoundCallbacks, Rows
from skfed.engines import Engine, Evaluator
from skfed.history import Row
from skfed.nets import set_state
from skfed.server._config import RoundConfig, warn_of_ignored_priority
from skfed.server._held_out import HeldOutEvaluation
from skfed.server._last_round import LastRound
from skfed.server._rounds import Rounds
from skfed.server._state import ServerState
from skfed.server._statistics import RateLimits
from skfed.server._validation import Validation
from skfed.utils._torch_context import without_autocast
from skfed.utils._warnings import warn


@contextmanager
def open_rounds(
    server: ServerState,
    federation: Federation,
    engine: Engine,
    config: RoundConfig,
    *,
    until: int,
    train: Rows | None = None,
    validation: Validation | None = None,
    validator: Evaluator | None = None,
    held_out: HeldOutEvaluation | None = None,
    callbacks: Sequence[SklearnCallbacks] = (),
    keep: Callable[[ServerState, bool], None] | None = None,
    limits: RateLimits | None = None,
    estimator: Any,
) -> Iterator[Rounds]:
    """Context manager for the rounds of a fit; begins and ends its callbacks.

    ``train`` are the rows that the net's callbacks see, None where the server has none.
    ``validator`` evaluates models on the rows of the validation, for contributions; ``held_out``
    has clients evaluate the model on rows that they keep aside. ``keep`` writes a checkpoint; it
    takes the server, and whether the round is the last. ``estimator`` is what is fitted, with its
    RoundCallbacks. Any exception leaves the server as it was after the last whole round.
    """
    warn_of_ignored_priority(config.selector, federation, server.logged)
    net_callbacks = RoundCallbacks(server.net, train, validation)
    last_round = LastRound(server, net_callbacks)
    progress = Progress(server.round, until, shown=bool(estimator.verbose))

    def report(record: Row) -> None:
        progress.update(record)
        call_on_round_end(estimator, record)

    try:
        net_callbacks.begin(server.callback_state, server.restarted)
        if server.round:  # a callback may have changed the model
            set_state(server.net, last_round.model)
        server.callback_state, server.restarted = None, set()
        for callback in callbacks:
            callback.begin()
        with without_autocast(server.net.device):  # clients' work has a setting of its own
            yield Rounds(
                server,
                federation,
                engine,
                config,
                until=until,
                validation=validation,
                validator=validator,
                held_out=held_out,
                limits=limits,
                last_round=last_round,
                callbacks=[net_callbacks, *callbacks],
                checkpoint=None if keep is None else partial(keep, server),
                report=report,
            )
        net_callbacks.end(complete=server.round >= config.n_rounds)
        for callback in callbacks:
            callback.end()
    except BaseException:
        last_round.restore()
        raise
    finally:
        progress.close()


@contextmanager
def reset_on_failure(attributes: dict[str, Any], resume: bool) -> Iterator[None]:
    """Context manager that restores the attributes of an estimator if a new fit fails.

    A fit that is interrupted, by Ctrl-C or a RoundCallback, or that continues another
    (``resume``), keeps its finished rounds.
    """
    before = dict(attributes)
    try:
        yield
    except BaseException as error:
        n_rounds = attributes.get("n_rounds_", 0)
        fitted = attributes.get("_server") is not before.get("_server") or resume
        if (isinstance(error, KeyboardInterrupt) or is_of_callback(error)) and fitted and n_rounds:
            warn(
                f"interrupted: the model of the last finished round, {n_rounds} of "
                f"{attributes['n_rounds']}, is kept; fit continues from it with warm_start=True."
            )
        elif not resume:
            before |= callback_attributes(attributes)
            attributes.clear()
            attributes.update(before)
        raise

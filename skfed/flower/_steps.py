"""The fit of the steps before an estimator, by messages: what the server and a client do.

Both fit the same steps, in the same order. The server fits them to a made-up row, and fits each
federated transformer by exchanges. A client, asked by an exchange, fits its steps to its own rows:
the transformers before take their state from the message, and the one asked sends statistics.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import numpy as np
from flwr.app import RecordDict
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from skfed._federation import federation_of
from skfed.checkpoint import State, restore, state_of
from skfed.engines import Late
from skfed.exchanges import Exchanges, FailureLog
from skfed.flower._columns import Columns
from skfed.flower._messages import (
    STEPS,
    Refusal,
    from_records,
    to_config,
    to_records,
)
from skfed.flower._nodes import Nodes
from skfed.flower._pipeline import fitted_one_by_one
from skfed.flower._replies import Size
from skfed.flower._statistics import read_statistics, size_of_statistics
from skfed.flower._waiting import Replies
from skfed.preprocessing import BaseFederatedTransformer
from skfed.preprocessing._base import fitting_elsewhere, members_of
from skfed.preprocessing._exchanges import Statistics, ask_statistics, exchange_table
from skfed.utils import _files

logger = logging.getLogger(__name__)


class _ClientsLostError(Exception):
    """A client has failed in a later exchange of a fit, which begins again without it."""


@dataclass
class StepsServer:
    """Fits steps by the statistics of clients."""

    nodes: Nodes
    sizes: dict[str, int]  # D_k by client name
    columns: Columns  # of all clients
    drop: bool  # leave out clients that fail
    min_clients: int
    deadline: float | None  # seconds after which a client is late
    fitted: list[State]  # states of transformers of an earlier run
    keep: Callable[[list[State]], None]  # called after each transformer
    _n_fitted: int = field(default=0, init=False)

    def fit(self, steps: Pipeline) -> Any:
        """Fit the steps; return a made-up row as they transform it."""
        self._n_fitted = 0
        with fitted_one_by_one(steps), fitting_elsewhere(self._fit, made_up=True):
            return steps.fit_transform(self.columns.example())

    def exchange(self, contents: dict[str, RecordDict], asked: Size) -> Replies:
        """Send clients what they are asked, which is of size ``asked``.

        It ends by the deadline, and does not wait for those that did not reply to their last
        message: so a client that is gone costs one wait, not one in each exchange.
        """

        def end(seconds: np.ndarray) -> float:
            # Those that have come back were found when the messages were sent.
            awaited = np.array([name not in self.nodes.lost for name in contents], dtype=bool)
            answered = awaited.any() and not np.isnan(seconds[awaited]).any()
            last = float(seconds[awaited].max()) if answered else inf
            return last if self.deadline is None else min(float(self.deadline), last)

        return self.nodes.exchange(contents, STEPS, end, asked)

    def state(self, steps: Pipeline) -> dict[str, Any]:
        """Return what clients need to transform their rows by the fitted steps."""
        return {"columns": vars(self.columns), "fitted": _without_exchanges(state_of(steps))}

    def _fit(self, transformer: BaseFederatedTransformer, rows: Any) -> None:
        """Fit the next transformer, or take what an earlier run has fitted."""
        i = self._n_fitted
        if i < len(self.fitted):
            restore(transformer, self.fitted[i])
        else:
            fit = _TransformerFit(self, transformer, rows)
            fit.run()
            self.fitted.append(state_of(transformer))
            self.keep(self.fitted)
        self._n_fitted += 1


@dataclass
class _FailureLog(FailureLog):
    """Logs which clients a transformer is fitted without, in each exchange, late ones too."""

    deadline: float | None = None

    def note(
        self, clients: np.ndarray, raised: Mapping[int, Exception], asked_for: str | None
    ) -> None:
        """Warn of clients without statistics, or raise as a round does, or if no client has any."""
        late = f"No client has sent them by deadline={self.deadline}: raise it."
        for i, cause in sorted(raised.items()):
            (name,), is_late = self.federation.names([clients[i]]), isinstance(cause, Late)
            if len(raised) == len(clients) or (self.fatal and not is_late):
                cause.add_note(f"client {name!r}, asked for {asked_for}")
                if is_late:
                    cause.add_note(late)
                raise cause
            logger.warning("client %r sends no %s: %s", name, asked_for, cause)


class _TransformerFit:
    """The exchanges that fit one transformer."""

    def __init__(self, server: StepsServer, transformer: BaseFederatedTransformer, rows: Any):
        self.server, self.transformer, self.rows = server, transformer, rows
        federation = federation_of(server.sizes, transformer.priority)
        self.federation = federation.joined(federation.sizes > 0)
        if not self.federation.priority.any():
            raise ValueError(
                f"no client of priority={transformer.priority!r} of {type(transformer).__name__} "
                "is there at the start: start when one is, or name others."
            )
        self.members = members_of(self.federation)
        log = _FailureLog(self.federation, fatal=not server.drop, deadline=server.deadline)
        self.exchanges = Exchanges(log)
        # Requests and statistics by client, by the checksum of the request.
        self._replies: dict[str, tuple[Statistics, dict[int, Statistics]]] = {}

    def run(self) -> None:
        """Fit; begin again without the clients that fail in the middle."""
        while True:
            try:
                suppressed = self.transformer.run_exchanges(_Asking(self).ask)
            except _ClientsLostError:
                continue
            self.transformer.exchange_ = exchange_table(
                self.exchanges.settled, self.federation, suppressed
            )
            return

    def statistics(self, request: Statistics) -> dict[int, Statistics]:
        """Return the statistics of the members that reply; the others are members no more."""
        text = checksum_of(request)
        if text not in self._replies:  # or else asked before the fit began again
            self._replies[text] = request, self._exchange(request)
        _, found = self._replies[text]
        return {k: found[k] for k in self.members}

    def _exchange(self, request: Statistics) -> dict[int, Statistics]:
        asked_for = f"statistics of {type(self.transformer).__name__}"
        found = ask_statistics(self.exchanges, self.members, request, self._collect, asked_for)
        self.members = list(found)
        if len(found) < self.server.min_clients:
            raise RuntimeError(
                f"{len(found)} clients sent {asked_for}, fewer than "
                f"min_clients={self.server.min_clients}: see the warnings, and start again."
            )
        return found

    def _collect(self, request: Statistics) -> Iterator[Statistics | Exception]:
        """Yield what each member sends, or why it sends nothing."""
        names = [str(name) for name in self.federation.names(self.members)]
        contents = {name: self._content(name, request) for name in names}
        rows = self.transformer.prepare(self.rows)
        example = self.transformer.client_statistics(rows, request)
        replies = self.server.exchange(contents, size_of_statistics(example)).contents
        read = partial(
            read_statistics, transformer=self.transformer, example=example, request=request
        )
        for k, name in zip(self.members, names, strict=True):
            earlier = [(asked, found[k]) for asked, found in self._replies.values()]
            yield read(replies[name], n_samples=self.server.sizes[name], exchanges=earlier)

    def _content(self, name: str, request: Statistics) -> RecordDict:
        asked = {
            "columns": vars(self.server.columns),
            "fitted": [_without_exchanges(state) for state in self.server.fitted],
            "type": type(self.transformer).__name__,
            "request": request,
        }
        return RecordDict({"request": to_config(client=name), **to_records("asked", asked)})


class _Asking:
    """One attempt to fit a transformer."""

    def __init__(self, fit: _TransformerFit):
        self.fit, self._n_exchanges = fit, 0

    def ask(self, request: Statistics) -> list[Statistics]:
        """Return the statistics of all members, in the order of digests."""
        before = len(self.fit.members)
        sent = self.fit.statistics(request)
        self._n_exchanges += 1
        if self._n_exchanges > 1 and len(sent) < before:
            raise _ClientsLostError  # what was merged before has their rows
        return list(sent.values())


def client_statistics(steps: Pipeline, X: Any, content: RecordDict) -> RecordDict:
    """Return the reply of a client that is asked for statistics of its rows."""
    asked = from_records(content, "asked")
    columns, fitted = Columns.received(**asked["columns"]), asked["fitted"]
    steps, n_before = clone(steps), 0

    def fit(transformer: BaseFederatedTransformer, rows: Any) -> None:
        nonlocal n_before
        if n_before == len(fitted):
            _check_type(transformer, asked["type"])
            raise _Reached(
                transformer.client_statistics(transformer.prepare(rows), asked["request"])
            )
        _restore(transformer, fitted[n_before])
        n_before += 1

    try:
        with fitted_one_by_one(steps), fitting_elsewhere(fit, made_up=False):
            steps.fit_transform(columns.cast(X))
    except _Reached as reached:
        return RecordDict(to_records("statistics", reached.statistics))
    except (TypeError, ValueError) as error:
        where = getattr(error, "place", None)
        if where is None:
            raise
        raise Refusal(f"{asked['type']} raises {type(error).__name__}. {where}") from error
    raise Refusal(f"its Pipeline has only {n_before} federated transformers: {_SAME}")


def transform(steps: Pipeline | None, X: Any, content: RecordDict) -> Any:
    """Return a client's rows as the fitted steps in a request transform them."""
    if steps is None:
        return X
    value = from_records(content, "steps")
    columns = Columns.received(**value["columns"])
    return _restore(clone(steps), value["fitted"]).transform(columns.cast(X))


class _Reached(Exception):
    """The transformer that is asked has been reached."""

    def __init__(self, statistics: Statistics):
        self.statistics = statistics


_SAME = "use the same Pipeline on both sides."


def _check_type(transformer: BaseFederatedTransformer, expected: Any) -> None:
    if type(transformer).__name__ != expected:
        raise Refusal(
            f"its Pipeline has a {type(transformer).__name__} where the server's has a "
            f"{expected}: {_SAME}"
        )


def _restore(estimator: Any, state: Any) -> Any:
    try:
        return restore(estimator, state)
    except ValueError as error:  # of names and types, without data
        raise Refusal(f"its Pipeline is not the server's: {error} {_SAME}") from error


def _without_exchanges(state: Any) -> Any:
    """Return a state without tables of exchanges, which name other clients."""
    if isinstance(state, dict):
        return {k: _without_exchanges(v) for k, v in state.items() if k != "exchange_"}
    if isinstance(state, list | tuple):
        return type(state)(_without_exchanges(one) for one in state)
    return state


def checksum_of(value: Any) -> str:
    """Return a checksum of a plain value."""
    tensors: _files.Tensors = {}
    text = json.dumps(_files.to_json(value, tensors))
    return _files.checksum(text, tensors)

"""The side of the server: the rounds of a federated estimator, as a strategy of Flower."""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from sklearn.base import clone

from skfed._classifier import FederatedClassifier
from skfed._estimator import BaseFederated
from skfed._federation import federation_of, parse_priority
from skfed.availability import BaseAvailability
from skfed.checkpoint._run import open_run
from skfed.engines import Draws, batch_size
from skfed.flower._client import checked_estimator, has_privacy
from skfed.flower._client_info import ClientInfo
from skfed.flower._engine import MessageEngine
from skfed.flower._messages import to_arrays, to_text
from skfed.flower._nodes import Nodes
from skfed.nets import get_state
from skfed.server._fitting import rounds_of
from skfed.server._standardize import layers_of, set_moments
from skfed.server._state import ServerState
from skfed.server._validation import is_due
from skfed.server._warm_start import new_state
from skfed.utils._seeding import draw_seed

logger = logging.getLogger("flwr")  # whose lines `flwr run --stream` shows

_SHOWN = (
    *("objective", "train_loss", "n_polled", "n_aggregated"),
    *("n_failed", "bytes_down", "bytes_up"),
)


class FederatedStrategy(Strategy):
    """Runs the rounds of a federated estimator over clients that hold their own data.

    The selector, schedules, aggregation, ledger and history are those of the simulation, and for
    the same seed, data and net so are the cohorts. A poll, where the selector asks for one, is an
    exchange of messages of its own, before the training; who has been polled does not get the
    model again.

    A client that does not answer in time, or whose answer is none, has failed in that round
    (``on_client_error``, ``min_clients``), and is asked again when it is chosen again; it may come
    back as another node. With ``checkpoint`` a ServerApp that is started again goes on with the
    round that was not finished.

    Parameters
    ----------
    estimator : FederatedClassifier or FederatedRegressor
        What is trained, and how. It is not changed. ``priority`` has names of clients.
        ``memory_budget``, ``n_jobs`` and ``warm_start`` are not used, and an availability that
        plays dropouts is refused.
    clients : int or collection of str, default=None
        How many clients to wait for, or their names. None: whoever is connected when the run
        begins. Unless names are given, those that ``priority`` names are waited for too. Who
        connects later may come back, but not join.
    classes : array-like, default=None
        All labels, so that clients need not say which they have. None: they are asked, unless a
        classifier has ``update_privacy`` or ``loss_privacy``: no noise covers this answer, so then
        the labels must be given.
    timeout : float, default=600
        Seconds to wait for the clients at the beginning, and for each of their answers.

    Attributes
    ----------
    model_ : FederatedClassifier or FederatedRegressor
        The fitted copy of ``estimator``; after a failure, with the rounds that were finished.

    Raises
    ------
    ValueError
        If a parameter is out of range, or ``classes`` is lacking where clients have privacy.

    Examples
    --------
    In the ServerApp of a Flower project::

        @app.main()
        def main(grid, context):
            strategy = FederatedStrategy(estimator, clients=["site a", "site b"])
            strategy.start(grid)
            strategy.model_.save("model.safetensors")
    """

    def __init__(
        self,
        estimator: BaseFederated,
        *,
        clients: int | Collection[str] | None = None,
        classes: Any = None,
        timeout: float = 600.0,
    ):
        self.estimator = _without_dropouts(checked_estimator(estimator))
        self.clients = _checked_clients(clients)
        self.classes = None if classes is None else np.unique(classes).tolist()
        if self._asks_classes(estimator) and has_privacy(estimator):
            raise ValueError(
                "classes=None asks each client which labels it has, and update_privacy and "
                "loss_privacy do not cover the answer: pass all labels as classes."
            )
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not (is_number and 0 < timeout < np.inf):
            raise ValueError(f"timeout={timeout!r} must be a positive number of seconds.")
        self.timeout = float(timeout)

    # What else Flower's own start takes, the estimator says.
    def start(
        self,
        grid: Grid,
        *,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds; ``model_`` is then the fitted estimator.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            From the ServerApp's main function.
        evaluate_fn : callable, default=None
            As Flower has it: measures the global model before the first round and after each, or
            every ``validate_every`` rounds and the last, on data of the server's. Rounds of a run
            that goes on are counted on.

        Returns
        -------
        flwr.serverapp.strategy.Result
            The global model as an ArrayRecord, and each round's numbers.

        Raises
        ------
        TimeoutError
            If the clients do not connect in time.
        ValueError
            If their data do not go together, or with the estimator.
        Exception
            As ``fit``: the first cause, if all clients fail in all rounds.
        """
        model = clone(self.estimator)
        cards = self._gather(grid, model)
        self.model_ = model
        server, classes = self._begin(model, cards)
        sizes = {name: card.n_samples for name, card in cards.items()}
        federation = federation_of(sizes, model.priority)
        data = _described(next(iter(cards.values())))
        data["classes"] = getattr(model, "classes_", None)
        with open_run(type(model), model.get_params(), server, federation, data) as run:
            draws = Draws(federation, server.seed, batch_size(server.net))
            fit = uuid4().hex  # a fit that goes on is another, for what clients remember
            self._engine = MessageEngine(self._nodes, federation, draws, to_text(classes), fit)
            if not server.round and layers_of(server.net) and model.update_privacy is None:
                shape = next(iter(cards.values())).shape
                drop = model.on_client_error == "drop"
                moments = self._engine.moments(int(np.prod(shape)), drop)
                set_moments(server, federation, shape, moments)
            until, model.engine_ = model.n_rounds, "flower: clients elsewhere"
            with rounds_of(
                model, server, federation, self._engine, until, None, None, (), run
            ) as self._rounds:
                done = server.round
                result = super().start(
                    grid,
                    to_arrays(get_state(server.net)),
                    0 if server.stopped >= until else until - done,
                    self.timeout,
                    evaluate_fn=evaluate_fn and _measuring(evaluate_fn, server, model),
                )
                self._rounds.end()
        return _counted_on(result, done, to_arrays(get_state(server.net)))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nothing: ``aggregate_train`` runs the whole round."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Run a round: poll, select, train, aggregate; return the model and the round's numbers."""
        request = self._rounds.begin()
        if request is None:  # a callback has stopped the rounds
            return None, None
        self._rounds.finish(self._engine.train(request))
        server = self._rounds.server
        row = server.rows[-1]
        numbers = {name: row[name] for name in _SHOWN}
        return to_arrays(get_state(server.net)), MetricRecord(numbers)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nothing: a selector's polls come before the training."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing, as nothing was asked."""
        return None

    def summary(self) -> None:
        """Log who takes part."""
        federation = self._rounds.federation
        logger.info(
            "%d clients, %d with priority, %d rows; %r",
            len(federation),
            int(federation.priority.sum()),
            int(federation.sizes.sum()),
            self.estimator,
        )

    def _asks_classes(self, model: BaseFederated) -> bool:
        return isinstance(model, FederatedClassifier) and self.classes is None

    def _gather(self, grid: Grid, model: BaseFederated) -> dict[str, ClientInfo]:
        """Wait for the clients, if the parameters are right; return their cards."""
        model._validate_params()
        priority = [] if model.priority is None else parse_priority(model.priority)[0]
        self._nodes = Nodes(grid, self._asks_classes(model), self.timeout)
        return self._nodes.wait_for_clients(self.clients, [str(name) for name in priority])

    def _begin(self, model: BaseFederated, cards: dict[str, ClientInfo]) -> tuple[ServerState, Any]:
        """Return the server with a new net, and the classes, if there are any."""
        one = next(iter(cards.values()))
        X: Any = np.zeros((1, *one.shape), dtype=one.dtype)
        if one.columns is not None:
            X = pd.DataFrame(X, columns=list(one.columns))
        classes = None
        y = np.zeros((1, *one.target_shape))
        if isinstance(model, FederatedClassifier):
            labels = [label for card in cards.values() for label in card.classes or ()]
            classes = np.unique(labels).tolist() if self.classes is None else self.classes
            y = np.array(classes[:1])
        # A row of zeros teaches what fit learns from data: classes, features and the net's shapes.
        X, _ = model._check_training_data(X, y, reset=True, classes=classes)
        seed = draw_seed(model.random_state)
        return new_state(model._problem, model.estimator, X, seed), classes


def _without_dropouts(estimator: BaseFederated) -> BaseFederated:
    """Return an estimator that can be run on a real federation."""
    availability = estimator.availability
    if availability is not None and (type(availability)._answers is not BaseAvailability._answers):
        raise ValueError(
            f"availability={availability} plays clients that do not answer; in a federation they "
            "do so by themselves: leave it out, or use one that says only who can be reached."
        )
    return estimator


def _checked_clients(clients: Any) -> int | list[str] | None:
    """Return how many clients to wait for, or their names."""
    if clients is None:
        return None
    if isinstance(clients, int) and not isinstance(clients, bool) and clients > 0:
        return clients
    if isinstance(clients, Collection) and not isinstance(clients, str | bytes) and len(clients):
        names = sorted({str(name) for name in clients})
        if len(names) == len(clients):
            return names
    raise ValueError(
        f"clients={clients!r} must be the number of clients to wait for, or their names, each once."
    )


def _described(card: ClientInfo) -> dict[str, Any]:
    """Return the shapes of X and y, for a checkpoint's fingerprint; their values are unknown."""
    columns = [] if card.columns is None else list(card.columns)
    X = np.array([str(card.shape), card.dtype, *columns])
    return {"X": X, "y": np.array(str(card.target_shape))}


def _measuring(evaluate_fn: Callable, server: ServerState, model: BaseFederated) -> Callable:
    """Return what measures the model after the rounds that happen, counted on from those before."""
    done, every, until = server.round, model.validate_every, model.n_rounds

    def measure(t: int, arrays: ArrayRecord) -> MetricRecord | None:
        n_finished = done + t
        if n_finished > server.round:  # Flower goes on counting where a callback has stopped
            return None
        stopped = server.stopped >= until
        if t == 0 or stopped or is_due(n_finished - 1, every, until):
            return evaluate_fn(n_finished, arrays)
        return None

    return measure


def _counted_on(result: Result, done: int, arrays: ArrayRecord) -> Result:
    """Return a result whose rounds are numbered after those done before, and that has a model."""
    for name in ("train_metrics_clientapp", "evaluate_metrics_serverapp"):
        numbered = getattr(result, name)
        setattr(result, name, {done + t: metrics for t, metrics in numbered.items()})
    result.arrays = arrays
    return result

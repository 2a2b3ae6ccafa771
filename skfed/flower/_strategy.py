"""The server: a strategy of Flower that runs the rounds of a federated estimator."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from skfed._classifier import FederatedClassifier
from skfed._estimator import BaseFederated
from skfed._federation import Federation, federation_of, parse_priority
from skfed._fit import check_held_out_rows, held_out_evaluation, round_config, rounds_of
from skfed.checkpoint import open_run
from skfed.flower._arguments import checked_clients, without_simulation
from skfed.flower._beginning import begin_fit, fit_steps, make_engine, make_server
from skfed.flower._client import has_privacy
from skfed.flower._client_info import ClientInfo
from skfed.flower._cross import cross_client_scores
from skfed.flower._joining import JoiningSites, checked_joining
from skfed.flower._json_log import checked_log, log_round
from skfed.flower._messages import to_arrays, to_text
from skfed.flower._nodes import Nodes
from skfed.flower._numbering import evaluations, renumbered
from skfed.flower._pipeline import check_estimator, federated_parts, split
from skfed.flower._report import checked_report, send_reports
from skfed.nets import get_state
from skfed.server import HeldOutEvaluation

logger = logging.getLogger("flwr")  # its lines are shown by `flwr run --stream`

_METRICS = (
    *("objective", "train_loss", "n_polled", "n_aggregated"),
    *("n_failed", "bytes_down", "bytes_up"),
)


class FederatedStrategy(Strategy):
    """Runs the rounds of a federated estimator over clients that hold their own data.

    The selector, schedules, aggregation, ledger and history are those of the simulation, and for
    the same seed, data and net the cohorts are equal. A poll is an exchange of messages before that
    of the training; the model is not sent again to the clients that were polled.

    A client that does not reply in time, or sends an invalid reply, has failed in that round
    (``on_client_error``, ``min_clients``). It gets a message again when it is chosen again, and may
    come back as another node. With ``checkpoint`` a restarted ServerApp continues from the last
    finished round.

    Parameters
    ----------
    estimator : FederatedClassifier, FederatedRegressor or Pipeline
        The estimator to fit, or a Pipeline that ends in one, of federated transformers and of
        transformers without fit, also in a ColumnTransformer or FeatureUnion; it is not changed.
        The transformers are fitted before the first round, each in exchanges of its own.
        ``priority`` has names of clients.
        ``deadline`` and ``report_goal`` are of the real seconds of clients, which ``history_`` has
        too. ``memory_budget``, ``n_jobs`` and ``warm_start`` are not used. An availability that
        simulates dropouts is an error, and so are ``devices``.
    clients : int or collection of str, default=None
        The number of clients to wait for, or their names. None: all clients that are connected when
        the run begins. Unless these are names, it waits for the clients named by ``priority`` too.
        A client that connects later is admitted only if it was connected before.
    classes : array-like, default=None
        All labels. None: the clients send those in their data, which is an error for a classifier
        with ``update_privacy`` or ``loss_privacy``, since they do not cover the labels.
    timeout : float, default=600
        Seconds to wait for the clients at the beginning, and for each of their replies.
    join : bool, default=False
        Whether sites may come after the start. ``clients`` then names all, and a classifier needs
        ``classes``. A site that connects later takes part from the first round before which it has
        told its size; until then it has no part in p_k, and ``not_joined`` in ``history_`` has it.
        One that does not answer is left alone for 1 round, then for 2, 4 and 8, as with
        :class:`~skfed.availability.BackOff`.
        :class:`~skfed.availability.LateJoin` simulates it. What clients tell before round 0, and
        the steps of a Pipeline, are of those that are there at the start.
    min_sites : int, default=None
        With ``join``, how many sites a run starts with, one with priority among them; None: as many
        as ``min_clients`` of the estimator.
    report : {"none", "own", "all"}, default="none"
        What sites get of :func:`~skfed.inspection.participation_report` of ``model_`` after the
        last round: nothing, each its own row, or all rows. A row says what a client gave and was
        worth: who sees those of others is for the operator and the sites to agree. A client logs
        the table, and gives it to ``on_report`` of its :func:`client_app`. A warning names those
        that do not confirm it. No column of ``history_`` has these messages.
    log_json : str or path, default=None
        A file to which each finished round appends a line of JSON for each client that it asked:
        ``time`` (UTC), ``round``, ``client``, ``seconds``, ``bytes_down``, ``bytes_up``, the kind
        and outcome of its ``exchanges`` and, if it failed, the ``cause``; they are those of
        :func:`~skfed.metrics.client_exchanges`. It is a file because ``flwr run --stream`` and
        ``flwr log`` mix what a ServerApp prints with Flower's own lines, and programs that collect
        logs follow files.

    Attributes
    ----------
    model_ : FederatedClassifier, FederatedRegressor or Pipeline
        The fitted copy of ``estimator``; after an error, with the finished rounds.

    Raises
    ------
    TypeError
        If ``estimator`` is something else, or a step of the Pipeline can only be fitted on the rows
        of all clients.
    ValueError
        If a parameter is out of range, ``classes`` is None although ``estimator`` has privacy,
        ``estimator`` has ``devices``, or a step has ``scope="client"`` or ``privacy``.

    Examples
    --------
    In the ServerApp of a Flower project::

        @app.main()
        def main(grid, context):
            strategy = FederatedStrategy(estimator, clients=["site a", "site b"])
            strategy.start(grid)
            skfed.save(strategy.model_, "model.safetensors")
    """

    def __init__(
        self,
        estimator: BaseFederated | Pipeline,
        *,
        clients: int | Collection[str] | None = None,
        classes: Any = None,
        timeout: float = 600.0,
        join: bool = False,
        min_sites: int | None = None,
        report: str = "none",
        log_json: str | PathLike | None = None,
    ):
        check_estimator(estimator)
        self.estimator = estimator
        model = without_simulation(split(estimator)[1])
        self.clients = checked_clients(clients)
        self._least = checked_joining(join, min_sites, self.clients, model.min_clients)
        self.classes = None if classes is None else np.unique(classes).tolist()
        if self._least is not None and self._asks_classes(model):
            raise ValueError(
                "join=True: sites that come later may have labels that no other has: pass all "
                "labels as classes."
            )
        if self._asks_classes(model) and has_privacy(model):
            raise ValueError(
                "classes=None requests the labels in each client's data, which update_privacy and "
                "loss_privacy do not cover: pass all labels as classes."
            )
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not (is_number and 0 < timeout < np.inf):
            raise ValueError(f"timeout={timeout!r} must be a positive number of seconds.")
        self.timeout = float(timeout)
        self.report = checked_report(report)
        self.log_json = checked_log(log_json)

    # The other parameters of Flower's start are parameters of the estimator.
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
            As in Flower: takes the number of finished rounds and the global model, and returns
            metrics on data of the server. It is called before the first round, then every
            ``validate_every`` rounds, and after the last.

        Returns
        -------
        flwr.serverapp.strategy.Result
            The global model as an ArrayRecord, and the metrics of each round; rounds of a continued
            run are numbered after those before.

        Raises
        ------
        TimeoutError
            If the clients do not connect in time; its message says why nodes were left out.
        ValueError
            If the clients' data do not fit the estimator; after ``timeout``, if one that has
            connected was left out for its data or estimator, for instance because its columns
            differ from those of the others: until then it may be started again with others.
        Exception
            As from ``fit``: the first failure, if all clients fail in all rounds.
        """
        pipeline = clone(self.estimator)
        steps, estimator = split(pipeline)
        clients = list(self._wait_for_clients(grid, steps, estimator).values())
        self.model_ = pipeline
        sizes = self._sizes()
        of_steps = self._of_run(federation_of(sizes))
        X, sent, description = fit_steps(steps, estimator, self._nodes, sizes, of_steps)
        server, classes = make_server(estimator, X, clients, self.classes)
        self._priority = estimator.priority
        federation = self._federation()
        of_run = self._of_run(federation)
        data = description | {"classes": getattr(estimator, "classes_", None)}
        with open_run(type(estimator), estimator.get_params(), server, of_run, data) as run:
            self._engine = make_engine(
                estimator, server, federation, self._nodes, X.shape[1:], to_text(classes), sent
            )
            config = round_config(estimator, server.net, server.left_alone, simulated=False)
            if self._least is not None:
                config = replace(config, availability=JoiningSites(estimator.availability))
            begin_fit(self._engine, estimator, server, config, X)
            until, estimator.engine_ = estimator.n_rounds, "flower: clients elsewhere"
            rounds = rounds_of(
                *(estimator, server, federation, self._engine, config),
                until=until,
                held_out=self._held_out(estimator),
                keep=None if run is None else run.keep,
            )
            with rounds as self._rounds:
                done = server.round
                result = super().start(
                    grid,
                    to_arrays(get_state(server.net)),
                    0 if self._rounds.finished else until - done,
                    self.timeout,
                    evaluate_fn=evaluate_fn and evaluations(evaluate_fn, server, estimator),
                )
                self._rounds.end()
        send_reports(self._nodes, self.model_, self.report)
        return renumbered(result, done, to_arrays(get_state(server.net)))

    def cross_client_scores(self, metric: str = "loss") -> pd.DataFrame:
        """Ask each client for its own model, and every client for a metric of each.

        It is called after ``start``. The messages, one training of each client and an evaluation of
        each model by each, are in no column of ``history_``.

        Parameters
        ----------
        metric : str, default="loss"
            One of :class:`~skfed.evaluation.FederatedEvaluation`, on the rows that clients keep
            aside (``load_data`` returns X, y, X_val and y_val).

        Returns
        -------
        DataFrame of shape (1 + n_clients, n_clients)
            As :func:`skfed.metrics.cross_client_scores`, which does it in a simulation; NaN also of
            a client that does not reply.

        Raises
        ------
        ValueError
            If the metric is unknown, no client keeps rows aside, or the estimator has privacy.
        """
        return cross_client_scores(self._engine, split(self.model_)[1], metric)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: ``aggregate_train`` runs the whole round."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Run a round; return the global model and the round's metrics."""
        if self._rounds.finished:  # a callback has stopped them
            return None, None
        if self._least is not None:
            self._admit_new()
        self._rounds.run_round()
        server = self._rounds.server
        row = server.rows[-1]
        log_round(self.log_json, row)
        metrics = {name: row[name] for name in _METRICS}
        return to_arrays(get_state(server.net)), MetricRecord(metrics)

    def _admit_new(self) -> None:
        """Go on with the sites that have connected since."""
        self._nodes.admit_new()
        federation = self._federation()
        if (federation.sizes != self._rounds.federation.sizes).any():
            self._rounds.set_federation(federation)
            self._engine.set_federation(federation)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: polls are part of the round."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return no metrics."""
        return None

    def summary(self) -> None:
        """Log the numbers of clients and rows, and the estimator."""
        federation = self._rounds.federation
        logger.info(
            "%d clients, %d with priority, %d rows; %r",
            len(federation),
            int(federation.priority.sum()),
            int(federation.sizes.sum()),
            self.estimator,
        )

    def _asks_classes(self, estimator: BaseFederated) -> bool:
        return isinstance(estimator, FederatedClassifier) and self.classes is None

    def _wait_for_clients(
        self, grid: Grid, steps: Pipeline | None, estimator: BaseFederated
    ) -> dict[str, ClientInfo]:
        """Check the parameters, and wait for the clients."""
        estimator._validate_params()
        if estimator.deadline is not None and estimator.deadline > self.timeout:
            raise ValueError(
                f"deadline={estimator.deadline} is above timeout={self.timeout:g}, after which a "
                "client has failed: raise timeout, or lower deadline."
            )
        parts: list[Any] = [estimator, *federated_parts(steps)]
        priority = [parse_priority(one.priority)[0] for one in parts if one.priority is not None]
        named = list(dict.fromkeys(str(name) for names in priority for name in names))
        self._nodes = Nodes(grid, self._asks_classes(estimator), self.timeout, steps is not None)
        return self._nodes.wait_for_clients(self.clients, named, self._least)

    def _of_run(self, federation: Federation) -> Federation:
        """Return the clients that a checkpoint is of; if some join later, those named."""
        if self._least is None:
            return federation
        return Federation.without_rows(np.array(self.clients))

    def _federation(self) -> Federation:
        """Return the federation as it is now; those that have not joined have no size."""
        return federation_of(self._sizes(), self._priority)

    def _sizes(self) -> dict[str, int]:
        sizes = {name: info.n_samples for name, info in self._nodes.clients.items()}
        if self._least is not None and isinstance(self.clients, list):
            return {name: sizes.get(name, 0) for name in self.clients}
        return sizes

    def _held_out(self, estimator: BaseFederated) -> HeldOutEvaluation | None:
        """Return what asks clients to evaluate the model; None: nothing does."""
        if estimator.evaluation is None:
            return None
        if self._least is None:  # else some may come that keep rows aside
            check_held_out_rows(self._engine)
        return held_out_evaluation(estimator, self._engine)

"""How a fit is wired: in a simulation, over Flower, at a client, and to fine-tune a model."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from skorch import NeuralNet

from skfed._federation import Federation, make_federation
from skfed._input import TrainingData
from skfed._problem import Problem
from skfed.aggregation import WeightedMean
from skfed.availability import Always
from skfed.callbacks._sklearn import SklearnCallbacks
from skfed.checkpoint import Run
from skfed.engines import (
    Batching,
    ClientData,
    Dataset,
    Engine,
    Evaluator,
    LocalTraining,
    LoopEngine,
    Workers,
    make_engine,
)
from skfed.evaluation import Metric
from skfed.exchanges import Message, Messages
from skfed.nets import (
    NetPool,
    Samples,
    batch_size,
    cast,
    cast_samples,
    get_state,
    set_state,
    standardize_layers,
)
from skfed.server import (
    HeldOutEvaluation,
    HeldOutEvaluator,
    HeldOutRows,
    LocalStatistics,
    RateLimits,
    RoundConfig,
    Rounds,
    ServerState,
    StatisticsSource,
    Validation,
    Wanted,
    ask_priority_clients,
    make_clock,
    make_exchanges,
    make_validation,
    open_rounds,
    selector_of,
    start_fit,
    warn_of_large_values,
)
from skfed.utils._checks import naming
from skfed.utils._ids import native


def round_config(
    estimator: Any, net: NeuralNet, left_alone: Collection[str], *, simulated: bool = True
) -> RoundConfig:
    """Return how the rounds of a fit of a federated estimator are run, checked for its net.

    ``left_alone`` and ``simulated`` as ``RoundConfig.check``.
    """
    aggregator, availability = estimator.aggregator, estimator.availability
    if estimator.evaluation is not None:
        estimator.evaluation.names(estimator._problem)  # checks them
    # Counts may be other integers than int, True for one.
    n_steps = None if estimator.local_steps is None else int(estimator.local_steps)
    config = RoundConfig(
        selector=selector_of(estimator.selector, estimator.priority),
        aggregator=WeightedMean() if aggregator is None else aggregator,
        server_optimizer=estimator.server_optimizer,
        availability=Always() if availability is None else availability,
        training=LocalTraining(int(estimator.local_epochs), n_steps, estimator.proximal_mu),
        lr_schedule=estimator.lr_schedule,
        n_rounds=estimator.n_rounds,
        drop_failing=estimator.on_client_error == "drop",
        min_clients=estimator.min_clients,
        update_privacy=estimator.update_privacy,
        loss_privacy=estimator.loss_privacy,
        devices=estimator.devices,
        deadline=estimator.deadline,
        report_goal=estimator.report_goal,
        contribution=estimator.contribution,
        evaluation=estimator.evaluation,
    )
    config.check(net, left_alone, simulated=simulated)
    return config


def begin(
    server: ServerState,
    federation: Federation,
    config: RoundConfig,
    problem: Problem,
    source: StatisticsSource,
    wanted: Wanted,
    *,
    shape: tuple[int, ...],
    dtype: np.dtype,
    measured: bool = False,
    accumulate: bool = False,
) -> None:
    """Ask clients for what a fit begins with, which its first round is charged for.

    ``shape`` is that of a row of X, ``dtype`` that of X. With ``measured`` seconds are those of
    real clients; with ``accumulate`` moments are added to those of earlier fits.
    """
    clock = make_clock(server, federation, config, measured)
    exchanges = make_exchanges(server, federation, config, clock)
    # Beside those of a fit whose first round was interrupted, which clients have sent too.
    if n := problem.n_counts:
        counts = Messages(up=Message(scalars={"class counts": n}))
        server.first_exchanges.append(ask_priority_clients(federation, exchanges, counts))
    start_fit(
        *(server, federation, exchanges, source, wanted),
        shape=shape,
        dtype=dtype,
        guess=problem.guess(server.net),
        accumulate=accumulate,
    )


def federation_at(config: RoundConfig, federation: Federation, t: int) -> Federation:
    """Return a federation as of round t, in which clients that have not joined have no part."""
    joined = config.availability.joined(federation, t)
    return federation if joined is None else federation.joined(joined)


@dataclass(frozen=True)
class Simulation:
    """A fit whose clients are all in this process."""

    estimator: Any  # which is fitted
    server: ServerState
    data: TrainingData
    config: RoundConfig
    held_out: dict[str, Any] = field(default_factory=dict)  # X_val, y_val and clients_val, checked

    def begin(self, *, accumulate: bool = False) -> None:
        """Ask clients for what the fit begins with, as the function ``begin`` does."""
        evaluation = self.config.evaluation
        if evaluation is not None and self.held_out.get("clients_val") is None:
            raise ValueError(
                f"evaluation={evaluation} needs rows that clients keep aside: give X_val, y_val "
                "and clients_val to fit (partial_fit has none)."
            )
        estimator, server, data = self.estimator, self.server, self.data
        with naming("y"):
            y = data.y if data.y.dtype.kind in "biuf" else data.y.astype(float)
        wanted = estimator._wanted(server)
        federation = federation_at(self.config, data.federation, server.round)
        if estimator._problem.n_counts:
            _check_labels_are_known(federation, data.federation.priority)
        source = LocalStatistics(data.X, y, data.weights, federation, wanted.n_classes)
        begin(
            *(server, federation, self.config, estimator._problem, source, wanted),
            shape=data.X.shape[1:],
            dtype=data.X.dtype,
            accumulate=accumulate,
        )
        is_private = self.config.update_privacy is not None
        if is_private and not server.round and standardize_layers(server.net):
            warn_of_large_values(data.X)

    def validation(self) -> Validation | None:
        """Return the validation of the global model, None without validation data."""
        if not self.held_out:
            return None
        return make_validation(
            self.server,
            self.estimator._problem,
            self.data,
            **self.held_out,
            names=getattr(self.estimator, "feature_names_in_", None),
            every=self.estimator.validate_every,
            n_rounds=self.config.n_rounds,
        )

    def sklearn_callbacks(self, task: dict[str, Any]) -> SklearnCallbacks:
        """Return scikit-learn's callbacks for the rounds that are left."""
        rounds = range(self.server.round, self.config.n_rounds)
        context = self.estimator._init_callback_context(
            max_subtasks=len(rounds), sequential_subtasks=False
        )
        return SklearnCallbacks(context, task, rounds, self._snapshot)

    def _snapshot(self) -> dict[str, Any]:
        """Return the fitted attributes with a copy of the model as it is now."""
        server, data = self.server, self.data
        net = NetPool(server.net, cast(server.net, data.X[:1])).set_up()
        set_state(net, get_state(server.net))
        fitted = copy(self.estimator)
        fitted._set_fitted(replace(server, net=net, rows=list(server.rows)), data.federation)
        before = vars(self.estimator)
        return {k: v for k, v in vars(fitted).items() if before.get(k) is not v}

    def train(
        self,
        until: int,
        validation: Validation | None = None,
        callbacks: Sequence[SklearnCallbacks] = (),
        run: Run | None = None,
    ) -> None:
        """Run rounds until ``until`` are finished, and set the fitted attributes."""
        estimator, server, data = self.estimator, self.server, self.data
        X = cast_samples(server.net, data.X)
        y = estimator._problem.for_criterion(server.net, X, data.y)
        batching = Batching(data.federation, server.seed, batch_size(server.net))
        engine, estimator.engine_ = make_engine(
            *(estimator.engine, NetPool(server.net, X[:1]), X, y, batching),
            *(estimator.memory_budget, estimator.n_jobs, data.weights),
        )
        rounds = rounds_of(
            *(estimator, server, data.federation, engine, self.config),
            until=until,
            train=(X, y),
            validation=validation,
            validator=self._validator(validation),
            held_out=self._held_out_evaluation(),
            limits=self._rate_limits(),
            callbacks=callbacks,
            keep=None if run is None else run.keep,
        )
        with closing(engine), rounds as running:
            running.run()

    def _validator(self, validation: Validation | None) -> Evaluator | None:
        """Return what evaluates models on the validation rows, where contributions need it."""
        contribution = self.config.contribution
        if validation is None or contribution is None or contribution.evaluate_on != "validation":
            return None
        X, y = validation.rows
        return self._engine(X, y, make_federation(np.zeros(len(X), dtype=int), len(X)))

    def _held_out_evaluation(self) -> HeldOutEvaluation | None:
        """Return what has clients evaluate the model on their own rows of X_val."""
        if self.config.evaluation is None:
            return None
        net, problem = self.server.net, self.estimator._problem
        X, y = cast_samples(net, self.held_out["X_val"]), self.held_out["y_val"]
        with naming("clients_val"):
            federation = make_federation(self.held_out["clients_val"], len(X))
        engine = self._engine(X, problem.for_criterion(net, X, y), federation)
        evaluator = HeldOutRows.of(engine, federation, self.data.federation)
        check_held_out_rows(evaluator)
        return held_out_evaluation(self.estimator, evaluator)

    def _engine(self, X: Samples, y: np.ndarray, federation: Federation) -> Evaluator:
        """Return what evaluates models on other rows than those of the training."""
        estimator, net = self.estimator, self.server.net
        engine, _ = make_engine(
            *(estimator.engine, NetPool(net, X[:1]), X, y),
            *(Batching(federation, self.server.seed, batch_size(net)), estimator.memory_budget),
            *(1, None),
        )
        return engine

    def _rate_limits(self) -> RateLimits | None:
        """Return the limits of clients' rates, where the rate is that of the priority clients."""
        if self.server.rate is None or self.config.update_privacy is not None:
            return None
        data = self.data
        # Whoever joins later has not told what is safe for its rows.
        federation = federation_at(self.config, data.federation, 0)
        source = LocalStatistics(data.X, data.y, data.weights, federation)
        return RateLimits(source, self.server.net)


def _check_labels_are_known(federation: Federation, priority: np.ndarray) -> None:
    """Check that no priority client, by a mask, joins after labels have been counted."""
    late = np.flatnonzero(priority & ~federation.priority)
    if len(late):
        raise ValueError(
            "class_weight='balanced' counts the labels of the priority clients before the first "
            f"round, and client {native(federation.ids[late[0]])!r} joins later (availability): "
            "pass a dict of labels to weights."
        )


def held_out_evaluation(estimator: Any, evaluator: HeldOutEvaluator) -> HeldOutEvaluation:
    """Return what has clients evaluate the model after the rounds of a federated estimator."""
    evaluation, problem = estimator.evaluation, estimator._problem
    metrics = [Metric.of(name, problem) for name in evaluation.names(problem)]
    every, n_rounds = estimator.validate_every, estimator.n_rounds
    return HeldOutEvaluation(metrics, evaluation.min_answers, evaluator, every, n_rounds)


def check_held_out_rows(evaluator: HeldOutEvaluator) -> None:
    """Raise a ValueError if no client keeps rows aside."""
    if not evaluator.held_out_sizes.any():
        raise ValueError(
            "no client keeps rows aside for the evaluation: name some in clients_val that are in "
            "clients; over Flower, let load_data return X, y, X_val and y_val."
        )


@contextmanager
def rounds_of(
    estimator: Any,
    server: ServerState,
    federation: Federation,
    engine: Engine,
    config: RoundConfig,
    **options: Any,
) -> Iterator[Rounds]:
    """Context manager for the rounds of a fit, as ``open_rounds`` has them.

    In the end, also of a fit that fails, the estimator gets its fitted attributes.
    """
    rounds = None
    try:
        with open_rounds(
            server, federation, engine, config, estimator=estimator, **options
        ) as rounds:
            yield rounds
    finally:  # some clients may have joined
        estimator._set_fitted(server, federation if rounds is None else rounds.federation)


def local_engine(
    problem: Problem,
    net: NeuralNet,
    X: Samples,
    y: np.ndarray,
    weights: np.ndarray | None,
    federation: Federation,
    *,
    seed: int,
    memory_budget: int,
) -> LoopEngine:
    """Return what trains clients one by one in this thread; X is in the net's dtype, y encoded."""
    dataset = Dataset(X, problem.for_criterion(net, X, y), weights=weights)
    data = ClientData(dataset, federation, memory_budget)
    batching = Batching(federation, seed, batch_size(net))
    return LoopEngine(NetPool(net, X[:1]), data, batching, Workers(n_jobs=1))

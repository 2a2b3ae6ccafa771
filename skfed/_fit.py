"""How a fit is wired: in a simulation, over Flower, at a client, and to fine-tune a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from skorch import NeuralNet

from skfed._federation import Federation
from skfed._problem import Problem
from skfed.aggregation import WeightedMean
from skfed.availability import Always
from skfed.engines import Batching, ClientData, Dataset, Engine, LocalTraining, LoopEngine, Workers
from skfed.exchanges import Message, Messages
from skfed.nets import NetPool, Samples, batch_size
from skfed.server import (
    RoundConfig,
    Rounds,
    ServerState,
    StatisticsSource,
    Wanted,
    ask_priority_clients,
    make_clock,
    make_exchanges,
    open_rounds,
    selector_of,
    start_fit,
)


def round_config(estimator: Any, net: NeuralNet, *, simulated: bool = True) -> RoundConfig:
    """Return how the rounds of a fit of a federated estimator are run, checked for its net.

    Clients that are not ``simulated`` take their own time.
    """
    aggregator, availability = estimator.aggregator, estimator.availability
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
    )
    config.check(net, simulated=simulated)
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
    try:
        with open_rounds(
            server, federation, engine, config, estimator=estimator, **options
        ) as rounds:
            yield rounds
    finally:
        estimator._set_fitted(server, federation)


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

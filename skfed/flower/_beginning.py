"""What a run begins with: fitted steps, a new net, and the engine that asks the clients."""

import logging
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from sklearn.pipeline import Pipeline

from skfed._classifier import FederatedClassifier
from skfed._estimator import BaseFederated
from skfed._federation import Federation
from skfed._fit import begin, federation_at
from skfed.checkpoint import StepsFile
from skfed.engines import Batching
from skfed.exchanges import Limits
from skfed.flower._arguments import data_description, row_of_zeros
from skfed.flower._client_info import ClientInfo
from skfed.flower._columns import common_columns
from skfed.flower._engine import MessageEngine
from skfed.flower._messages import from_records, to_records, to_text
from skfed.flower._nodes import Nodes
from skfed.flower._steps import StepsServer
from skfed.nets import batch_size, shift_of
from skfed.server import RoundConfig, ServerState, new_state
from skfed.utils._seeding import draw_seed

logger = logging.getLogger("flwr")  # its lines are shown by `flwr run --stream`

#: A Pipeline's fitted steps in messages.
Records = Mapping[str, ConfigRecord | ArrayRecord]


def fit_steps(
    steps: Pipeline | None,
    estimator: BaseFederated,
    nodes: Nodes,
    sizes: dict[str, int],
    federation: Federation,
) -> tuple[Any, Records, dict[str, Any]]:
    """Fit the steps before the estimator; ``federation`` is that of their checkpoint.

    Return a made-up row as they transform it, their records in messages, and what a checkpoint
    depends on.
    """
    infos = list(nodes.clients.values())
    if steps is None:
        return row_of_zeros(infos[0]), {}, data_description(infos[0])
    columns = common_columns([one.raw for one in infos if one.raw is not None])
    file = StepsFile(estimator.checkpoint, steps, columns, federation)
    fit = StepsServer(
        nodes,
        sizes,
        columns,
        drop=estimator.on_client_error == "drop",
        min_clients=estimator.min_clients,
        deadline=estimator.deadline,
        fitted=file.read(),
        keep=file.write,
    )
    X = fit.fit(steps)
    records = to_records("steps", fit.state(steps))
    # As clients read it: numbers of steps that were read from a file have other types.
    read = from_records(RecordDict(records), "steps")
    n_bytes = sum(record.count_bytes() for record in records.values())
    logger.info("each request has the fitted steps, %d bytes that no table charges", n_bytes)
    return X, records, data_description(infos[0]) | {"steps": read}


def make_server(
    estimator: BaseFederated, X: Any, infos: Sequence[ClientInfo], classes: list | None
) -> tuple[ServerState, list | None]:
    """Return the server with a new net, and the classes of a classifier; X is a row."""
    y = np.zeros((1, *infos[0].target_shape))
    if not isinstance(estimator, FederatedClassifier):
        classes = None
    elif classes is None:
        classes = np.unique([label for one in infos for label in one.classes or ()]).tolist()
    if classes is not None and prod(infos[0].target_shape) <= 1:  # else y is an indicator
        y = np.array(classes[:1])
    # One made-up row, for the attributes that fit sets from data.
    X, _ = estimator._check_training_data(X, y, reset=True, classes=classes)
    seed = draw_seed(estimator.random_state)
    return new_state(estimator._problem, estimator.estimator, X, seed), classes


def make_engine(
    estimator: BaseFederated,
    server: ServerState,
    federation: Federation,
    nodes: Nodes,
    columns: tuple[int, ...],
    classes: str,
    steps: Records,
) -> MessageEngine:
    """Return the engine; ``columns`` is the shape of a row, and ``classes`` is text."""
    outputs = estimator._problem.output_shape
    shapes = {"columns": columns, "targets": outputs, "classes": outputs}
    return MessageEngine(
        nodes,
        federation,
        Batching(federation, server.seed, batch_size(server.net)),
        classes,
        # A continued fit has another id, since clients may have stored a poll of the round it
        # repeats.
        uuid4().hex,
        steps,
        Limits(estimator.deadline, estimator.report_goal),
        n_values={name: int(np.prod(shape)) for name, shape in shapes.items()},
        server=server,
    )


def begin_fit(
    engine: MessageEngine,
    estimator: BaseFederated,
    server: ServerState,
    config: RoundConfig,
    X: Any,
) -> None:
    """Ask for what the fit begins with, once in a run, and tell clients in each message."""
    if not server.round:
        federation = engine.federation
        engine.federation = there = federation_at(config, federation, 0)
        begin(
            *(server, there, config, estimator._problem),
            *(engine, estimator._wanted(server)),
            shape=X.shape[1:],
            dtype=np.asarray(X).dtype,
            measured=True,
        )
        engine.federation = federation
    estimator._set_target_scale(server)
    if server.target_scale is not None:
        engine.target_scale = to_text(list(server.target_scale))
    engine.shift = shift_of(server.net)
    is_private = estimator.update_privacy is not None
    engine.limits_rates = server.rate is not None and not is_private

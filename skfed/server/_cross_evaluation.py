"""Each client's own model, evaluated by every client."""

from dataclasses import replace

import numpy as np

from skfed.engines import Engine, TrainRequest
from skfed.evaluation import Metric
from skfed.nets import State
from skfed.server._held_out import HeldOutEvaluator, HeldOutRequest


def cross_evaluate(
    engine: Engine, request: TrainRequest, evaluator: HeldOutEvaluator, metric: Metric
) -> np.ndarray:
    """Return a metric of w, and of the models that members of a cohort make of it, by client.

    Returns
    -------
    ndarray of shape (1 + n_members, n_clients)
        NaN of a member that has failed, and of a client that has, or that keeps no rows aside.
    """
    own = _models(engine, request)
    clients = np.flatnonzero(evaluator.held_out_sizes)
    n_members = len(request.cohort.clients)
    values = np.full((1 + n_members, len(evaluator.held_out_sizes)), np.nan)
    for i, state in enumerate([request.state, *map(own.get, range(n_members))]):
        if state is not None:
            asked = HeldOutRequest(request.round, state, clients, [metric])
            values[i, clients] = evaluator.evaluate_held_out(asked).values[:, 0]
    return values


def _models(engine: Engine, request: TrainRequest) -> dict[int, State]:
    """Train a cohort; return the models of the members that have not failed."""
    found = {}
    for members, stack in engine.train(replace(request, keeps_models=True)).models:
        for place, i in enumerate(members.tolist()):
            found[i] = request.state | {name: tensor[place] for name, tensor in stack.items()}
    return found

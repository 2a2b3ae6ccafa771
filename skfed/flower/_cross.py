"""Each site's own model, evaluated by every site."""

from copy import copy

import numpy as np
import pandas as pd

from skfed._estimator import BaseFederated
from skfed._fit import check_held_out_rows, round_config
from skfed.evaluation import FederatedEvaluation, Metric
from skfed.flower._engine import MessageEngine
from skfed.metrics._cross import check_private, cross_table
from skfed.metrics._personalised import PLAIN
from skfed.nets import get_state
from skfed.selection import Cohort
from skfed.server import cross_evaluate, make_train_request


def cross_client_scores(
    engine: MessageEngine, estimator: BaseFederated, metric: str
) -> pd.DataFrame:
    """Return what :meth:`FederatedStrategy.cross_client_scores` does, of a fitted estimator."""
    check_private(estimator)
    check_held_out_rows(engine)
    problem, server, federation = estimator._problem, estimator._server, engine.federation
    (name,) = FederatedEvaluation([metric]).names(problem)
    plain = copy(estimator).set_params(**PLAIN)
    config = round_config(plain, server.net, server.left_alone, simulated=False)
    joined = Cohort.mean(np.flatnonzero(federation.sizes))
    state = get_state(server.net)
    request = make_train_request(server, federation, config, state, None, joined)
    found = cross_evaluate(engine, request, engine, Metric.of(name, problem))
    values = np.full((1 + len(federation), len(federation)), np.nan)
    values[[0, *(1 + joined.clients)]] = found
    return cross_table(values, federation.ids)

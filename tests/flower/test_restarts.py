"""Servers that are restarted."""

import numpy as np
import pandas as pd
import pytest
from flwr.app import MetricRecord
from local_grid import requests
from mishaps import PowerCut, at_round, estimator

from skfed import FederatedRegressor, PowerOfChoice


@pytest.mark.parametrize("t", [1, 3])
def test_a_restarted_server_continues(t, federate, same_model, tmp_path):
    params = {"selector": PowerOfChoice(d=5, clients_per_round=3), "n_rounds": 5}
    whole, grid = federate(estimator(**params))
    whole.start(grid)
    strategy, grid = federate(estimator(**params, checkpoint=tmp_path))

    def cut(grid):
        raise PowerCut

    at_round(t, cut)(grid)
    with pytest.raises(PowerCut):
        strategy.start(grid)
    again, grid = federate(estimator(**params, checkpoint=tmp_path))
    again.start(grid)
    assert min(request["round"] for request in requests(grid.sent, "train")) == t
    assert again.model_.history_["cohort"].tolist() == whole.model_.history_["cohort"].tolist()
    assert same_model(again.model_, whole.model_)
    once_more, grid = federate(estimator(**params, checkpoint=tmp_path))
    once_more.start(grid)  # all rounds are done
    assert not requests(grid.sent, "train")
    assert same_model(once_more.model_, whole.model_)


def test_targets_are_asked_for_their_moments_once(federate, blobs, same_model, tmp_path):
    X, y, clients = blobs
    params = {"standardize_targets": True, "n_rounds": 3, "random_state": 0, "engine": "loop"}
    strategy, grid = federate(FederatedRegressor(**params, checkpoint=tmp_path))

    def cut(grid):
        raise PowerCut

    at_round(2, cut)(grid)
    with pytest.raises(PowerCut):
        strategy.start(grid)
    again, grid = federate(FederatedRegressor(**params, checkpoint=tmp_path))
    again.start(grid)
    assert not requests(grid.sent, "moments")
    whole = FederatedRegressor(**params).fit(X, y, clients=clients)
    assert same_model(again.model_, whole)
    np.testing.assert_array_equal(again.model_.predict(X), whole.predict(X))
    assert again.model_.history_["scalars_up"].tolist() == whole.history_["scalars_up"].tolist()


def test_the_checkpoint_of_other_clients_is_not_used(federate, tmp_path):
    strategy, grid = federate(estimator(checkpoint=tmp_path))
    strategy.start(grid)
    fewer, grid = federate(estimator(checkpoint=tmp_path), names="abc", clients=3)
    fewer.start(grid)
    assert fewer.model_.history_["n_aggregated"].tolist() == [3] * 4


def test_changed_columns_start_another_run(federate, blobs, tmp_path):
    X, y, clients = blobs

    def load(columns):
        def load_data(context):
            rows = clients == context.node_config["client-name"]
            return pd.DataFrame(X[rows], columns=list(columns)), y[rows]

        return load_data

    params = {"checkpoint": tmp_path, "n_rounds": 2}
    for columns, first in (("vwxyz", 0), ("vwxyz", None), ("vwxzy", 0)):
        strategy, grid = federate(estimator(**params), load=load(columns))
        strategy.start(grid)
        rounds = [request["round"] for request in requests(grid.sent, "train")]
        assert min(rounds, default=None) == first


def test_rounds_of_a_continued_run_are_numbered_after_those_before(federate, tmp_path):
    params = {"n_rounds": 4, "checkpoint": tmp_path}
    strategy, grid = federate(estimator(**params))

    def cut(grid):
        raise PowerCut

    at_round(2, cut)(grid)
    with pytest.raises(PowerCut):
        strategy.start(grid)
    seen = []
    for expected in ([2, 3, 4], [4]):
        strategy, grid = federate(estimator(**params))
        result = strategy.start(
            grid, evaluate_fn=lambda t, arrays: seen.append(t) or MetricRecord({"t": t})
        )
        assert seen == expected
        assert result.evaluate_metrics_serverapp == {t: {"t": t} for t in expected}
        assert list(result.train_metrics_clientapp) == expected[1:]
        assert len(result.arrays) == 2
        seen.clear()

"""Clients whose load_data returns a dict of arrays."""

import numpy as np
import pandas as pd
import pytest
from dicts import net, rows_of, sentences
from flwr.app import ConfigRecord, RecordDict

from skfed import FedAlignSelector, FederatedClassifier
from skfed.flower._client_info import ClientInfo
from skfed.flower._messages import PROTOCOL, to_text

X, Y, CLIENTS = sentences()


def estimator(**params):
    params = {"selector": FedAlignSelector(eps=0.3, warmup=1), "priority": ["a", "b"], **params}
    return FederatedClassifier(net(), n_rounds=5, random_state=0, engine="loop", **params)


def load_data(context):
    rows = context.node_config["client-name"] == CLIENTS
    return rows_of(X, rows), Y[rows]


def changed(name, change):
    """Return load_data, whose dict is changed at a client."""

    def load(context):
        X, y = load_data(context)
        return (change(X) if context.node_config["client-name"] == name else X), y

    return load


def test_rounds_are_those_of_a_simulation(federate, same_model):
    simulated = estimator().fit(X, Y, clients=CLIENTS)
    strategy, grid = federate(estimator(), load=load_data)
    strategy.start(grid)
    model = strategy.model_
    timeless = [c for c in simulated.history_ if not c.endswith("_seconds")]
    pd.testing.assert_frame_equal(model.history_[timeless], simulated.history_[timeless])
    assert same_model(model, simulated)
    np.testing.assert_array_equal(model.predict(X), simulated.predict(X))


def test_a_run_is_resumed(federate, same_model, tmp_path):
    whole = estimator().fit(X, Y, clients=CLIENTS)
    for n_rounds in (2, 5):
        part = estimator(checkpoint=tmp_path, warm_start=True).set_params(n_rounds=n_rounds)
        strategy, grid = federate(part, load=load_data)
        strategy.start(grid)
    assert same_model(strategy.model_, whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda X: {key: X[key] for key in ("tokens", "numbers")},
            r"'c' has no key 'mask', '.' has a dict with the keys \['mask', 'numbers', 'tokens'\]: "
            "let load_data return the same keys",
        ),
        (lambda X: X | {"age": X["numbers"]}, "'c' has the key 'age'"),
        (lambda X: X | {"numbers": X["tokens"]}, "'c' has 'numbers' of int64 and shape"),
        (lambda X: X["numbers"], r"'c' has samples of shape \(2,\), '.' has a dict with the keys"),
        (
            lambda X: X | {"mask": X["mask"][:2]},
            r"the data of client 'c': X\['tokens'\] has 14 rows, but X\['mask'\] has 2",
        ),
    ],
)
def test_a_client_with_other_data_is_not_admitted(federate, change, message):
    strategy, grid = federate(estimator(), load=changed("c", change), names="abdefc")
    with pytest.raises(ValueError, match=message):
        strategy.start(grid)


def info(**values):
    given = {"protocol": PROTOCOL, "name": "a", "n_samples": 3} | values
    return RecordDict({"info": ConfigRecord(given)})


def test_a_description_of_arrays_is_read():
    shape = {"mask": ("bool", (5,)), "size": ("float64", ())}
    assert ClientInfo.of(info(arrays=to_text(shape))).shape == shape


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"mask": ("object", (5,))},
        {"mask": ("bool", (0,))},
        {"mask": ("bool", (2**20, 2**20))},
        {"mask": ("bool", 5)},
        {3: ("bool", (5,))},
        ["mask"],
    ],
)
def test_a_description_of_arrays_that_is_not_valid(shape):
    with pytest.raises(ValueError, match="its info has "):
        ClientInfo.of(info(arrays=to_text(shape)))

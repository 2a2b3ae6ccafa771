"""Every column of ``history_`` is documented, with where it is there."""

import re

import pandas as pd
import pytest

import skfed.history
from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, PowerOfChoice
from skfed.aggregation import Scaffold
from skfed.availability import Dropout, LateJoin
from skfed.devices import ConstantDevices
from skfed.evaluation import FederatedEvaluation
from skfed.schedules import LinearDecay, StepDecay

LINE = r"^``(\w+)`` +(\w+) +(\S+) +(\S.*)$"
DOCUMENTED = {
    column: where
    for column, _, where, _ in re.findall(LINE, skfed.history.__doc__, flags=re.MULTILINE)
}
ADAPOW_D = PowerOfChoice(d=StepDecay(4, 0.5, [1]), clients_per_round=2)
VARIANTS = {
    "plain": ({"always"}, FederatedClassifier()),
    "validated": ({"always", "X_val"}, FederatedClassifier()),
    "FedALIGN": ({"always", "FedALIGN"}, FederatedClassifier(selector=FedAlignSelector())),
    "FedALIGN, eps falls": (
        {"always", "FedALIGN"},
        FederatedClassifier(selector=FedAlignSelector(eps=LinearDecay(0.5), match="accuracy")),
    ),
    "adapow-d": ({"always", "pow-d"}, FederatedClassifier(selector=ADAPOW_D)),
    "rates fall": ({"always"}, FederatedClassifier(lr_schedule=LinearDecay(0.1))),
    "failures": ({"always"}, FederatedClassifier(availability=Dropout(0.5))),
    "devices": ({"always", "devices"}, FederatedClassifier(devices=ConstantDevices(9, 9, 9))),
    "SCAFFOLD": ({"always"}, FederatedClassifier(aggregator=Scaffold())),
    "owners": ({"always", "X_val", "owners"}, FederatedClassifier()),
    "evaluated": (
        {"always", "X_val", "owners", "evals"},
        FederatedClassifier(evaluation=FederatedEvaluation(["loss"])),
    ),
    "joins": ({"always", "joins"}, FederatedClassifier(availability=LateJoin({"b": 1}))),
    "regressor": ({"always", "X_val"}, FederatedRegressor()),
    "regressor, adapow-d": ({"always", "pow-d"}, FederatedRegressor(selector=ADAPOW_D)),
}


@pytest.mark.parametrize(("there", "model"), VARIANTS.values(), ids=VARIANTS)
def test_the_columns_are_those_documented_in_that_order(blobs, there, model):
    X, y, clients = blobs
    validation = {"X_val": X, "y_val": y} if "X_val" in there else {}
    validation |= {"clients_val": clients} if "owners" in there else {}
    model.set_params(n_rounds=2, engine="loop", random_state=0)
    history = model.fit(X, y, clients=clients, **validation).history_
    assert list(history) == [column for column, where in DOCUMENTED.items() if where in there]


def test_no_column_is_documented_that_never_occurs():
    occurring = set().union(*(there for there, _ in VARIANTS.values()))
    assert set(DOCUMENTED.values()) == occurring
    assert len(DOCUMENTED) == len(re.findall("^``", skfed.history.__doc__, flags=re.MULTILINE))


def test_units_are_what_the_columns_hold(blobs):
    """Counts are whole, times are not negative and ids are tuples of those in clients."""
    X, y, clients = blobs
    model = FederatedClassifier(availability=Dropout(0.5), n_rounds=4, random_state=0)
    history = model.fit(X, y, clients=clients).history_
    units = {
        column: unit
        for column, unit, _, _ in re.findall(LINE, skfed.history.__doc__, flags=re.MULTILINE)
        if column in history
    }
    for column, unit in units.items():
        if unit in ("models", "scalars", "bytes", "rows", "clients", "updates", "index"):
            assert pd.api.types.is_integer_dtype(history[column]), column
            assert (history[column] >= 0).all()
        elif unit == "seconds":
            assert (history[column] >= 0).all() and (history[column] < 60).all()
        elif unit == "ids":
            assert all(set(ids) <= set("abcdef") for ids in history[column])
        else:
            assert unit in ("loss", "rate", "texts")

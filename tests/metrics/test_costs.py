"""Rounds, bytes and seconds to a target."""

import numpy as np
import pandas as pd
import pytest

from skfed.metrics import cost_to

HISTORY = pd.DataFrame(
    {
        "objective": [3.0, np.nan, 2.0, 1.0],
        "val_loss": [3.0, 1.0, 2.0, 1.0],
        "val_score": [np.nan, 0.5, 0.4, 0.7],
        "bytes_down": [10, 20, 30, 40],
        "bytes_up": [1, 2, 3, 4],
        "elapsed": [0.5, 1.5, 3.0, 7.0],
        "cohort": [(), (), (), ()],
    }
)
THREE = ["rounds", "bytes", "seconds"]


@pytest.mark.parametrize(
    ("column", "target", "expected"),
    [
        ("val_score", 0.5, (2, 33, 1.5)),  # at the target is enough
        ("val_score", 0.6, (4, 110, 7.0)),
        ("objective", 2.5, (3, 66, 3.0)),
        ("val_loss", 1.5, (2, 33, 1.5)),  # the first time counts, though it is left again
        ("val_loss", 5, (1, 11, 0.5)),
        ("val_score", 0.9, (np.nan,) * 3),
        ("bytes_up", 3, (3, 66, 3.0)),
    ],
)
def test_costs_by_hand(column, target, expected):
    found = cost_to(HISTORY, column, target)
    pd.testing.assert_series_equal(found, pd.Series(expected, index=THREE, dtype=float))


def test_without_devices_there_are_no_seconds():
    found = cost_to(HISTORY.drop(columns="elapsed"), "val_score", 0.5)
    pd.testing.assert_series_equal(found, pd.Series([2.0, 33.0, np.nan], index=THREE))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((HISTORY, "val_los", 1), "history has no column 'val_los'"),
        ((HISTORY, "cohort", 1), "column='cohort' of history has no numbers"),
        ((HISTORY, "val_score", np.nan), "'target' parameter.*nan"),
        ((HISTORY.drop(columns="bytes_up"), "val_score", 1), "history has no column 'bytes_up'"),
        (([], "val_score", 1), "'history' parameter"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises((TypeError, ValueError), match=match):
        cost_to(*arguments)

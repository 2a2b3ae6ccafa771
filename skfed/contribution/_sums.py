"""What clients have contributed over the rounds of a fit, summed from the rows of its history."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from skfed.exchanges import contributions_of
from skfed.utils._ids import client_index


def sum_contributions(rows: Iterable[Mapping[str, Any]], ids: np.ndarray) -> pd.DataFrame:
    """Return the value of each client, summed over rounds, and its standard error.

    Errors of rounds are independent, so that their squares are summed. A client that was in no
    cohort that was valued has 0.
    """
    values, squares = defaultdict[Any, float](float), defaultdict[Any, float](float)
    for row in rows:
        for client, (value, error) in contributions_of(row).items():
            values[client] += value
            squares[client] += error**2
    keys = ids.tolist()
    columns = {"value": [values[k] for k in keys], "error": [squares[k] ** 0.5 for k in keys]}
    return pd.DataFrame(columns, index=client_index(ids))

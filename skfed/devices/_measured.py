"""Speeds from measured times of exchanges."""

import numpy as np
import pandas as pd

from skfed.exchanges import KINDS

MEASURED = (
    *("round", "exchange", "kind", "client", "outcome"),
    *("seconds", "computing", "rows"),
)
_LEAST = 1e-9  # seconds, for a computation that was too short to measure


def measured_speeds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the speeds of each client in each round, from a table of measured exchanges.

    ``frame`` has the columns ``MEASURED``. The seconds in which a client has computed give its rows
    per second. All others are latency, since one measurement does not tell the time of bytes from
    that of waiting; bytes take no time. So a client takes as long in a round as was measured.
    """
    each = _by_exchange(frame)
    work = each["rows"] / each["kind"].map({name: kind.rows_as_one for name, kind in KINDS.items()})
    known = each["computing"].notna() & (work > 0)
    if not known.any():
        raise ValueError(
            "frame: computing has no seconds of clients, which only exchanges over Flower have: "
            "pass a table of them, or one of speeds."
        )
    spent = each["computing"].clip(lower=_LEAST)
    sums = pd.DataFrame({"work": work[known], "spent": spent[known]}).groupby("client").sum()
    rates = sums["work"] / sums["spent"]
    clients = each.index.get_level_values("client")
    # Silent replies say nothing: the rate of the client's others or, without any, of the others'.
    own_rate = pd.Series(rates.reindex(clients).fillna(rates.median()).to_numpy(), each.index)
    spent = spent.where(known, np.minimum(work / own_rate, each["seconds"]))
    parts = pd.DataFrame(
        {"work": work, "spent": spent, "waiting": each["seconds"] - spent, "rate": own_rate}
    )
    rounds = parts.groupby(["client", "round"], sort=False)
    total = rounds[["work", "spent"]].sum()
    speeds = pd.DataFrame(
        {
            "rows_per_second": (total["work"] / total["spent"]).where(
                total["work"] > 0, rounds["rate"].first()
            ),
            "bytes_down_per_second": np.inf,
            "bytes_up_per_second": np.inf,
            "latency": rounds["waiting"].mean().clip(lower=0.0),
        }
    )
    return speeds.reset_index()


def _by_exchange(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each exchange that a client has answered; copies of it share seconds."""
    answered = frame["outcome"].isin(["answered", "silent"]) & frame["seconds"].notna()
    of_copies = frame[answered].groupby(["client", "round", "exchange"], sort=False)
    return of_copies.agg(
        kind=("kind", "first"),
        seconds=("seconds", "first"),
        computing=("computing", "first"),
        rows=("rows", "sum"),
    )

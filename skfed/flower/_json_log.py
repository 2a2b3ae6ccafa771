"""A line of JSON for each client and round, for those who operate a federation."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from skfed.exchanges import exchange_table


def checked_log(path: str | PathLike | None) -> Path | None:
    """Return the file to write to, in a folder that exists."""
    if path is None:
        return None
    if not isinstance(path, str | PathLike) or not Path(path).parent.is_dir():
        raise ValueError(
            f"log_json={path!r} must be the path of a file, in a folder of the server that exists."
        )
    return Path(path)


def log_round(path: Path | None, row: Mapping[str, Any]) -> None:
    """Append the lines of a finished round; the file is closed after it, so it may be rotated."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in _lines(row))


def _lines(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a round has asked of each client, in the order in which they were asked first."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    causes = dict(zip(row["failed"], row["causes"], strict=True))
    for client, own in exchange_table([row]).groupby("client", sort=False):
        cause = {"cause": str(causes[client])} if client in causes else {}
        yield {
            "time": time,
            "round": row["round"],
            "client": client,
            "seconds": _seconds(own),
            "bytes_down": int(own["bytes_down"].sum()),
            "bytes_up": int(own["bytes_up"].sum()),
            "exchanges": own[["kind", "outcome"]].drop_duplicates().to_dict("records"),
            **cause,
        }


def _seconds(own: pd.DataFrame) -> float | None:
    """Return the seconds from requests to replies; None of a client that has sent no reply.

    One that was drawn twice gets one message, and has two rows.
    """
    total = own.groupby("exchange")["seconds"].max().sum(min_count=1)
    return None if pd.isna(total) else round(float(total), 3)

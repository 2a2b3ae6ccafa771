"""A line of JSON for each client and round, for those who operate a federation."""

import json
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from skfed.exchanges import exchange_table

logger = logging.getLogger(__name__)


def checked_log(path: str | PathLike | None) -> Path | None:
    """Return the file to write to, which can be written."""
    if path is None:
        return None
    if not isinstance(path, str | PathLike):
        raise ValueError(f"log_json={path!r} must be the path of a file.")
    try:
        Path(path).open("a").close()
    except OSError as error:
        raise ValueError(
            f"log_json={str(path)!r} must be the path of a file that the server can write, in a "
            f"folder that exists: {error.strerror}."
        ) from error
    return Path(path)


def log_round(path: Path | None, row: Mapping[str, Any]) -> None:
    """Append the lines of a finished round; the file is closed after it, so it may be rotated.

    A failure is a warning: the round is finished, and the run goes on.
    """
    if path is None:
        return
    text = "".join(json.dumps(line) + "\n" for line in _lines(row))
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        logger.warning("round %d is not in log_json=%s: %s", row["round"], path, error.strerror)


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

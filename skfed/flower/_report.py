"""The table of who took part in a run, which the server may send to the sites."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from flwr.app import ConfigRecord, Context, RecordDict
from sklearn.base import BaseEstimator

from skfed import inspection
from skfed.flower._messages import (
    REPORT_QUERY,
    abbreviated,
    from_text,
    get_record,
    to_config,
    to_text,
)
from skfed.flower._nodes import Nodes
from skfed.utils._warnings import warn

OnReport = Callable[[pd.DataFrame, Context], Any]

logger = logging.getLogger("flwr")  # its lines are shown by `flwr run --stream` and by nodes

#: What a site may get: nothing, its own row, or the rows of all.
REPORTS = "none", "own", "all"


def checked_report(report: Any) -> str:
    """Return which rows each site gets, one of ``REPORTS``."""
    if isinstance(report, str) and report in REPORTS:
        return report
    raise ValueError(f"report={report!r} must be one of {REPORTS}.")


def send_reports(nodes: Nodes, model: BaseEstimator, rows: str) -> None:
    """Send each site its own row or all; a warning names those that have not confirmed it."""
    if rows == "none":
        return
    report = inspection.participation_report(model)
    contents = {
        name: to_content(name, report if rows == "all" else _own_row(report, name))
        for name in nodes.clients
    }
    replies = nodes.exchange(contents, REPORT_QUERY)
    failures = {k: one for k, one in replies.contents.items() if isinstance(one, Exception)}
    logger.info(
        "%d of %d clients have the participation report",
        len(contents) - len(failures),
        len(contents),
    )
    if failures:
        warn(_told(failures))


def to_content(client: str, report: pd.DataFrame) -> RecordDict:
    """Return the message with a table."""
    text = to_text(
        {
            "clients": report.index.tolist(),
            "columns": {name: report[name].tolist() for name in report},
            "attrs": dict(report.attrs),
        }
    )
    return RecordDict({"request": to_config(client=client), "report": ConfigRecord({"json": text})})


def receive_report(content: RecordDict, context: Context, on_report: OnReport | None) -> None:
    """Log the table of a message, and give it to the user of a client."""
    table = from_text(get_record(content, "report", ConfigRecord).get("json"))
    report = pd.DataFrame(table["columns"], index=table["clients"])
    report.attrs.update(table["attrs"])
    logger.info("participation report, clients: %d\n%s", len(report), report.T.to_string())
    if on_report is not None:
        on_report(report, context)


def _own_row(report: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the row of a client, without what the table says of all."""
    row = report.loc[[name]]
    row.attrs = {}
    return row


def _told(failures: Mapping[str, Exception]) -> str:
    causes = {name: f"{type(error).__name__}: {error}" for name, error in failures.items()}
    return f"these clients have not confirmed the participation report: {abbreviated(causes)}"

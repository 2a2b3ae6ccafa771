r"""What a server would ask of a site, and get, run in the site's own process.

.. code-block:: sh

   python -m skfed.flower.check phones.client_app:app \
       --node-config 'client-name="site 1" data="/data/phones"'

loads the ClientApp, which :func:`skfed.flower.client_app` has made, in the folder of the Flower
project, and gives it the messages of a round of a site that has priority, from the hello to the
training. What some rules and reports ask for besides (sketches, trial rounds, uploads, valuations,
reports) is not asked. Nothing leaves the machine. It prints what the site would report of its data,
what it would send in each kind of message, with bytes, and the loss before and after its training.
If something is wrong, it prints what, and the exit status is 1.
"""

import argparse
import importlib
import json
import logging
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flwr.app import ArrayRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import parse_config_args
from flwr.common.serde import recorddict_to_proto

from skfed._classifier import FederatedClassifier
from skfed.flower._client_info import ClientInfo
from skfed.flower._dry_run import DryRun, Exchanged, SiteError, run
from skfed.flower._messages import TIMES, TRAIN, Refusal
from skfed.flower._pipeline import split

_MOST = 200  # characters of a list of names


class _Wrong(Exception):
    """What is wrong with the arguments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a site; return the exit status."""
    given = _parser().parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # of the rounds of the server
    try:
        app, node_config = _load(given.app), _read(given.node_config)
        done = run(app, node_config, _labels(given.classes))
    except Exception as error:
        _tell(error, given)
        return 1
    print("\n".join(_told(app, done)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m skfed.flower.check",
        description="What this site would report and send, and how it trains. Nothing is sent.",
    )
    parser.add_argument(
        "app", metavar="MODULE:APP", help="clientapp of the project's pyproject.toml"
    )
    parser.add_argument(
        "--node-config",
        default="",
        metavar="TEXT",
        help='as that of flower-supernode: \'client-name="site 1" data="/data"\'',
    )
    parser.add_argument(
        "--classes",
        metavar="JSON",
        help='all labels, if the server names them: \'["no", "yes"]\'; default: those of this site',
    )
    return parser


def _load(reference: str) -> ClientApp:
    """Import the ClientApp of a project in this folder."""
    module, _, name = reference.partition(":")
    if not (module and name):
        raise _Wrong(f"{reference!r} must be MODULE:APP, such as phones.client_app:app.")
    sys.path.insert(0, "")  # the folder of the project, as Flower does
    try:
        app = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise _Wrong(
            f"there is no module {error.name!r}: run this in the folder of the project's "
            "pyproject.toml, whose [tool.flwr.app.components] have the name of the clientapp."
        ) from error
    if not hasattr(app, "load_data"):
        kind = "nothing" if app is None else f"a {type(app).__name__}"
        raise _Wrong(f"{reference} is {kind}: name what skfed.flower.client_app has returned.")
    return app


def _read(node_config: str) -> dict[str, Any]:
    """Return the configuration of a node, as Flower reads it."""
    try:
        return parse_config_args([node_config])
    except Exception as error:  # Flower's, whose type is of another package
        raise _Wrong(f"--node-config {node_config!r}: {error}") from error


def _labels(text: str | None) -> list | None:
    """Return the labels that the server names."""
    if text is None:
        return None
    try:
        labels = json.loads(text)
    except ValueError:
        labels = None
    if not isinstance(labels, list):
        raise _Wrong(f"--classes {text!r} must be a JSON list of all labels, such as '[0, 1]'.")
    return labels


def _tell(error: Exception, given: argparse.Namespace) -> None:
    """Print what is wrong; where, if it is not known what to do about it."""
    where, cause = "", error.__cause__
    if isinstance(error, SiteError) and cause is not None:
        where = f"in answer to {error.kind}: "
    else:
        cause = error
    if not isinstance(cause, _Wrong | Refusal):
        traceback.print_exception(cause)
        where += f"{type(cause).__name__}: "
    print(f"error: {where}{cause}{_hint(cause, given)}", file=sys.stderr)


def _hint(error: BaseException, given: argparse.Namespace) -> str:
    """Return what the arguments lack, if that is what is wrong."""
    if given.classes is not None and isinstance(error, ValueError) and "classes_" in str(error):
        return f" Here classes_ are those of --classes {given.classes!r}: add the label."
    if not isinstance(error, KeyError) or not error.args:
        return ""
    config = _read(given.node_config)
    if error.args[0] in config:
        return ""
    return f": --node-config has no such value, only {sorted(config)}"


def _told(app: ClientApp, done: DryRun) -> Iterator[str]:
    """Yield lines of what a site reports, sends and trains."""
    yield from _described(done.info, app.estimator)
    yield ""
    yield from _sent(done.exchanged)
    yield ""
    yield from _trained(done)
    yield "Nothing was sent: this site can take part."


def _described(info: ClientInfo, estimator: Any) -> Iterator[str]:
    yield "What it reports of its data"
    raw = info.raw
    rows = {
        "name": info.name,
        "rows": f"{info.n_samples:,}",
        "shape of a row": str(info.shape),
        "dtype": info.dtype if raw is None else _list(sorted(set(raw.dtypes))),
        "columns": "without names" if info.columns is None else _list(info.columns),
        "shape of y": str(info.target_shape or "a value of each row"),
    }
    if raw is not None:
        rows["contents"] = _list(sorted(set(raw.contents)))
    if info.classes is not None:
        rows["labels, if asked"] = _list(map(repr, info.classes))
    elif isinstance(split(estimator)[1], FederatedClassifier):
        rows["labels"] = "not reported, so the server has to name all: FederatedStrategy(classes=)"
    for name, value in rows.items():
        yield f"  {name:17}{value}"


def _sent(exchanged: Sequence[Exchanged]) -> Iterator[str]:
    """Yield a line for each kind of message; a kind may have several."""
    yield "What it would get and send, in bytes"
    yield f"  {'message':22} {'number':>6} {'gets':>10} {'sends':>10}  what it sends"
    for kind in dict.fromkeys(one.kind for one in exchanged):
        own = [one for one in exchanged if one.kind == kind]
        down = sum(_n_bytes(one.request) for one in own)
        up = sum(_n_bytes(one.reply) for one in own)
        what = _list(dict.fromkeys(text for one in own for text in _contents(one.reply)))
        yield f"  {kind:22} {len(own):>6} {down:>10,} {up:>10,}  {what}"


def _contents(reply: RecordDict) -> Iterator[str]:
    """Yield what the records of a reply have: shapes of arrays, and names of values."""
    for name, record in reply.items():
        if isinstance(record, ArrayRecord):
            told = [f"{key} {tuple(array.shape)}" for key, array in record.items()]
        else:
            told = list(record)
        yield f"{name}: {', '.join(told)}"


def _n_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's content as Flower encodes it."""
    return recorddict_to_proto(content).ByteSize()


def _trained(done: DryRun) -> Iterator[str]:
    (training,) = [one for one in done.exchanged if one.kind == TRAIN]
    request = training.request["request"]
    lengths = {"steps": request.get("steps"), "epochs": request.get("epochs")}
    length = next(f"{n} {unit}" for unit, n in lengths.items() if n is not None)
    before, after = done.losses
    computing = training.reply[TIMES]["computing"]
    yield "How it trains"
    yield f"  loss of the model on its rows: {before:.4f}, after {length}: {after:.4f}"
    yield f"  {computing:.2f} s of training, {training.seconds:.2f} s with reading its rows"


def _list(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


if __name__ == "__main__":
    sys.exit(main())

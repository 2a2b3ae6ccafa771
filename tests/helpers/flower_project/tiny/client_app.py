"""A site that fails as the files in its folder say, and logs the messages."""

import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from skfed.flower import client_app
from tiny.task import make_estimator, make_site, make_table


def load(context, make):
    """Return the rows of a site; in a run that sites join, some of them as those kept aside."""
    X, y = make(context.node_config["client-name"])
    return (X[:20], y[:20], X[20:], y[20:]) if context.run_config["join"] else (X, y)


SITES = {
    with_steps: client_app(
        make_estimator(rounds=1, with_steps=with_steps),
        lambda context, make=make: load(context, make),
    )
    for with_steps, make in ((False, make_site), (True, make_table))
}
app = ClientApp()


def has_answered(folder, t):
    """Tell whether a site has logged its training of round t."""
    log = folder / "exchanges.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return any(json.loads(line)["round"] == t for line in lines)


@app.query("skfed_hello")
@app.query("skfed_steps")
@app.query("skfed_moments")
@app.query("skfed_poll")
@app.query("skfed_held_out")
@app.train()
def reply_to(message, context):
    folder = Path(context.node_config["data"])
    kind = message.metadata.message_type
    t = message.content["request"]["round"] if kind == "train" else kind.rpartition("_")[2]
    if (folder / f"garbage-{t}").exists():
        return Message(RecordDict({"spam": ConfigRecord({"eggs": b"\x80\x04"})}), reply_to=message)
    if (folder / f"stall-{t}").exists():
        (folder / "stalled").touch()
        while (folder / f"stall-{t}").exists():
            time.sleep(0.1)
    reply = SITES[context.run_config["steps"]](message, context)
    if kind == "train" and (folder / "after").exists():
        other = folder.parent / (folder / "after").read_text()
        while not has_answered(other, t):
            time.sleep(0.1)
    if kind == "train" and (folder / "slow").exists():
        time.sleep(float((folder / "slow").read_text()))
    exchange = {
        "round": t if kind == "train" else None,
        "kind": kind,
        "received": sorted(message.content),
        "sent": sorted(reply.content),
    }
    with (folder / "exchanges.jsonl").open("a") as file:
        file.write(json.dumps(exchange) + "\n")
    return reply

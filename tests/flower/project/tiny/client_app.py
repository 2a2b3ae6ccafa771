"""A site that fails as the files in its folder say, and logs the messages."""

import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from skfed.flower import client_app
from tiny.task import make_estimator, make_site

site = client_app(
    make_estimator(rounds=1), lambda context: make_site(context.node_config["client-name"])
)
app = ClientApp()


@app.query("skfed_hello")
@app.query("skfed_poll")
@app.train()
def reply_to(message, context):
    folder = Path(context.node_config["data"])
    kind = message.metadata.message_type
    t = message.content["request"]["round"] if kind == "train" else None
    if (folder / f"garbage-{t}").exists():
        return Message(RecordDict({"spam": ConfigRecord({"eggs": b"\x80\x04"})}), reply_to=message)
    if (folder / f"stall-{t}").exists():
        (folder / "stalled").touch()
        while (folder / f"stall-{t}").exists():
            time.sleep(0.1)
    reply = site(message, context)
    exchange = {
        "round": t,
        "kind": kind,
        "received": sorted(message.content),
        "sent": sorted(reply.content),
    }
    with (folder / "exchanges.jsonl").open("a") as file:
        file.write(json.dumps(exchange) + "\n")
    return reply

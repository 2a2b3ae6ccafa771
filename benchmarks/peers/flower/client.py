"""Flower's client, in a module of its own, which the simulation's worker imports once.

Every message has the model and the configuration; the data are read once in each worker.
"""

from functools import lru_cache

import common
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy
from torch_models import make_module, make_optimizer

app = ClientApp()


@lru_cache(maxsize=1)
def load(data: str, name: str) -> tuple[common.Federation, torch.nn.Module, list]:
    """Return the federation, a network to train, and each client's tensors."""
    torch.set_num_threads(1)
    federation = common.read_federation(["--data", data, "--workload", name])
    X, y = torch.from_numpy(federation.X), torch.from_numpy(federation.y)
    clients = [(X[rows], y[rows]) for rows in federation.rows]
    return federation, make_module(federation.workload.model), clients


def unpack(message: Message, context: Context):
    """Return the workload, the network with the message's parameters, and this client's data."""
    config = message.content["config"]
    federation, model, clients = load(config["data"], config["workload"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return federation.workload, model, *clients[context.node_config["partition-id"]]


def batches(n_rows: int, work):
    """Yield the rows of each local step."""
    if work.local_steps is not None:
        for _ in range(work.local_steps):
            yield torch.randperm(n_rows)[: work.batch_size]
    else:
        for _ in range(work.local_epochs):
            yield from torch.randperm(n_rows).split(work.batch_size)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with the parameters after local training."""
    work, model, X, y = unpack(message, context)
    optimizer = make_optimizer(work, model.parameters())
    for rows in batches(len(y), work):
        optimizer.zero_grad()
        cross_entropy(model(X.index_select(0, rows)), y.index_select(0, rows)).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
@torch.no_grad()
def evaluate(message: Message, context: Context) -> Message:
    """Reply with the mean loss of the parameters sent, and with the index of this client."""
    _, model, X, y = unpack(message, context)
    loss = cross_entropy(model(X), y).item()
    client = context.node_config["partition-id"]
    metrics = MetricRecord({"loss": loss, "client": client, "num-examples": len(y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

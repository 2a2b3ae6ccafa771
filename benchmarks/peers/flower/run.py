"""Flower: FedAvg in its simulation, whose one worker is a Ray actor on the same core."""

# ruff: noqa: E402
import contextlib
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
folder = tempfile.TemporaryDirectory()
os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    FLWR_HOME=folder.name,
    RAY_USAGE_STATS_ENABLED="0",
)

import client
import common
import torch
from flwr.app import ArrayRecord, ConfigRecord, MessageType, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.simulation import run_simulation
from torch_models import make_module


class TimedFedAvg(FedAvg):
    """FedAvg that polls candidates before a round, if the workload has any, and times rounds."""

    def __init__(self, federation: common.Federation):
        work = federation.workload
        share = work.clients_per_round / work.n_clients
        super().__init__(
            fraction_train=share,
            fraction_evaluate=0.0,
            min_train_nodes=work.clients_per_round,
            min_available_nodes=work.n_clients,
        )
        self.federation, self.stopwatch = federation, common.Stopwatch()
        self.nodes: dict[int, int] = {}  # node id of each client

    def configure_train(self, server_round, arrays, config, grid):
        work = self.federation.workload
        if work.candidates is None:
            return super().configure_train(server_round, arrays, config, grid)
        record = RecordDict({"arrays": arrays, "config": config})
        if not self.nodes:  # in the first round, ask each node for its client
            everyone, _ = sample_nodes(grid, work.n_clients, work.n_clients)
            replies = self._ask(record, everyone, grid)
            self.nodes = {reply["client"]: node for node, reply in replies.items()}
        candidates = self.federation.draw(work.candidates, by_size=True)
        nodes = [self.nodes[k] for k in candidates]
        replies = self._ask(record, nodes, grid)
        cohort = self.federation.highest(candidates, [replies[node]["loss"] for node in nodes])
        nodes = [self.nodes[k] for k in cohort]
        return self._construct_messages(record, nodes, MessageType.TRAIN)

    def _ask(self, record, nodes, grid) -> dict:
        messages = self._construct_messages(record, nodes, MessageType.EVALUATE)
        replies = grid.send_and_receive(messages)
        return {reply.metadata.src_node_id: reply.content["metrics"] for reply in replies}

    def aggregate_train(self, server_round, replies):
        self.arrays, metrics = super().aggregate_train(server_round, replies)
        if not self.stopwatch.another():
            raise NoMoreWanted
        return self.arrays, metrics


class NoMoreWanted(Exception):
    """Ends Flower's loop over rounds."""


def simulate(federation: common.Federation, model: torch.nn.Module, data: str) -> None:
    """Run and time rounds as long as they are wanted; load the result into ``model``."""
    server, strategy = ServerApp(), TimedFedAvg(federation)

    @server.main()
    def main(grid, context):
        strategy.stopwatch.another()
        with contextlib.suppress(NoMoreWanted):
            strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord(model.state_dict()),
                num_rounds=10**9,
                train_config=ConfigRecord({"data": data, "workload": federation.name}),
            )
        model.load_state_dict(strategy.arrays.to_torch_state_dict())

    run_simulation(
        server_app=server,
        client_app=client.app,
        num_supernodes=federation.workload.n_clients,
        backend_config={
            "init_args": {"num_cpus": 1, "log_to_driver": False, "logging_level": "error"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    federation = common.read_federation()
    model = make_module(federation.workload.model)
    before = common.torch_loss(model, federation)
    simulate(federation, model, str(federation.data))
    after = common.torch_loss(model, federation)
    common.report("flower", "flwr", federation, [before, after])

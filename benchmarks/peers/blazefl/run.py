"""BlazeFL: its FedAvg with one thread, which trains the clients one after another.

Its trainers of several threads or processes build a model for each client; one core gains nothing
from them.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
os.environ["TQDM_DISABLE"] = "1"

import common
import torch
from batches import Batches
from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgBaseServerHandler
from torch_models import make_module, make_optimizer


class Models:
    """Builds the workload's network, as BlazeFL asks for it."""

    def __init__(self, work):
        self.work = work

    def select_model(self, model_name):
        return make_module(self.work.model)


class Clients:
    """The federation as a partitioned data set of BlazeFL."""

    def __init__(self, federation: common.Federation):
        X, y = torch.from_numpy(federation.X), torch.from_numpy(federation.y)
        self.clients = [(X[rows], y[rows]) for rows in federation.rows]
        self.steps = federation.workload.local_steps

    def get_dataloader(self, type_, cid, batch_size, generator):
        return Batches(*self.clients[cid], batch_size, self.steps)


class Trainer(FedAvgBaseClientTrainer):
    """BlazeFL's trainer with the workload's optimizer, whose state each client begins anew."""

    def setup_workload(self, work):
        self.optimizer = make_optimizer(work, self.model.parameters())

    def train(self, model_parameters, train_loader, cid):
        self.optimizer.state.clear()
        return super().train(model_parameters, train_loader, cid)


class Rounds:
    """Rounds of a handler and a trainer, as in BlazeFL's examples."""

    def __init__(self, federation: common.Federation):
        self.federation, work = federation, federation.workload
        self.clients = Clients(federation)
        shared = {
            "model_selector": Models(work),
            "model_name": "",
            "dataset": self.clients,
            "num_clients": work.n_clients,
            "device": "cpu",
            "batch_size": work.batch_size,
            "seed": 0,
        }
        share = work.clients_per_round / work.n_clients
        self.handler = FedAvgBaseServerHandler(global_round=10**9, sample_ratio=share, **shared)
        self.trainer = Trainer(epochs=work.local_epochs, lr=work.lr, **shared)
        self.trainer.setup_workload(work)

    def one_round(self):
        self.trainer.local_process(self.handler.downlink_package(), self._choose())
        for package in self.trainer.uplink_package():
            self.handler.load(package)

    def _choose(self) -> list[int]:
        if self.federation.workload.candidates is None:
            return self.handler.sample_clients()
        candidates = self.federation.draw(self.federation.workload.candidates, by_size=True)
        polls = [
            self.handler.evaluate(self.handler.model, [self.clients.clients[k]], "cpu")
            for k in candidates
        ]
        return self.federation.highest(candidates, [loss for loss, _ in polls]).tolist()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    federation = common.read_federation()
    rounds = Rounds(federation)
    before = common.torch_loss(rounds.handler.model, federation)
    stopwatch = common.Stopwatch()
    while stopwatch.another():
        rounds.one_round()
    after = common.torch_loss(rounds.handler.model, federation)
    common.report("blazefl", "blazefl", federation, [before, after])

"""FedLab: its serial trainer and its server handlers, power-of-choice's where there are polls."""

# ruff: noqa: E402
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from unittest.mock import MagicMock

import common

# FedLab imports torchvision for data sets that are not used here; it has no build for this torch.
sys.modules.setdefault("torchvision", MagicMock())

import torch
from batches import Batches
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.powerofchoice import Powerofchoice, PowerofchoiceSerialClientTrainer
from fedlab.contrib.dataset.basic_dataset import FedDataset
from torch_models import make_module, make_optimizer


class Clients(FedDataset):
    """The federation as a FedLab data set: a loader for each client."""

    def __init__(self, federation: common.Federation):
        super().__init__()
        X, y = torch.from_numpy(federation.X), torch.from_numpy(federation.y)
        self.clients = [(X[rows], y[rows]) for rows in federation.rows]
        self.steps = federation.workload.local_steps

    def get_dataloader(self, id, batch_size=None, type="train"):
        if batch_size is None:  # a poll: the whole data at once
            return [self.clients[id]]
        return Batches(*self.clients[id], batch_size, self.steps)


class Trainer(PowerofchoiceSerialClientTrainer):
    """FedLab's trainer with the workload's optimizer, whose state each client begins anew."""

    def setup_workload(self, work):
        self.setup_optim(work.local_epochs, work.batch_size, work.lr)
        self.optimizer = make_optimizer(work, self._model.parameters())

    def train(self, model_parameters, train_loader):
        self.optimizer.state.clear()
        return super().train(model_parameters, train_loader)


class Rounds:
    """Rounds of a handler and a trainer, as in FedLab's standalone pipelines."""

    def __init__(self, federation: common.Federation, model: torch.nn.Module):
        self.federation, work = federation, federation.workload
        handler = SyncServerHandler if work.candidates is None else Powerofchoice
        share = work.clients_per_round / work.n_clients
        self.handler = handler(model, global_round=10**9, sample_ratio=share)
        self.trainer = Trainer(model, work.n_clients)
        self.handler.num_clients = self.trainer.num_clients
        self.trainer.setup_dataset(Clients(federation))
        self.trainer.setup_workload(work)

    def one_round(self):
        cohort = self._choose()
        self.trainer.local_process(self.handler.downlink_package, cohort)
        for package in self.trainer.uplink_package:
            self.handler.load(package)

    def _choose(self) -> list[int]:
        work = self.federation.workload
        if work.candidates is None:
            return self.handler.sample_clients()
        # FedLab's own candidates are drawn uniformly, not by their share of the data.
        candidates = self.federation.draw(work.candidates, by_size=True)
        losses = self.trainer.evaluate(candidates, self.handler.model_parameters)
        return self.handler.sample_clients(candidates, losses)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    federation = common.read_federation()
    rounds = Rounds(federation, make_module(federation.workload.model))
    before = common.torch_loss(rounds.handler.model, federation)
    stopwatch = common.Stopwatch()
    while stopwatch.another():
        rounds.one_round()
    after = common.torch_loss(rounds.handler.model, federation)
    common.report("fedlab", "fedlab", federation, [before, after])

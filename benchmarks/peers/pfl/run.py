"""pfl-research: FederatedAveraging of a PyTorchModel on its simulated backend."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import common
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy
from torch_models import make_module
from workloads import Workload

MANY = 10**9  # more rounds than are ever wanted


class Network(torch.nn.Sequential):
    """The workload's network, with the methods that pfl needs."""

    def __init__(self, work: Workload):
        super().__init__(make_module(work.model))

    def loss(self, X, y):
        return cross_entropy(self(X), y)

    @torch.no_grad()
    def metrics(self, X, y):
        return {"loss": Weighted(cross_entropy(self(X), y, reduction="sum").item(), len(y))}


class Client(PyTorchTensorDataset):
    """A client with new minibatches in each epoch; pfl's own are the same in all."""

    def __init__(self, X: torch.Tensor, y: torch.Tensor, steps: int | None, user_id: str):
        super().__init__((X, y), user_id=user_id)
        self.steps = steps

    def iter(self, batch_size: int):
        X, y = self.raw_data
        for rows in self._rows(batch_size):
            yield X.index_select(0, rows), y.index_select(0, rows)

    def _rows(self, batch_size: int):
        n = len(self.raw_data[1])
        if self.steps is None:
            return torch.randperm(n).split(batch_size)
        return (torch.randperm(n)[:batch_size] for _ in range(self.steps))


class Cohorts:
    """A sampler for pfl that returns one user a call; a round's first call chooses the cohort."""

    def __init__(self, federation: common.Federation, clients: list[Client], model: PyTorchModel):
        self.federation, self.model = federation, model
        self.polled = [PyTorchTensorDataset(client.raw_data) for client in clients]
        self.waiting: list[int] = []

    def __call__(self) -> int:
        if not self.waiting:
            self.waiting = list(self._choose())
        return self.waiting.pop()

    def _choose(self):
        work = self.federation.workload
        if work.candidates is None:
            return self.federation.draw(work.clients_per_round)
        candidates = self.federation.draw(work.candidates, by_size=True)
        polls = [self.model.evaluate(self.polled[k]) for k in candidates]
        losses = [poll[StringMetricName("loss")].overall_value for poll in polls]
        return self.federation.highest(candidates, losses)


class Clock(TrainingProcessCallback):
    """Ends the training when no more rounds are wanted."""

    def __init__(self, stopwatch: common.Stopwatch):
        self.stopwatch = stopwatch

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        return not self.stopwatch.another(), Metrics()


def make_params(work) -> tuple[NNAlgorithmParams, NNTrainHyperParams]:
    """Return the parameters of the server and of the clients."""
    server = NNAlgorithmParams(
        central_num_iterations=MANY,
        evaluation_frequency=MANY,  # the first round alone evaluates its users, untimed
        train_cohort_size=work.clients_per_round,
        val_cohort_size=None,
    )
    clients = NNTrainHyperParams(
        local_num_epochs=None if work.local_steps else work.local_epochs,
        local_num_steps=work.local_steps,
        local_learning_rate=work.lr,
        local_batch_size=work.batch_size,
    )
    return server, clients


def run(federation: common.Federation, network: Network) -> None:
    """Run and time rounds as long as they are wanted."""
    work, stopwatch = federation.workload, common.Stopwatch()
    X, y = torch.from_numpy(federation.X), torch.from_numpy(federation.y)
    clients = [
        Client(X[rows], y[rows], work.local_steps, str(k)) for k, rows in enumerate(federation.rows)
    ]
    model = PyTorchModel(
        network,
        getattr(torch.optim, work.optimizer),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    users = FederatedDataset(clients.__getitem__, Cohorts(federation, clients, model))
    server, training = make_params(work)
    stopwatch.another()
    FederatedAveraging().run(
        server,
        SimulatedBackend(users, users, postprocessors=[WeightByUser()]),
        model,
        training,
        NNEvalHyperParams(local_batch_size=None),
        [Clock(stopwatch)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    federation = common.read_federation()
    network = Network(federation.workload)
    before = common.torch_loss(network, federation)
    run(federation, network)
    after = common.torch_loss(network, federation)
    common.report("pfl", "pfl", federation, [before, after])

"""FedALIGN's experiments on images: 60 clients with shards of images sorted by class.

Where a class is not a whole number of shards (MNIST, CIFAR-10), some shards have two classes.
"""

from functools import partial

import numpy as np
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.runs.problems import shards
from benchmarks.runs.settings import Setting
from skfed import FedAlignSelector, RandomSelector
from skfed.modules import MLP, ConvNet, SoftmaxRegression
from skfed.schedules import ExponentialDecay, LinearDecay, StepDecay

N_ROUNDS, WARMUP = 200, 0.1
PRIORITY, ALL = "priority only", "all"
BY_ACCURACY, BY_LOSS = "FedALIGN by accuracy, eps 0.2", "FedALIGN by loss, eps 0.2"
BY_LOSS_04 = "FedALIGN by loss, eps 0.4"
BY_ACCURACY_TO_0 = "FedALIGN by accuracy, eps 0.2 to 0"
BY_LOSS_TO_0 = "FedALIGN by loss, eps 0.2 to 0"
STEPWISE = "FedALIGN by accuracy, eps halved every 30 rounds"
EXPONENTIAL = "FedALIGN by accuracy, eps 0.2 x 0.98^t"
MAIN = (PRIORITY, ALL, BY_ACCURACY, BY_LOSS)


class OfAll(FedAlignSelector):
    """FedAvg on a uniform sample of all clients after the warm-up on priority clients.

    FedALIGN with an infinite eps would give free clients less weight: the weights of equation 56
    are those of the clients that take part alone.
    """

    def _select(self, round):
        if round.index < self._warmup_rounds(round.n_rounds):
            return super()._select(round)
        sample = RandomSelector(self.participation, probability="uniform", replace=False)
        return sample.select(round)


def strategies(participation: float = 1.0) -> dict[str, dict]:
    """Return the baselines and FedALIGN; only priority clients train in the warm-up."""
    align = partial(FedAlignSelector, warmup=WARMUP, participation=participation)
    everybody = {"warmup": WARMUP, "participation": participation}
    return {
        PRIORITY: {"selector": FedAlignSelector(eps=0, warmup=1.0, participation=participation)},
        ALL: {"selector": align(eps=np.inf) if participation == 1 else OfAll(**everybody)},
        BY_ACCURACY: {"selector": align(eps=0.2, match="accuracy")},
        BY_LOSS: {"selector": align(eps=0.2)},
        BY_LOSS_04: {"selector": align(eps=0.4)},
        BY_ACCURACY_TO_0: {"selector": align(eps=LinearDecay(0.2), match="accuracy")},
        BY_LOSS_TO_0: {"selector": align(eps=LinearDecay(0.2))},
        STEPWISE: {"selector": align(eps=StepDecay(0.2, 0.5, 30), match="accuracy")},
        EXPONENTIAL: {"selector": align(eps=ExponentialDecay(0.2, 0.98), match="accuracy")},
    }


def softmax_regression(n_features: int = 784, n_classes: int = 10) -> NeuralNetClassifier:
    """Return 784-10, zero-initialised: SGD at 0.1 on minibatches of 32."""
    return NeuralNetClassifier(
        SoftmaxRegression,
        module__n_features=n_features,
        module__n_classes=n_classes,
        criterion=nn.CrossEntropyLoss,
        lr=0.1,
        batch_size=32,
    )


def two_layers() -> NeuralNetClassifier:
    """Return 784-200-200-10: EMNIST's network has 47 outputs, MNIST's 10."""
    return NeuralNetClassifier(
        MLP,
        module__n_features=784,
        module__hidden=(200, 200),
        module__n_classes=10,
        criterion=nn.CrossEntropyLoss,
        lr=0.1,
        batch_size=32,
    )


def convolutions() -> NeuralNetClassifier:
    """Return the network for CIFAR-10: SGD at 0.01."""
    return NeuralNetClassifier(ConvNet, criterion=nn.CrossEntropyLoss, lr=0.01, batch_size=32)


def fashion_mnist(
    n_priority: int = 2,
    *,
    steps: int = 5,
    proximal_mu: float = 0.0,
    participation: float = 1.0,
) -> Setting:
    """Return Fashion-MNIST: 120 shards of 500, two a client; softmax regression."""
    return Setting(
        name=_name("fashion-mnist", n_priority, steps, proximal_mu, participation),
        problem=partial(shards, name="fashion-mnist", n_priority=n_priority),
        net=softmax_regression,
        training={"local_steps": steps, "proximal_mu": proximal_mu},
        strategies=strategies(participation),
        n_rounds=N_ROUNDS,
        loss_every=5,
    )


def mnist(
    n_priority: int = 2,
    *,
    steps: int = 5,
    proximal_mu: float = 0.0,
    participation: float = 1.0,
    shards_per_client: int = 5,
) -> Setting:
    """Return EMNIST's set-up on MNIST: 600 shards of 100, each of which several clients may draw.

    With 24 shards a client holds 40% of EMNIST's 47 classes; with 5, 41% of MNIST's ten.
    """
    return Setting(
        name=_name(f"mnist-{shards_per_client}", n_priority, steps, proximal_mu, participation),
        problem=partial(
            shards,
            name="mnist",
            n_priority=n_priority,
            n_shards=600,
            shards_per_client=shards_per_client,
        ),
        net=two_layers,
        training={"local_steps": steps, "proximal_mu": proximal_mu},
        strategies=strategies(participation),
        n_rounds=N_ROUNDS,
        loss_every=5,
    )


def cifar10(n_priority: int = 2, *, participation: float = 1.0) -> Setting:
    """Return CIFAR-10: 120 shards of 416 images, two a client; it has too few for shards of 500."""
    return Setting(
        name=_name("cifar-10", n_priority, 5, 0.0, participation),
        problem=partial(shards, name="cifar-10", n_priority=n_priority),
        net=convolutions,
        training={"local_steps": 5},
        strategies=strategies(participation),
        n_rounds=N_ROUNDS,
        loss_every=20,
    )


def _name(data: str, n_priority: int, steps: int, mu: float, participation: float) -> str:
    return f"fedalign-{data}-priority{n_priority}-E{steps}-mu{mu:g}-part{participation:g}"

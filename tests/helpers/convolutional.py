"""Small convolutional nets and models of them."""

import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier


class Small(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 3, 3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


class Penalised(NeuralNetClassifier):
    """Has a penalty on weights, whose view needs them in the order of their indices."""

    def get_loss(self, output, y, *args, **named):
        penalty = sum(w.view(-1).square().sum() for w in self.module_.parameters())
        return super().get_loss(output, y, *args, **named) + 1e-3 * penalty


def make(module=Small, net=NeuralNetClassifier, engine="loop", **params):
    settings = {"criterion": nn.CrossEntropyLoss, "optimizer": torch.optim.SGD}
    settings |= {name: params.pop(name) for name in settings if name in params}
    estimator = net(module, lr=0.1, batch_size=8, **settings)
    return FederatedClassifier(estimator, n_rounds=3, engine=engine, random_state=0, **params)


def in_usual_order(net):
    return [w.is_contiguous() for w in net.module_.parameters() if w.dim() == 4]

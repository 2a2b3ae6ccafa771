"""
A skorch net, and a GPU
=======================

A skorch net is federated as it is: after ten rounds, a small convolutional network is right on more
than four in five new images of digits, with Adam on every client, early stopping by validation
loss, and a GPU if there is one. The net defines what is trained: module, criterion, optimizer,
learning rate, batch size, device. The parameters of skfed define how it is federated.
"""

import matplotlib.pyplot as plt
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping
from torch import nn

from skfed import FederatedClassifier, RandomSelector
from skfed.datasets import partition_dirichlet
from skfed.inspection import ConvergenceDisplay


class SmallConvNet(nn.Module):
    """Two convolutions on 8 x 8 images."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )

    def forward(self, X):
        return self.layers(X)


X, y = load_digits(return_X_y=True)
images = (X / 16).reshape(-1, 1, 8, 8)
images, images_val, y, y_val = train_test_split(
    images, y, test_size=0.25, random_state=0
)
phones = partition_dirichlet(y, 20, alpha=5.0, random_state=0)

net = NeuralNetClassifier(
    SmallConvNet,
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=0.005,
    batch_size=16,
    device="cuda" if torch.cuda.is_available() else "cpu",
    callbacks=[EarlyStopping(patience=5)],  # counts rounds, and stops the fit
)
model = FederatedClassifier(
    net, selector=RandomSelector(5), n_rounds=10, random_state=0
)
model.fit(images, y, clients=phones, X_val=images_val, y_val=y_val)
print(
    f"{model.n_rounds_} rounds by the {model.engine_} engine "
    f"on {model.net_.device}"
)
print(f"accuracy: {model.score(images_val, y_val):.3f}")

# %%
# ``net_`` is a plain skorch net with the global model; its history has a row for each round.
columns = ["epoch", "train_loss", "valid_loss", "valid_acc"]
print(pd.DataFrame(model.net_.history)[columns].tail(3).to_string(index=False))
display = ConvergenceDisplay.from_estimator(model)
display.ax_.set(
    title=f"{model.score(images_val, y_val):.0%} after ten rounds",
    ylabel="validation accuracy",
)
plt.show()

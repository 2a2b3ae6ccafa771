import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, RandomSelector
from skfed.modules import MLP, ConvNet, SoftmaxRegression


def n_parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_the_papers_networks_have_their_sizes():
    assert n_parameters(SoftmaxRegression(784, 10)) == 7850
    assert n_parameters(MLP(784, (64, 30), 10, dropout=0.5)) == 50_240 + 1950 + 310
    assert n_parameters(MLP(784, (200, 200), 47)) == 157_000 + 40_200 + 9447
    convolutions = (3 * 25 + 1) * 32 + (32 * 25 + 1) * 64 + 128
    connected = (4096 + 1) * 512 + 1024 + (512 + 1) * 128 + 256 + (128 + 1) * 10
    assert n_parameters(ConvNet()) == convolutions + connected


def test_dropout_is_after_the_last_hidden_layer_and_off_in_evaluation():
    with torch.random.fork_rng():
        torch.manual_seed(0)  # in one of eight draws all three units are dead
        module = MLP(4, (5, 3), 2, dropout=0.5)
    X = torch.randn(6, 2, 2)
    module.eval()
    expected = module.out(module.hidden(X.flatten(1)))
    torch.testing.assert_close(module(X), expected)
    module.train()
    seen = []
    module.out.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    module(torch.ones(500, 4))
    assert 0.3 < (seen[0] == 0).float().mean() < 1.0


@pytest.mark.parametrize("module", [MLP(784, (64, 30), 10, dropout=0.5), MLP(784, (200, 200), 10)])
def test_the_mlps_are_stacks_of_linear_layers(module):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 28, 28)).astype("float32"), rng.integers(0, 10, 40)
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss)
    model = FederatedClassifier(net, n_rounds=1).fit(X, y, clients=np.arange(40) % 4)
    assert model.engine_ == "stacked: linear layers"


def test_running_statistics_are_averaged_as_weights_are():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(24, 3, 8, 8)).astype("float32"), np.arange(24) % 2
    X[12:] += 1
    clients = np.arange(24) // 12
    net = NeuralNetClassifier(
        ConvNet(size=8, n_classes=2), criterion=nn.CrossEntropyLoss, batch_size=-1, lr=0.0
    )
    everybody = RandomSelector(1.0, probability="uniform", replace=False)
    model = FederatedClassifier(net, selector=everybody, n_rounds=1).fit(X, y, clients=clients)
    fitted = model.net_.module_.layers
    expected = []
    for k in range(2):
        own = fitted[:4](torch.from_numpy(X[clients == k])).detach()
        expected.append(0.1 * own.mean((0, 2, 3)))  # momentum 0.1, from zero
    torch.testing.assert_close(fitted[4].running_mean, sum(expected) / 2, atol=1e-5, rtol=1e-4)
    assert fitted[4].num_batches_tracked == 1

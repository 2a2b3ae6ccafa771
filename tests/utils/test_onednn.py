"""Products of large matrices by oneDNN, in place of MKL."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn import functional as F

from skfed import FederatedClassifier
from skfed.utils import _onednn
from skfed.utils._onednn import fewest_rows, large_linear
from skfed.utils._products import PRODUCTS, LayerProducts, _Small

pytestmark = pytest.mark.skipif(
    _onednn._LINEAR is None or not torch.backends.mkl.is_available(),
    reason="needs oneDNN and MKL",
)

IS_USED = PRODUCTS.by_onednn  # on this processor


@pytest.fixture
def calls(monkeypatch):
    """Return the shapes that oneDNN is called for, as on a processor on which it is faster."""
    found = []

    def multiply(input, weight, bias=None):
        found.append((*input.shape, len(weight)))
        return large_linear(input, weight, bias)

    monkeypatch.setattr(PRODUCTS, "by_onednn", True)
    monkeypatch.setattr(_onednn, "large_linear", multiply)
    return found


@pytest.mark.parametrize(
    ("shape", "fewest"),
    [
        ((100, 1000), 32),
        ((50, 1000), 40),
        ((7, 50, 1000), 40),  # of seven clients
        ((10, 784), 2_000_000 / 7840),
        ((0, 784), np.inf),
    ],
)
def test_products_are_large_from_two_million_multiplications_on(calls, shape, fewest):
    assert fewest_rows(torch.ones(shape)) == fewest
    assert fewest_rows(torch.ones(shape, dtype=torch.float64)) == np.inf
    assert fewest_rows(torch.ones(shape, device="meta")) == np.inf


def test_no_product_is_large_where_mkl_is_as_fast(monkeypatch):
    monkeypatch.setattr(PRODUCTS, "by_onednn", False)
    weight = torch.ones(2, 1000, 1000)
    assert type(PRODUCTS.of_layer(weight, None)) in (LayerProducts, _Small)
    with PRODUCTS.evaluating(nn.Linear(1000, 1000), 1000) as mode:
        assert mode is None


@torch.no_grad()
@pytest.mark.parametrize("shape", [(64, 784), (6, 43), (30, 64), (500, 100)])
@pytest.mark.parametrize("n_rows", [33, 64, 65, 100, 128, 191, 700])
def test_any_number_of_rows_is_a_few_shapes_with_the_same_bits(calls, shape, n_rows):
    torch.manual_seed(0)
    weight, X = torch.randn(shape), torch.randn(n_rows, shape[1])
    for bias in (None, torch.randn(len(weight))):
        found = _onednn.large_linear_of_rows(X, weight, bias)
        expected = large_linear(X, weight, bias)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
        assert not IS_USED or found.equal(expected)  # elsewhere oneDNN has other kernels
    assert all(n % 64 == 0 or n < 64 for n, *_ in calls)


@torch.no_grad()
def test_a_large_layer_rounds_a_row_alike_in_each_batch(calls, module):
    """Also in the last, which may have few rows. MKL, which computes small layers, may not."""
    X, large = torch.randn(100, 1000), module[0]
    with PRODUCTS.evaluating(module, 90):
        whole, last = large(X), large(X[90:])
    assert calls == [(64, 1000, 50), (64, 1000, 50), (10, 1000, 50)]
    assert torch.equal(last, whole[90:])


def test_small_batches_are_left_to_torch(calls, module):
    with PRODUCTS.evaluating(module, 39) as mode:
        assert mode is None
    with PRODUCTS.evaluating(module, 40) as mode:
        assert mode is not None


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("w_layout", ["rows", "columns"])
@pytest.mark.parametrize("x_layout", ["rows", "columns"])
def test_the_product(x_layout, w_layout, bias):
    torch.manual_seed(0)
    x, w, b = torch.randn(64, 300), torch.randn(50, 300), torch.randn(50) if bias else None
    x = x.T.contiguous().T if x_layout == "columns" else x
    w = w.T.contiguous().T if w_layout == "columns" else w
    expected = F.linear(x.double(), w.double(), None if b is None else b.double()).float()
    torch.testing.assert_close(large_linear(x, w, b), expected, rtol=0, atol=1e-4)


def test_products_of_several_clients(calls):
    torch.manual_seed(0)
    inputs, weights = torch.randn(3, 64, 300), torch.randn(3, 300, 50).mT
    expected = torch.bmm(inputs.double(), weights.mT.double()).float()
    found = _onednn.large_products(inputs, weights)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert calls == [(64, 300, 50)] * 3


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1000, 50), nn.ReLU(), nn.Linear(50, 3, bias=False)).eval()


def test_large_layers_of_a_module_are_evaluated_by_onednn(calls, module):
    X = torch.randn(100, 1000)
    with torch.no_grad():
        expected = module(X)
        with PRODUCTS.evaluating(module, len(X)):
            found = module(X)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert calls == [(64, 1000, 50), (64, 1000, 50)]


@torch.no_grad()
def test_arguments_by_name(calls, module):
    X, layer = torch.randn(100, 1000), module[0]
    with PRODUCTS.evaluating(layer, len(X)):
        found = F.linear(input=X, weight=layer.weight, bias=layer.bias)
    torch.testing.assert_close(found, layer(X), rtol=0, atol=1e-5)
    assert calls == [(64, 1000, 50), (64, 1000, 50)]


class _Own(torch.Tensor):
    """A tensor with code of its own."""


@pytest.mark.parametrize(
    "call",
    [
        lambda layer, X: layer(X[0]),
        lambda layer, X: layer(X.view(10, 10, 1000)),
        lambda layer, X: F.linear(X.double(), layer.weight.double(), layer.bias.double()),
        lambda layer, X: layer(X.as_subclass(_Own)).as_subclass(torch.Tensor),
        lambda layer, X: F.linear(X, layer.weight, torch.arange(100.0)[::2]),
        lambda layer, X: F.linear(X, layer.weight, torch.ones(1).expand(50)),
        lambda layer, X: F.linear(X, layer.weight, torch.ones(1)),
        lambda layer, X: F.linear(X, layer.weight, torch.tensor(1.0)),
        lambda layer, X: F.linear(X.to_sparse_csr(), layer.weight),
        lambda layer, X: torch.func.vmap(layer)(X.expand(2, 100, 1000))[0],
        lambda layer, X: torch.enable_grad()(layer)(X).detach(),
        lambda layer, X: torch.autocast("cpu", torch.bfloat16)(layer)(X),
    ],
    ids=[
        "one row", "3-D", "float64", "subclass", "strided bias", "expanded bias",
        "bias of one value", "0-D bias", "sparse", "vmap", "gradients", "autocast",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@torch.no_grad()
def test_other_layers_are_left_to_torch(calls, module, call):
    layer, X = module[0], torch.randn(100, 1000)
    expected = call(layer, X)
    with PRODUCTS.evaluating(layer, len(X)) as mode:
        assert mode is not None
        assert torch.equal(call(layer, X), expected)
    assert not calls


def test_a_compiled_module_is_not_compiled_again(calls, module):
    with PRODUCTS.evaluating(torch.compile(module, backend="eager"), 100) as mode:
        assert mode is None


class _Pooled(nn.Module):
    """A transformer whose outputs are averaged over positions, those that are 0 included."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.last = nn.Linear(8, 8000)  # large from 32 rows on

    def forward(self, X):
        padding = torch.arange(X.shape[1]) >= X.shape[1] // 2
        encoded = self.encoder(X, src_key_padding_mask=padding.expand(X.shape[:2]))
        return self.last(encoded.mean(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@torch.no_grad()
def test_transformers_are_evaluated_without_the_mode(calls):
    """Their faster code writes 0 at padded positions, and is left under a mode of torch's."""
    torch.manual_seed(0)
    module, X = _Pooled().eval(), torch.randn(40, 6, 8)
    expected = module(X)
    with PRODUCTS.evaluating(module, len(X)):
        assert torch.equal(module(X), expected)


def test_predictions_and_validation(calls, module):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 1000)).astype("float32"), np.arange(300) % 3
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, iterator_valid__batch_size=300)
    model = FederatedClassifier(net, n_rounds=1, random_state=0, engine="loop")
    model.fit(X, y, clients=y, X_val=X[:200], y_val=y[:200])
    assert calls == [(192, 1000, 50), (64, 1000, 50)]
    by_hand = model.net_.module_(torch.from_numpy(X)).softmax(1)
    np.testing.assert_allclose(model.predict_proba(X), by_hand.detach(), atol=1e-5)
    assert calls[2:] == [(256, 1000, 50), (64, 1000, 50)]

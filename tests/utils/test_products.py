"""Which library multiplies, by what torch tells of the processor."""

import sys
from pathlib import Path

import pytest
import torch

from skfed.utils import _onednn, _openblas, _products
from skfed.utils._products import PRODUCTS, LayerProducts, Products

OF_LINUX = Path("/proc/cpuinfo")
WEIGHT = torch.ones(3, 10, 128)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/cpuinfo")
@pytest.mark.parametrize(("maker", "vendor"), [("AMD", "AuthenticAMD"), ("Intel", "GenuineIntel")])
def test_the_maker_is_that_of_linux(maker, vendor):
    processor = _products._processor()
    if processor.get("architecture") != "x86_64":
        pytest.skip("torch does not name the processor")
    assert processor["cpu_name"].startswith(maker) == (vendor in OF_LINUX.read_text())


def test_torch_may_not_name_the_processor(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert _products._processor() == {}


@pytest.mark.parametrize(
    ("processor", "faster"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_f": True, "avx_vnni": True}, True),  # Zen 5
        ({"cpu_name": "AMD EPYC", "avx512_f": True, "avx_vnni": False}, False),  # Zen 4
        ({"cpu_name": "AMD EPYC", "avx512_f": False, "avx_vnni": False}, False),  # Zen 3
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_f": True, "avx_vnni": True}, False),
        ({}, False),
    ],
)
def test_onednn_is_faster_on_amds_processors_with_units_of_512_bits(monkeypatch, processor, faster):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor, raising=False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(_onednn, "is_available", lambda: True)
    assert Products().by_onednn is faster
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not Products().by_onednn


@pytest.mark.parametrize(
    ("processor", "mkl", "kernels", "faster"),
    [
        ({"cpu_name": "AMD EPYC"}, True, True, True),
        ({"cpu_name": "AMD EPYC"}, True, False, False),
        ({"cpu_name": "Intel Xeon"}, True, True, False),
        ({"cpu_name": "Intel Xeon"}, False, True, True),
        ({}, True, True, True),
    ],
)
def test_on_a_processor_of_intel_openblas_is_used_only_without_mkl(
    monkeypatch, processor, mkl, kernels, faster
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor, raising=False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(_openblas, "has_kernels", lambda: kernels)
    assert Products().by_openblas is faster


@pytest.mark.parametrize("by_onednn", [True, False])
@pytest.mark.parametrize("by_openblas", [True, False])
def test_which_layers_are_left_to_torch(monkeypatch, by_onednn, by_openblas):
    monkeypatch.setattr(PRODUCTS, "by_onednn", by_onednn)
    monkeypatch.setattr(PRODUCTS, "by_openblas", by_openblas)
    for weight in (WEIGHT.double(), WEIGHT.to("meta")):
        assert type(PRODUCTS.of_layer(weight, None)) is LayerProducts
    assert (type(PRODUCTS.of_layer(WEIGHT, None)) is LayerProducts) != (by_onednn or by_openblas)
    assert (type(PRODUCTS.of_layer(WEIGHT[..., :127], None)) is LayerProducts) != by_onednn


@pytest.mark.parametrize("bias", [None, torch.tensor([[1.0, -1, 0]]).expand(2, 3)])
@pytest.mark.parametrize("n_rows", [2, 40])
def test_every_library_computes_the_same(monkeypatch, n_rows, bias):
    """Two layers of 3 outputs and 130 inputs."""
    torch.manual_seed(0)
    weight, h_t, slope = (
        torch.randn(2, *shape) for shape in ((3, 130), (n_rows, 130), (3, n_rows))
    )
    monkeypatch.setattr(_onednn, "fewest_rows", lambda weight: 32)
    found = []
    for kind in _products._KINDS.values():
        products = kind(weight.clone(), bias)
        of_kind = [
            products.output(h_t.mT, h_t).clone(),
            products.backward(slope, h_t).clone(),
            products.gradient(slope, h_t).clone(),
        ]
        products.descend(slope, h_t, 0.5)
        found.append([*of_kind, products.weight])
    expected = [weight.bmm(h_t.mT), weight.mT.bmm(slope), slope.bmm(h_t)]
    expected.append(weight - 0.5 * expected[2])
    if bias is not None:
        expected[0] += bias.unsqueeze(2)
    for of_kind in found:
        for one, other in zip(of_kind, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("by_onednn", [_onednn.is_available(), False])
@pytest.mark.parametrize("n_rows", [5, 64, 70])
def test_products_by_output_are_those_by_row(monkeypatch, n_rows, by_onednn):
    """Into some columns of a matrix."""
    monkeypatch.setattr(PRODUCTS, "by_onednn", by_onednn)
    monkeypatch.setattr(_onednn, "fewest_rows", lambda weight: 32)
    torch.manual_seed(0)
    X, weight = torch.randn(n_rows, 130), torch.randn(20, 130)
    out = torch.zeros(20, 100)
    PRODUCTS.by_output(X, weight, 70, out[:, 10 : 10 + n_rows])
    expected = PRODUCTS.linear(X, weight, None, 70).T
    torch.testing.assert_close(out[:, 10 : 10 + n_rows], expected, rtol=0, atol=1e-4)
    assert not out[:, :10].any()
    assert not out[:, 10 + n_rows :].any()

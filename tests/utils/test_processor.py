"""What torch tells of the processor."""

from pathlib import Path

import pytest
import torch

from skfed.utils._processor import capabilities, is_made_by

OF_LINUX = Path("/proc/cpuinfo")


@pytest.mark.skipif(
    not (OF_LINUX.exists() and capabilities().get("architecture") == "x86_64"),
    reason="needs Linux on x86-64, and a torch that names the processor",
)
@pytest.mark.parametrize(("maker", "vendor"), [("AMD", "AuthenticAMD"), ("Intel", "GenuineIntel")])
def test_the_maker_is_that_of_linux(maker, vendor):
    assert is_made_by(maker) == (vendor in OF_LINUX.read_text())


def test_torch_may_not_name_the_processor(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert capabilities() == {}
    assert not is_made_by("AMD")
    assert not is_made_by("Intel")

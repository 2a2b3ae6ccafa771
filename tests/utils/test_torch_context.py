"""Settings of torch for all threads."""

from threading import Event, Thread
from types import SimpleNamespace

import pytest
import torch

from skfed.utils._torch_context import _ProcessSettings, deterministic_cudnn, without_tf32


def test_settings_last_while_any_thread_is_inside():
    owner = SimpleNamespace(a=1, b="x")
    settings = _ProcessSettings((owner, "a", 2), (owner, "b", "y"))
    entered, may_leave = Event(), Event()

    def stay():
        with settings.set():
            entered.set()
            may_leave.wait()

    thread = Thread(target=stay)
    with settings.set():
        thread.start()
        entered.wait()
    assert (owner.a, owner.b) == (2, "y")  # the thread is still inside
    may_leave.set()
    thread.join()
    assert (owner.a, owner.b) == (1, "x")


def test_settings_are_restored_after_an_error():
    owner = SimpleNamespace(a=1)
    with pytest.raises(ValueError), _ProcessSettings((owner, "a", 2)).set():
        raise ValueError
    assert owner.a == 1


@pytest.fixture
def _precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # the older way
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("_precision")
@pytest.mark.parametrize("context", [without_tf32, deterministic_cudnn])
def test_those_of_a_gpu(context):
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def settings():
        return cudnn.enabled, cudnn.deterministic, matmul.allow_tf32

    assert settings() == (True, False, True)
    with context("cuda"):
        changed = not cudnn.enabled if context is without_tf32 else cudnn.deterministic
    assert changed
    with context("cpu"):
        assert settings() == (True, False, True)
    assert settings() == (True, False, True)

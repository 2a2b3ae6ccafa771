"""Settings of cuDNN for all threads."""

from threading import Event, Thread

import pytest
import torch

from skfed.utils._torch_context import deterministic_cudnn, without_cudnn

cudnn = torch.backends.cudnn
CONTEXTS = [(without_cudnn, "enabled", False), (deterministic_cudnn, "deterministic", True)]


@pytest.mark.parametrize("context, name, value", CONTEXTS)
def test_a_setting_lasts_while_any_thread_is_inside(context, name, value):
    entered, may_leave = Event(), Event()

    def stay():
        with context("cuda"):
            entered.set()
            may_leave.wait()

    thread = Thread(target=stay)
    with context("cuda"):
        thread.start()
        entered.wait()
    assert getattr(cudnn, name) is value  # the thread is still inside
    may_leave.set()
    thread.join()
    assert getattr(cudnn, name) is not value


def test_what_cudnn_has_timed_does_not_count(monkeypatch):
    monkeypatch.setattr(cudnn, "benchmark", True)
    with deterministic_cudnn("cuda"):
        assert not cudnn.benchmark
    assert cudnn.benchmark


@pytest.mark.parametrize("context, name, value", CONTEXTS)
def test_a_setting_is_restored_after_an_error(context, name, value):
    with pytest.raises(ValueError), context("cuda"):
        raise ValueError
    assert getattr(cudnn, name) is not value


@pytest.mark.parametrize("context, name, value", CONTEXTS)
def test_without_a_gpu_nothing_is_set(context, name, value):
    with context("cpu"):
        assert getattr(cudnn, name) is not value

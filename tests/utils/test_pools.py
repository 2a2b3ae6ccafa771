"""Objects that threads and worker processes of a fit use again."""

import pickle

import numpy as np
import pytest
import torch

from skfed.engines._memory import MemoryPool
from skfed.nets import CLASSIFIER, NetPool, make_net
from skfed.utils import _pools


def new_nets():
    X = np.zeros((1, 5), dtype=np.float32)
    return NetPool(make_net(CLASSIFIER, None, X, 3, seed=0), X)


def sent(pool):
    return pickle.loads(pickle.dumps(pool))


@pytest.mark.parametrize("new", [MemoryPool, new_nets])
def test_threads_take_turns_with_what_was_made(new):
    pool = new()
    with pool.borrowed() as one, pool.borrowed() as two:
        assert one is not two
    with pool.borrowed() as one_of_them, pool.borrowed() as other:
        assert {id(one_of_them), id(other)} == {id(one), id(two)}


@pytest.mark.parametrize("new", [MemoryPool, new_nets])
def test_what_has_failed_is_not_used_again(new):
    pool, failed = new(), []
    with pytest.raises(KeyError), pool.borrowed() as one:
        failed.append(one)
        raise KeyError
    with pool.borrowed() as another:
        assert another is not failed[0]


@pytest.mark.parametrize("new", [MemoryPool, new_nets])
def test_the_tasks_of_a_fit_share_what_a_worker_made(new):
    pool = new()
    with pool.borrowed() as here:
        pass
    with sent(pool).borrowed() as first:
        assert first is not here
    with sent(pool).borrowed() as second:
        assert second is first
    with sent(new()).borrowed() as of_another_fit:
        assert of_another_fit is not first


@pytest.mark.parametrize("new", [MemoryPool, new_nets])
def test_a_worker_keeps_what_the_last_fit_made(new):
    pool = new()
    with sent(pool).borrowed() as first:
        pass
    for _ in range(2):  # a fit has at most two pools
        with sent(new()).borrowed():
            pass
    with sent(pool).borrowed() as again:
        assert again is not first


def test_a_worker_keeps_nothing_large(monkeypatch):
    nets = new_nets()
    n_bytes = 4 * (5 * 3 + 3 + 2 * 5)  # weights, and means and deviations of X, as float32
    for largest, kept in [(n_bytes, True), (n_bytes - 1, False)]:
        monkeypatch.setattr(_pools, "LARGEST_KEPT", largest)
        with sent(nets).borrowed() as one:
            pass
        with sent(nets).borrowed() as two:
            assert (two is one) == kept
    monkeypatch.setattr(_pools, "LARGEST_KEPT", 4)
    memories = MemoryPool()
    for n, kept in [(1, True), (2, False)]:
        with sent(memories).borrowed() as one:
            one.empty("weight", (n,), torch.float32)
        with sent(memories).borrowed() as two:
            assert (two is one) == kept

"""Objects that threads and worker processes of a fit use again."""

import pickle

import numpy as np
import pytest

from skfed.engines._data import MemoryPool
from skfed.nets import CLASSIFIER, NetPool, make_net


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
    with pytest.raises(KeyError), pool.borrowed() as again:
        assert again is one or again is two
        raise KeyError
    with pool.borrowed() as one_of_them, pool.borrowed() as other:
        assert {id(one_of_them), id(other)} == {id(one), id(two)}


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

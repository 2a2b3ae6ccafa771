import numpy as np
import pytest

from skfed.engines._sampling import minibatches


def test_an_epoch_is_a_fresh_permutation_with_the_last_partial_batch():
    steps = minibatches(np.random.default_rng(0), 10, 4, local_epochs=2, local_steps=None)
    iterations, batches = zip(*steps, strict=True)
    assert iterations == (0, 0, 0, 1, 1, 1)
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    first, second = np.concatenate(batches[:3]), np.concatenate(batches[3:])
    assert sorted(first) == sorted(second) == list(range(10))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(("n_samples", "size"), [(10, 4), (3, 3)])
def test_a_step_draws_min_b_D_k_rows_without_replacement(n_samples, size):
    steps = minibatches(np.random.default_rng(0), n_samples, 4, 9, local_steps=30)
    iterations, batches = zip(*steps, strict=True)
    assert iterations == tuple(range(30))
    assert all(len(set(batch.tolist())) == size for batch in batches)
    assert set(np.concatenate(batches).tolist()) == set(range(n_samples))

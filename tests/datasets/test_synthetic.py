import numpy as np
import pytest

from skfed import FedAlignSelector, FederatedClassifier
from skfed.datasets import make_prioritized_synthetic, make_synthetic


def test_sizes_and_shapes():
    data = make_synthetic(n_clients=30, random_state=0)
    sizes = np.bincount(data.clients)
    assert data.X.shape == (sizes.sum(), 60)
    assert (data.X.dtype, len(data.y), len(sizes)) == (np.float32, sizes.sum(), 30)
    assert sizes.min() >= 50
    assert set(data.y) <= set(range(10))
    # The median of a lognormal(4, 2) is e^4 = 54.6.
    many = [np.median(np.bincount(make_synthetic(random_state=s).clients)) for s in range(20)]
    assert np.mean(many) == pytest.approx(50 + np.exp(4), rel=0.2)


def test_inputs_have_the_variances_of_the_paper():
    """Within a client the j-th feature has variance j^-1.2; means differ by beta and 1."""
    data = make_synthetic(1.0, 2.0, n_clients=300, random_state=0)
    groups = [data.X[data.clients == k] for k in range(300)]
    within = np.mean([X.var(axis=0, ddof=1) for X in groups], axis=0)
    np.testing.assert_allclose(within, np.arange(1, 61) ** -1.2, rtol=0.1)
    means = np.array([X.mean(axis=0) for X in groups])
    assert means.mean(axis=1).std() == pytest.approx(2.0, rel=0.15)  # of B_k
    assert means.std(axis=1).mean() == pytest.approx(1.0, rel=0.1)  # of v_k around B_k


@pytest.mark.parametrize("make", [make_synthetic, make_prioritized_synthetic])
def test_the_same_seed_gives_the_same_data(make):
    one, other = make(random_state=3), make(random_state=3)
    np.testing.assert_array_equal(one.X, other.X)
    np.testing.assert_array_equal(one.y, other.y)
    assert not np.array_equal(one.y, make(random_state=4).y)


def test_free_clients_hold_the_priority_clients_rows_without_noise():
    data = make_prioritized_synthetic(
        n_priority=3, n_free=4, label_noise=0, irrelevant=0, random_state=0
    )
    owned = data.clients < 3
    assert data.priority.tolist() == [0, 1, 2]
    held = {(x.tobytes(), y) for x, y in zip(data.X[owned], data.y[owned], strict=True)}
    dealt = {(x.tobytes(), y) for x, y in zip(data.X[~owned], data.y[~owned], strict=True)}
    assert held == dealt
    sizes = np.bincount(data.clients)[3:]
    assert sizes.max() - sizes.min() <= 1


def test_shares_of_irrelevant_rows():
    data = make_prioritized_synthetic(n_priority=5, label_noise=0, irrelevant=0.8, random_state=0)
    known = {x.tobytes() for x in data.X[data.clients < 5]}
    for k, share in enumerate(data.irrelevant):
        rows = data.X[data.clients == 5 + k]
        foreign = np.mean([x.tobytes() not in known for x in rows])
        assert foreign == pytest.approx(share, abs=1 / len(rows))
    assert (data.label_noise == 0).all()


def test_nine_of_ten_labels_drawn_again_are_wrong():
    data = make_prioritized_synthetic(n_priority=5, irrelevant=0, label_noise=1, random_state=0)
    true = dict(zip(map(bytes, data.X[data.clients < 5]), data.y[data.clients < 5], strict=True))
    for k, share in enumerate(data.label_noise):
        mine = data.clients == 5 + k
        wrong = [true[bytes(x)] != y for x, y in zip(data.X[mine], data.y[mine], strict=True)]
        assert np.mean(wrong) == pytest.approx(0.9 * share, abs=4 * np.sqrt(0.1 / len(wrong)))


def test_a_larger_skew_gives_larger_shares():
    shares = [
        np.mean([make_prioritized_synthetic(skew=skew, random_state=s).irrelevant.mean()
                 for s in range(5)])
        for skew in (0.5, 1.5, 5)
    ]  # fmt: skip
    # The mean of u^(1/skew) is skew / (skew + 1).
    np.testing.assert_allclose(shares, [1 / 3, 3 / 5, 5 / 6], atol=0.1)


def test_a_model_of_the_priority_clients_does_worse_the_noisier_a_free_client_is():
    data = make_prioritized_synthetic(label_noise=1, irrelevant=0, random_state=0)
    model = FederatedClassifier(
        selector=FedAlignSelector(warmup=1.0), priority=data.priority.tolist(), n_rounds=40,
        random_state=0,
    ).fit(data.X, data.y, clients=data.clients)  # fmt: skip
    right = model.predict(data.X) == data.y
    accuracy = [right[data.clients == 10 + k].mean() for k in range(10)]
    assert np.corrcoef(accuracy, data.label_noise)[0, 1] < -0.95


@pytest.mark.parametrize(
    "params", [{"alpha": -1.0}, {"n_free": 0}, {"skew": 0.0}, {"label_noise": -0.1}], ids=str
)
def test_numbers_out_of_range(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        make_prioritized_synthetic(**params)

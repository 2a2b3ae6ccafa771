import numpy as np
import pytest
import torch

from skfed import FederatedClassifier
from skfed.aggregation import NormClipping, Scaffold, WeightedMean
from skfed.selection import Cohort


def state(*values, dtype=torch.float32):
    return {"w": torch.tensor(values, dtype=dtype)}


def aggregate(current, updates, cohort):
    return WeightedMean().aggregate(current, updates, cohort, parameters=["w"])


def test_weighted_mean_by_hand():
    cohort = Cohort(np.array([0, 1]), np.array([0.25, 0.75]))
    result = aggregate(state(9.0, 9.0), [state(1.0, 2.0), state(5.0, 6.0)], cohort)
    assert result["w"].tolist() == [4.0, 5.0]


def test_unbiased_form_by_hand():
    """w + 0.5 (w_1 - w) + 1.0 (w_2 - w) = 2 + 0.5 * 2 + 1.0 * 4."""
    cohort = Cohort(np.array([0, 1]), np.array([0.5, 1.0]), unbiased=True)
    assert aggregate(state(2.0), [state(4.0), state(6.0)], cohort)["w"].tolist() == [7.0]


def test_one_update_of_weight_1_is_the_result_bit_for_bit():
    update = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(0))}
    cohort = Cohort(np.array([0]), np.array([1.0]))
    assert torch.equal(aggregate({"w": torch.ones(1000)}, [update], cohort)["w"], update["w"])


def test_an_empty_cohort_keeps_the_model():
    current = state(3.0)
    assert aggregate(current, [], Cohort.mean(np.empty(0, int))) is current


def test_integer_buffers_are_rounded_and_dtypes_kept():
    cohort = Cohort.mean(np.array([0, 1]))
    updates = [state(3, dtype=torch.int64), state(6, dtype=torch.int64)]
    current = state(0, dtype=torch.int64)
    result = WeightedMean().aggregate(current, updates, cohort, parameters=[])["w"]
    assert result.dtype == torch.int64
    assert result.tolist() == [4]


def test_unchanged_tensors_are_kept_bit_for_bit():
    """Weights of 1/3 do not sum to exactly 1."""
    frozen = {
        "w": torch.ones(1),
        "b": torch.randn(1000, generator=torch.Generator().manual_seed(0)),
    }
    cohort = Cohort(np.arange(3), np.full(3, 1 / 3))
    assert torch.equal(aggregate(frozen, [frozen] * 3, cohort)["b"], frozen["b"])


def test_inputs_are_not_changed():
    current, update = state(1.0), state(2.0)
    aggregate(current, [update], Cohort(np.array([0]), np.array([0.5]), unbiased=True))
    assert (current["w"].item(), update["w"].item()) == (1.0, 2.0)


@pytest.mark.parametrize("rule", [WeightedMean, NormClipping, Scaffold])
@pytest.mark.parametrize("params", [{"engine": "loop"}, {"engine": "stacked", "memory_budget": 1}])
def test_a_subclass_may_call_combine_of_its_base(blobs, rule, params):
    class Observed(rule):
        def combine(self, model, parts, cohort, parameters):
            return super().combine(model, parts, cohort, parameters)

    X, y, clients = blobs
    one, other = (
        FederatedClassifier(aggregator=kind(), n_rounds=2, random_state=0, **params).fit(
            X, y, clients=clients
        )
        for kind in (rule, Observed)
    )
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-6, atol=1e-9)

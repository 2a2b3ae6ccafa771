"""Unchanged tensors are kept bit for bit; changed tensors of any dtype are averaged."""

import numpy as np
import pytest
import torch

from skfed.aggregation import (
    BaseAggregator,
    CoordinateMedian,
    NormClipping,
    Scaffold,
    TrimmedMean,
    WeightedMean,
)
from skfed.selection import Cohort

RULES = [WeightedMean(), NormClipping(), CoordinateMedian(), TrimmedMean(0.2), Scaffold()]
HUGE = [2**53 + 1, 9223372036854775783, -(2**63)]
INF, NAN = float("inf"), float("nan")

CONSTANTS = {
    "complex64": torch.polar(torch.ones(3), torch.tensor([0.3, 0.7, 1.1])),
    "complex128": torch.tensor([1 / 3 + 2j / 3, complex(INF, NAN)], dtype=torch.complex128),
    "int64": torch.tensor(HUGE),
    "uint64": torch.tensor([2**64 - 3], dtype=torch.uint64),
    "bool": torch.tensor([True, False]),
    "float32": torch.tensor([1 / 3, -0.0, INF, -INF, NAN]),
    "bfloat16": torch.tensor([1 / 3], dtype=torch.bfloat16),
    "float8": torch.tensor([1.5, NAN]).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(0.1),
    "empty": torch.zeros(0),
}

COHORTS = {
    "mean": Cohort(np.arange(3), np.full(3, 1 / 3)),
    "unbiased": Cohort(np.arange(3), np.full(3, 0.7), unbiased=True),
}


def bits(tensor):
    return tensor.dtype, tensor.reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def with_buffer(old, *new, parameters=("w",)):
    """Return a state with a parameter and a buffer, updates of both, and the parameters."""
    state = {"w": torch.zeros(2), "b": old}
    return state, [{"w": torch.ones(2), "b": value} for value in new], list(parameters)


def averaged(rule, old, *new, weights=None, unbiased=False):
    state, updates, parameters = with_buffer(old, *new)
    n = len(new)
    weights = np.full(n, 1 / n) if weights is None else np.array(weights)
    return rule.aggregate(state, updates, Cohort(np.arange(n), weights, unbiased), parameters)["b"]


@pytest.mark.parametrize("cohort", COHORTS)
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("kind", CONSTANTS)
def test_constant_tensors_are_kept_bit_for_bit(kind, rule, cohort):
    constant = CONSTANTS[kind]
    state, updates, parameters = with_buffer(constant, *(constant.clone() for _ in range(3)))
    result = rule.aggregate(state, updates, COHORTS[cohort], parameters)
    assert result["b"] is constant
    assert not torch.equal(result["w"], state["w"])


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_unchanged_parameters_are_kept_bit_for_bit(rule):
    w = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    state = {"w": w, "v": torch.zeros(1)}
    updates = [{"w": w.clone(), "v": torch.ones(1)} for _ in range(3)]
    assert rule.aggregate(state, updates, COHORTS["mean"], ["w", "v"])["w"] is w


class Halved(BaseAggregator):
    """A rule that changes every tensor."""

    def _aggregate(self, model, updates, cohort, parameters):
        return {name: tensor.double().mean(0) / 2 for name, tensor in updates.items()}


def test_a_user_rule_keeps_unchanged_tensors():
    assert averaged(Halved(), torch.ones(2), torch.ones(2), torch.ones(2)).tolist() == [1, 1]
    assert averaged(Halved(), torch.ones(2), torch.ones(2), torch.zeros(2)).tolist() == [0.25, 0.25]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_large_integers_are_averaged_by_their_differences(rule):
    old = torch.tensor([2**53 + 1, 9223372036854775783, -(2**63)])
    result = averaged(rule, old, old + 2, old + 4, old + 9)
    # (2 + 4 + 9) / 3 = 5; the median is 4.
    step = 4 if isinstance(rule, CoordinateMedian) else 5
    assert result.tolist() == [value + step for value in HUGE]


def test_integers_at_the_limits_of_their_range_do_not_overflow():
    ends = torch.tensor([-(2**63), 2**63 - 1])
    result = averaged(WeightedMean(), ends, ends.flip(0), ends.flip(0))
    assert result[0] > 2**63 - 2**12
    assert result[1] < -(2**63) + 2**12


def test_integers_are_rounded_half_to_even():
    old = torch.tensor([0, 1, 2**53])
    assert averaged(WeightedMean(), old, old + 1, old).tolist() == [0, 2, 2**53]
    assert averaged(CoordinateMedian(), old, old + 1, old).tolist() == [0, 2, 2**53]


def test_unsigned_integers_and_booleans_are_averaged():
    old = torch.tensor([2**64 - 9, 1], dtype=torch.uint64)
    new = torch.tensor([2**64 - 3, 3], dtype=torch.uint64)
    assert averaged(WeightedMean(), old, new, new).tolist() == [2**64 - 3, 3]
    no, yes = torch.tensor([False]), torch.tensor([True])
    assert averaged(WeightedMean(), no, yes, yes, no).tolist() == [True]
    assert averaged(CoordinateMedian(), yes, no, yes, no).tolist() == [False]


def test_complex_buffers_are_averaged_as_complex_numbers():
    old = torch.tensor([1 + 1j, 0j])
    result = averaged(WeightedMean(), old, torch.tensor([3 + 5j, 1j]), old, weights=[0.75, 0.25])
    assert result.dtype == torch.complex64
    assert result.tolist() == [2.5 + 4j, 0.75j]


def test_the_median_of_complex_buffers_is_that_of_each_part():
    new = [torch.tensor(value) for value in (1 + 9j, 2 + 1j, 9 + 5j)]
    assert averaged(CoordinateMedian(), torch.tensor(0j), *new).item() == 2 + 5j
    assert averaged(TrimmedMean(0.4), torch.tensor(0j), *new).item() == 2 + 5j


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_partly_infinite_buffers_are_averaged_without_nan(rule):
    old = torch.tensor([-INF, INF, NAN, 1.0])
    new = [torch.tensor([-INF, INF, NAN, value]) for value in (3.0, 4.0, 5.0)]
    torch.testing.assert_close(
        averaged(rule, old, *new), torch.tensor([-INF, INF, NAN, 4.0]), equal_nan=True
    )


def test_infinite_elements_are_averaged_once_all_members_changed_them():
    """A running minimum starts at infinity."""
    old = torch.tensor([INF, NAN, INF])
    one, other = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([3.0, 4.0, INF])
    assert averaged(WeightedMean(), old, one, other).tolist() == [2.0, 3.0, INF]


@pytest.mark.parametrize("rule", [WeightedMean(), NormClipping(9), Scaffold()], ids=repr)
def test_buffers_of_an_unbiased_cohort_are_averaged_by_weights_that_sum_to_1(rule):
    """w + 0.6 * 1 + 1.8 * 1 for the parameter; (0.6 * 3 + 1.8 * 7) / 2.4 for the buffer."""
    old, low, high = torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([7.0])
    state, updates, parameters = with_buffer(old, low, high)
    cohort = Cohort(np.arange(2), np.array([0.6, 1.8]), unbiased=True)
    result = rule.aggregate(state, updates, cohort, parameters)
    torch.testing.assert_close(result["w"], torch.tensor([2.4, 2.4]))
    torch.testing.assert_close(result["b"], torch.tensor([6.0]))


def test_weights_that_sum_to_0_keep_buffers():
    old, new = torch.tensor([1 / 3, INF]), torch.tensor([3.0, 3.0])
    result = averaged(WeightedMean(), old, new, new, weights=[0, 0], unbiased=True)
    assert torch.equal(result, old)


@pytest.mark.parametrize("unbiased", [False, True])
def test_failed_members_do_not_enter_buffers(unbiased):
    state, updates, parameters = with_buffer(torch.tensor([1.0]), torch.tensor([5.0]))
    rule, cohort = WeightedMean(), Cohort(np.arange(2), np.array([0.5, 0.5]), unbiased)
    stack = {name: tensor.unsqueeze(0) for name, tensor in updates[0].items()}
    part = rule.collect(state, stack, np.array([0.5]), parameters)
    result = rule.combine(state, [(np.array([0]), part)], cohort, parameters)
    assert result["b"].item() == 5.0
    assert result["w"].tolist() == ([0.5, 0.5] if unbiased else [1.0, 1.0])

import numpy as np
import pytest
import torch

from skfed.aggregation import CoordinateMedian, NormClipping, TrimmedMean
from skfed.selection import Cohort


def state(*values):
    return {"w": torch.tensor(values), "n": torch.tensor(7)}


def aggregate(rule, updates, current=None, cohort=None):
    cohort = Cohort.mean(np.arange(len(updates))) if cohort is None else cohort
    return rule.aggregate(state(0.0, 0.0) if current is None else current, updates, cohort, ["w"])


def test_the_median_of_each_coordinate():
    updates = [state(1.0, 9.0), state(2.0, 1.0), state(1e9, 5.0)]
    assert aggregate(CoordinateMedian(), updates)["w"].tolist() == [2.0, 5.0]
    assert aggregate(CoordinateMedian(), [*updates, state(4.0, 6.0)])["w"].tolist() == [3.0, 5.5]
    assert aggregate(CoordinateMedian(), updates)["n"].item() == 7


def test_the_trimmed_mean_drops_both_ends():
    updates = [state(float(v), -float(v)) for v in (1, 2, 3, 4, 1000)]
    assert aggregate(TrimmedMean(0.2), updates)["w"].tolist() == [3.0, -3.0]
    assert aggregate(TrimmedMean(0.19), updates)["w"].tolist() == [202.0, -202.0]
    assert aggregate(TrimmedMean(0), updates[:2])["w"].tolist() == [1.5, -1.5]


def test_norm_clipping_scales_updates_down():
    updates = [state(3.0, 4.0), state(0.3, 0.4)]  # norms 5 and 0.5
    result = aggregate(NormClipping(max_norm=1.0), updates)["w"]
    torch.testing.assert_close(result, torch.tensor([(0.6 + 0.3) / 2, (0.8 + 0.4) / 2]))
    start = {"w": torch.tensor([10.0, 10.0]), "n": torch.tensor(7)}
    result = aggregate(NormClipping(max_norm=1.0), [state(13.0, 14.0)], start)["w"]
    torch.testing.assert_close(result, torch.tensor([10.6, 10.8]))


def test_norm_clipping_uses_the_cohorts_weights():
    cohort = Cohort(np.arange(2), np.array([0.75, 0.25]))
    result = aggregate(NormClipping(9.0), [state(4.0, 0.0), state(0.0, 4.0)], cohort=cohort)
    assert result["w"].tolist() == [3.0, 1.0]


@pytest.mark.parametrize("rule", [TrimmedMean(0.5), TrimmedMean(-0.1), NormClipping(0)], ids=repr)
def test_parameters_out_of_range_are_an_error(rule):
    with pytest.raises(ValueError, match="parameter of (TrimmedMean|NormClipping) must be"):
        aggregate(rule, [state(1.0, 1.0)])

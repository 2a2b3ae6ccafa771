import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone

from skfed import FedAlignSelector, PowerOfChoice, RandomSelector
from skfed.selection import BaseSelector, Cohort
from skfed.selection._counts import count_clients

SELECTORS = [
    RandomSelector(clients_per_round=2),
    RandomSelector(clients_per_round=2, probability="uniform", replace=False),
    RandomSelector(clients_per_round=2, probability="uniform", weighting="unbiased"),
    PowerOfChoice(d=3, clients_per_round=2),
    FedAlignSelector(eps=0.5, warmup=0),
]


class Fixed(BaseSelector):
    """Returns a given cohort."""

    def __init__(self, cohort=None):
        self.cohort = cohort

    def _select(self, round):
        return self.cohort


@pytest.mark.parametrize(
    ("clients", "weights", "match"),
    [
        ([0, 4], [0.5, 0.5], "names client 4"),
        ([-1], [1.0], "names client -1"),
        ([1], [1.0], "names client 1, which is not available"),
        ([0.0], [1.0], "needs a list of client indices"),
        ([0, 2], [1.0], "2 clients with 1 weights"),
        ([0, 2], [1.5, -0.5], "negative or not finite"),
        ([0, 2], [np.nan, 1.0], "negative or not finite"),
        ([0, 2], [0.5, 0.4], r"sum to 0\.9, not to 1: divide them by their sum"),
    ],
)
def test_an_invalid_cohort_is_refused(make_round, clients, weights, match):
    view, _ = make_round(np.zeros(4), available=[True, False, True, True])
    with pytest.raises(ValueError, match=match):
        Fixed(Cohort(np.array(clients), np.array(weights))).select(view)


def test_the_cohort_comes_in_index_order_with_its_weights(make_round):
    view, _ = make_round(np.zeros(4))
    cohort = Fixed(Cohort(np.array([3, 0, 3]), np.array([0.5, 0.2, 0.3]))).select(view)
    assert cohort.clients.tolist() == [0, 3, 3]
    assert cohort.weights.tolist() == [0.2, 0.5, 0.3]


def test_an_unbiased_cohort_may_sum_to_anything(make_round):
    view, _ = make_round(np.zeros(4))
    cohort = Cohort(np.array([1]), np.array([0.3]), unbiased=True)
    assert Fixed(cohort).select(view).weights.tolist() == [0.3]


def test_the_weights_left_after_a_dropout_sum_to_1():
    cohort = Cohort(np.array([0, 1, 1]), np.array([0.5, 0.3, 0.2]))
    kept = cohort.keep(np.array([True, True, False]))
    assert kept.weights.tolist() == pytest.approx([0.625, 0.375])
    assert cohort.keep(np.ones(3, bool)).weights.tolist() == [0.5, 0.3, 0.2]
    assert len(cohort.keep(np.zeros(3, bool)).clients) == 0
    unbiased = Cohort(np.array([0, 1]), np.array([0.5, 1.0]), unbiased=True)
    assert unbiased.keep(np.array([False, True])).weights.tolist() == [1.0]
    weightless = Cohort(np.array([0, 1]), np.array([1.0, 0.0]))
    assert len(weightless.keep(np.array([False, True])).clients) == 0


def test_numpy_scalars_count_as_numbers_do(make_round):
    view, _ = make_round(np.zeros(12))
    for value in (np.float32(0.5), np.float64(0.5), np.int8(6)):
        assert PowerOfChoice(d=value, clients_per_round=1).scheduled(view) == {"d": 6}
        assert len(RandomSelector(value).select(view).clients) == 6


def test_the_view_cannot_be_changed(make_round):
    view, _ = make_round(np.zeros(3))
    with pytest.raises(ValueError, match="read-only"):
        view.sizes[0] = 5
    with pytest.raises(AttributeError):
        view.index = 3


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"clients": [9]}, "names client 9"),
        ({"clients": [1]}, "not available"),
        ({"clients": [0], "metric": "f1"}, "metric must be"),
        ({"clients": [0], "max_samples": 0}, "max_samples must be"),
        ({"clients": [0], "max_samples": "all"}, "max_samples must be"),
    ],
)
def test_an_invalid_poll_is_refused(make_round, kwargs, match):
    view, polls = make_round(np.zeros(3), available=[True, False, True])
    with pytest.raises(ValueError, match=match):
        view.poll(**kwargs)
    assert polls == []


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_selecting_changes_nothing_and_repeats(make_round, selector):
    copy = clone(selector)
    cohorts = []
    for _ in range(2):
        view, _ = make_round([0.1, 0.2, 0.3, 0.9], priority=[True, False, False, False])
        cohorts.append(selector.select(view))
    assert vars(selector) == vars(copy)
    assert cohorts[0].clients.tolist() == cohorts[1].clients.tolist()
    assert cohorts[0].weights.tolist() == cohorts[1].weights.tolist()


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_no_or_one_available_client(make_round, selector):
    nobody, _ = make_round(np.zeros(4), available=np.zeros(4, bool))
    assert selector.select(nobody).clients.tolist() == []
    one, _ = make_round(np.zeros(4), available=[False, False, True, False])
    assert set(selector.select(one).clients.tolist()) == {2}


@pytest.mark.parametrize(
    ("selector", "match"),
    [
        (FedAlignSelector(eps=-0.1), r"'eps' parameter of FedAlignSelector.*\[0.0, inf\].*-0.1"),
        (FedAlignSelector(eps=np.nan), "'eps' parameter.*nan"),
        (FedAlignSelector(eps="x"), "'eps' parameter.*'x'"),
        (FedAlignSelector(warmup=-1), "'warmup' parameter.*-1"),
        (FedAlignSelector(warmup=1.5), "'warmup' parameter.*1.5"),
        (FedAlignSelector(match="auc"), "'match' parameter.*'auc'"),
        (PowerOfChoice(d=0), "'d' parameter.*0"),
        (PowerOfChoice(d=1.5), "'d' parameter.*1.5"),
        (PowerOfChoice(d=5, clients_per_round=1), "d=5 asks for more candidates than the 4"),
        (PowerOfChoice(d=2, clients_per_round=3), "d=2 gives 2 candidates, fewer than the 3"),
        (RandomSelector(clients_per_round=0), "'clients_per_round' parameter.*0"),
        (RandomSelector(probability="loss"), "'probability' parameter.*'loss'"),
        (RandomSelector(weighting="unbiased"), 'weighting="unbiased" is for probability="unif'),
    ],
)
def test_errors_name_the_parameter_and_its_value(make_round, selector, match):
    view, _ = make_round(np.zeros(4))
    with pytest.raises(ValueError, match=match):
        selector.select(view)


def test_a_fraction_counts_at_least_one_client_and_rounds_down():
    assert [count_clients(v, 100) for v in (0.29, 0.03, 0.001, 1.0, 7)] == [29, 3, 1, 100, 7]
    assert count_clients(0.1, 36) == 3


def test_parameters_are_not_checked_if_scikit_learn_skips_validation(make_round):
    """A string is not a bool, but its truth value can be taken."""
    selector = RandomSelector(2, replace="yes")
    with pytest.raises(ValueError, match="'replace'"):
        selector.select(make_round([1.0, 2.0, 3.0])[0])
    with config_context(skip_parameter_validation=True):
        assert len(selector.select(make_round([1.0, 2.0, 3.0])[0]).clients) == 2

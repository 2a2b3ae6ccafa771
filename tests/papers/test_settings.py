"""The settings are those of the papers and their code."""

import numpy as np
import pytest

from benchmarks.papers.catalogue import experiments
from benchmarks.papers.fedalign._images import OfAll
from benchmarks.runs.problems import noisy_synthetic
from skfed import FederatedClassifier

# Rounds, learning rate, b, tau or E, weight decay, m of random selection.
POWER_OF_CHOICE = {
    "fig5": (400, 0.005, 64, 30, 1e-4, 3),
    "fig9": (400, 0.005, 64, 30, 1e-4, 15),
    "fig11": (400, 0.005, 64, 30, 1e-4, 10),
    "fig12": (400, 0.005, 128, 30, 1e-4, 3),
    "fig14": (400, 0.005, 64, 100, 1e-4, 3),
    "table1": (400, 0.005, 64, 30, 1e-4, 3),
    "fig4": (800, 0.05, 50, 30, 0.0, 1),
}


@pytest.fixture(scope="module")
def known():
    return experiments()


def first(known, name):
    return known[name].panels[0].setting


@pytest.mark.parametrize("name", POWER_OF_CHOICE)
def test_power_of_choice(known, name):
    setting = first(known, f"power-of-choice-{name}")
    net = setting.net()
    rand = setting.strategies["rand"]["selector"]
    found = (
        setting.n_rounds,
        net.lr,
        net.batch_size,
        setting.training["local_steps"],
        net.get_params().get("optimizer__weight_decay", 0.0),
        rand.clients_per_round,
    )
    assert found == POWER_OF_CHOICE[name]
    assert (rand.probability, rand.replace) == ("size", True)


@pytest.mark.parametrize(
    ("name", "milestones"), [("fig5", [150, 300]), ("fig9", [300]), ("fig4", [300, 600])]
)
def test_the_learning_rate_is_halved(known, name, milestones):
    setting = first(known, f"power-of-choice-{name}")
    schedule = setting.training["lr_schedule"]
    assert (schedule.factor, list(schedule.milestones)) == (0.5, milestones)
    assert schedule.start == setting.net().lr


def test_intermittent_availability_leaves_out_a_tenth(known):
    assert first(known, "power-of-choice-fig8").training["availability"].removed == 0.1


@pytest.mark.parametrize(
    ("name", "steps", "mu"),
    [("fig1", 5, 0.0), ("fig2", 5, None), ("fig4", 5, 1.0), ("fig5", 5, 0.0)],
)
def test_fedalign(known, name, steps, mu):
    setting = first(known, f"fedalign-{name}")
    net = setting.net()
    assert (setting.n_rounds, net.lr, net.batch_size) == (200, 0.1, 32)
    assert setting.training["local_steps"] == steps
    assert setting.training.get("proximal_mu") == mu
    for strategy in setting.strategies.values():
        assert strategy["selector"].warmup in (0.1, 1.0)


def test_the_baseline_on_all_samples_uniformly_after_the_warm_up():
    problem = noisy_synthetic(0, skew=1.5)
    model = FederatedClassifier(
        selector=OfAll(warmup=2, participation=0.5),
        priority=problem.priority,
        n_rounds=40,
        local_steps=1,
        random_state=0,
    )
    model.fit(problem.X, problem.y, clients=problem.clients)
    cohorts = model.history_["cohort"]
    assert all(set(cohort) <= set(problem.priority) for cohort in cohorts[:2])
    later = np.bincount(np.concatenate(cohorts[2:].to_list()), minlength=20)
    assert {len(set(cohort)) for cohort in cohorts[2:]} == {10}
    assert later.min() >= 10 and later.max() <= 28  # 19 of 38 rounds each, ± 3 deviations
    assert not model.history_["n_polled"].any()

"""What a round offers rules beside polls: past, memory, trial, sketch, updates and two phases.

The seconds and bytes are worked out by hand for the clients of clocked.py: a model of 16 bytes
takes 1 s down and 1/2 s up, a scalar 1/2 s down and 1/4 s up, a message 1/4 s; clients a, b, c, d
train 6, 3, 2, 1 rows a second, 6 rows each, and evaluate three times as many.
"""

import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from clocked import CLIENTS, DEVICES, X, Y, estimator
from rules import COMPARED, RULES, Admitting, Momentum, Rested, Tried, Updated, deadline_of
from sklearn.base import clone
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier
from skfed.aggregation import Scaffold
from skfed.availability import Dropout, IndependentAvailability
from skfed.callbacks import RoundCallback
from skfed.engines import Batching, LocalTraining
from skfed.engines._projection import project
from skfed.privacy import GaussianMechanism
from skfed.selection import BaseSelector, Cohort, RandomSelector

COLUMNS = [
    *("models_down", "models_up", "scalars_down", "scalars_up"),
    *("samples_evaluated", "samples_trained", "n_polled", "n_trained", "n_aggregated"),
]


class Seen(BaseSelector):
    """Calls a function with each round; it may return a cohort of its own."""

    uses_priority = False

    def __init__(self, look=None):
        self.look = look

    def _select(self, round):
        found = self.look(round)
        return found if isinstance(found, Cohort) else Cohort.mean(np.flatnonzero(round.available))


def run(look, kind=Seen, **params):
    return estimator(selector=kind(look), engine="loop", **params).fit(X, Y, clients=CLIENTS)


def costs(model, t=0):
    return [int(model.history_[name][t]) for name in COLUMNS]


class TestPast:
    def test_what_is_counted(self):
        """Worked out by hand: round 0 polls a, b, a and trains b twice and c; round 1 trains a."""
        seen = []

        def look(round):
            past = round.past
            seen.append([past.n_polled.tolist(), past.n_chosen.tolist(), past.last_chosen.tolist()])
            if round.index == 0:
                round.poll([0, 1])
                round.poll([0])
                return Cohort.mean(np.array([1, 1, 2]))
            round.trial(Cohort.mean(np.array([3]))).poll([2])
            return Cohort.mean(np.array([0]))

        run(look)
        new = [0, 0, 0, 0]
        assert seen[0] == [new, new, [-1] * 4]
        assert seen[1] == [[2, 1, 0, 0], [0, 2, 1, 0], [-1, 0, 0, -1]]
        assert seen[2] == [[2, 1, 1, 0], [1, 2, 1, 0], [1, 0, 0, -1]]

    def test_losses_and_seconds_are_those_of_the_last_training(self):
        seen = []

        def look(round):
            seen.append((round.past.loss_mean.copy(), round.past.seconds.copy(), round.reported))
            return Cohort.mean(np.array([round.index]))

        model = run(look)
        assert np.isnan(seen[0][0]).all() and np.isnan(seen[0][1]).all()
        losses = model.history_["train_loss"]
        np.testing.assert_array_equal(seen[2][0], [losses[0], losses[1], np.nan, np.nan])
        np.testing.assert_allclose(seen[2][1], [2.75, 3.75, np.nan, np.nan])

    def test_a_late_client_keeps_its_last_values_and_counts_as_chosen(self):
        seen = []

        def look(round):
            seen.append((round.past.loss_mean[3], round.past.seconds[3], round.past.n_chosen[3]))

        run(look, deadline=8.0)  # d takes 7.75 s
        run(look, deadline=7.0)
        assert np.isfinite(seen[1]).all() and seen[1][1] == 7.75
        assert np.isnan(seen[4][:2]).all()
        assert [one[2] for one in seen] == [0, 1, 2] * 2

    def test_a_client_that_was_polled_in_vain_was_chosen(self):
        def look(round):
            counts.append(round.past.n_chosen.tolist())
            round.poll([3])
            return Cohort.mean(np.array([0, 3]))

        counts = []
        run(look, deadline=2.8)  # the poll of d takes 2.83 s
        assert counts[1] == [1, 0, 0, 1]

    def test_what_a_rule_does_not_need_is_an_error(self):
        with pytest.raises(ValueError, match=r"past.updates is kept only .* add 'updates' to"):
            run(lambda round: round.past.updates)

    def test_an_unknown_need_is_refused(self):
        class Wrong(Seen):
            needs = ("gradients",)

        with pytest.raises(ValueError, match=r"Wrong.needs has 'gradients': it may have 'spread'"):
            run(None, Wrong)

    @pytest.mark.parametrize("needs", ["updates", "last_layer"])
    def test_privacy_does_not_cover_updates(self, needs):
        noise = GaussianMechanism(clip=1.0, noise_multiplier=1.0)
        kind = type("Needing", (Seen,), {"needs": (needs,)})
        with pytest.raises(ValueError, match=f"update_privacy does not cover '{needs}'"):
            run(None, kind, update_privacy=noise)

    def test_updates_are_projected_and_the_last_layer_is_told(self):
        class Needing(Seen):
            needs = ("updates", "last_layer")

        seen = []

        def look(round):
            seen.append((round.past.updates.copy(), round.past.last_layer.copy()))
            return Cohort.mean(np.array([1]))

        model = run(look, Needing, n_rounds=2)
        state = model.net_.module_.state_dict()
        first, second = seen
        assert first[0].shape == (4, 64) and first[1].shape == (4, 2)
        assert np.isnan(first[0]).all() and np.isnan(first[1]).all()
        again = run(lambda round: Cohort.mean(np.array([1])), n_rounds=1)
        trained = again.net_.module_.state_dict()  # all zero before
        expected = project(list(trained.values()), model._server.seed)
        np.testing.assert_array_equal(second[0][1], expected)
        np.testing.assert_array_equal(second[1][1], trained["linear.bias"].double().numpy())
        assert np.isnan(second[0][[0, 2, 3]]).all()
        assert state.keys() == trained.keys()

    def test_the_last_layer_is_not_a_scale_behind_it(self):
        class Tempered(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(1, 2)
                self.temperature = nn.Parameter(torch.ones(()))

            def forward(self, X):
                return self.linear(X) * self.temperature

        class Needing(Seen):
            needs = ("last_layer",)

        seen = []
        model = FederatedClassifier(
            Tempered, selector=Needing(lambda r: seen.append(r.past.last_layer.copy()))
        )
        model.set_params(n_rounds=2, random_state=0).fit(X, Y, clients=CLIENTS)
        assert seen[1].shape == (4, 2) and np.isfinite(seen[1]).all()
        model.set_params(selector=None).fit(X, Y, clients=CLIENTS)  # nor is one looked for


class Spread(Seen):
    needs = ("spread",)


class TestSpread:
    @pytest.mark.parametrize("engine", ["loop", "stacked"])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_by_hand(self, engine, weighted):
        """One epoch of minibatches of 3 and 1 rows, at a rate of 0: each row's loss is log 2."""
        seen = []

        def look(round):
            seen.append((round.past.loss_std.copy(), round.past.loss_rms.copy()))

        net = NeuralNetClassifier(
            nn.Linear(1, 2), criterion=nn.CrossEntropyLoss, lr=0.0, batch_size=3
        )
        with torch.no_grad():
            net.module.weight[:] = torch.tensor([[1.0], [-1.0]])
            net.module.bias[:] = 0
        model = FederatedClassifier(net, selector=Spread(look), n_rounds=2, engine=engine)
        weights = np.tile([1.0, 2.0, 0.0, 1.0], 4) if weighted else None
        model.set_params(random_state=0).fit(X, Y, clients=CLIENTS, sample_weight=weights)
        margins = np.where(Y == 0, 2 * X[:, 0], -2 * X[:, 0])
        losses = np.log1p(np.exp(-margins)).reshape(4, 4)
        used = np.ones(4, dtype=bool) if weights is None else weights[:4] > 0
        expected = np.sqrt(np.square(losses[:, used]).mean(1))
        assert np.isnan(seen[0][1]).all()
        np.testing.assert_allclose(seen[1][1], expected, rtol=1e-6)
        if not weighted:
            # Minibatches of the client's permutation in round 0.
            batching = Batching(model._server.past._federation, model._server.seed, 3)
            for k in range(4):
                steps = [rows for _, rows in batching.minibatches(LocalTraining(), 0, k, 0)()]
                means = [losses[k][rows].mean() for rows in steps]
                assert len(means) == 2
                assert seen[1][0][k] == pytest.approx(np.std(means), rel=1e-5)

    @pytest.mark.parametrize("engine", ["loop", "stacked"])
    def test_it_is_of_all_rows_and_epochs_not_oort_last_minibatch(self, engine):
        """A published mistake takes the losses of one minibatch; another divides by the rows once.

        Two epochs of minibatches of 3 and 1 rows, at a rate of 0.
        """
        seen = []
        net = NeuralNetClassifier(
            nn.Linear(1, 2), criterion=nn.CrossEntropyLoss, lr=0.0, batch_size=3
        )
        with torch.no_grad():
            net.module.weight[:] = torch.tensor([[1.0], [-1.0]])
            net.module.bias[:] = 0
        rule = Spread(lambda round: seen.append(round.past.loss_rms.copy()))
        model = FederatedClassifier(net, selector=rule, n_rounds=2, local_epochs=2, engine=engine)
        model.set_params(random_state=0).fit(X, Y, clients=CLIENTS)
        margins = np.where(Y == 0, 2 * X[:, 0], -2 * X[:, 0])
        losses = np.log1p(np.exp(-margins)).reshape(4, 4)
        np.testing.assert_allclose(seen[1], np.sqrt(np.square(losses).mean(1)), rtol=1e-6)
        batching = Batching(model._server.past._federation, model._server.seed, 3)
        for k in range(4):
            *_, (_, rows) = batching.minibatches(LocalTraining(epochs=2), 0, k, 0)()
            assert len(rows) == 1
            assert seen[1][k] != pytest.approx(losses[k][rows[0]], rel=1e-3)

    def test_two_scalars_up_are_charged(self):
        model = run(lambda round: None, Spread, n_rounds=1)
        assert costs(model) == [4, 4, 0, 8, 0, 24, 0, 4, 4]

    @pytest.mark.parametrize("engine", ["loop", "stacked"])
    def test_class_weights_are_the_criterions(self, engine):
        """Rows of class 1 have twice the loss; what a client is weighted by plays no part."""
        seen = []

        def look(round):
            seen.append(round.past.loss_rms.copy())

        net = NeuralNetClassifier(
            nn.Linear(1, 2),
            criterion=nn.CrossEntropyLoss,
            lr=0.0,
            batch_size=2,
            criterion__weight=torch.tensor([1.0, 2.0]),
        )
        with torch.no_grad():
            net.module.weight[:] = net.module.bias[:] = 0
        model = FederatedClassifier(net, selector=Spread(look), n_rounds=2, engine=engine)
        model.set_params(random_state=0).fit(X, Y, clients=CLIENTS)
        np.testing.assert_allclose(seen[1], np.log(2) * np.sqrt((1 + 4) / 2), rtol=1e-6)

    def test_a_criterion_that_tells_no_row_is_said(self):
        class Mean(nn.Module):
            def forward(self, output, y):
                return nn.functional.cross_entropy(output, y)

        seen = []

        def look(round):
            past = round.past
            seen.append([a.copy() for a in (past.loss_mean, past.loss_std, past.loss_rms)])

        net = NeuralNetClassifier(nn.Linear(1, 2), criterion=Mean, lr=0.1, batch_size=2)
        model = FederatedClassifier(net, selector=Spread(look), n_rounds=2, random_state=0)
        with pytest.warns(UserWarning, match=r"past.loss_rms is over minibatches instead"):
            model.fit(X, Y, clients=CLIENTS)
        mean, deviation, rms = seen[1]
        np.testing.assert_allclose(np.square(rms), np.square(mean) + np.square(deviation))

    def test_loss_privacy_does_not_cover_it(self):
        noise = GaussianMechanism(clip=1.0, noise_multiplier=1.0)
        with pytest.raises(ValueError, match=r"loss_privacy does not cover 'spread'"):
            run(None, Spread, loss_privacy=noise)


class TestMemory:
    def test_it_comes_back_read_only_and_copied(self):
        kept, seen = np.arange(3.0), []

        def look(round):
            seen.append(dict(round.memory))
            with pytest.raises(TypeError):
                round.memory["x"] = 1
            given = [{"a": kept, "b": "text", "c": True, "d": 3}, None, {}, None][round.index]
            kept[:] = round.index + 7
            return Cohort(np.array([0]), np.ones(1), memory=given)

        run(look, n_rounds=5 - 1)
        assert seen[0] == {} and seen[3] == {}
        assert seen[1]["a"].tolist() == [7.0] * 3  # as it was when the cohort was returned
        assert (seen[1]["b"], seen[1]["c"], seen[1]["d"]) == ("text", True, 3)
        assert seen[2].keys() == seen[1].keys()

    @pytest.mark.parametrize(
        "value",
        [None, [1], {"a": 1}, np.array(["a"]), object(), 1j, Fraction(1, 2), np.ones(2, ">f8")],
        ids=["None", "list", "dict", "text", "object", "complex", "fraction", "big-endian"],
    )
    def test_what_cannot_be_kept_is_named(self, value):
        memory = {"right": 1.0, "wrong": value}
        with pytest.raises(TypeError, match=r"Seen gave memory\['wrong'\] = "):
            run(lambda round: Cohort(np.array([0]), np.ones(1), memory=memory))

    def test_a_round_that_reaches_nobody_leaves_it(self):
        class Alternating(Dropout):
            def _reachable(self, federation, round, rng, fixed_rng):
                return np.full(len(federation), round != 1)

        seen = {}

        def look(round):
            seen[round.index] = dict(round.memory)
            return Cohort(np.array([0]), np.ones(1), memory={"t": round.index})

        run(look, availability=Alternating(0.0))
        assert seen == {0: {}, 2: {"t": 0}}

    def test_another_rule_or_other_clients_begin_anew_with_a_warning(self):
        model = estimator(selector=Momentum(), n_rounds=1, warm_start=True)
        model.fit(X, Y, clients=CLIENTS)
        assert model._server.memory.values["rounds"] == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.set_params(n_rounds=2).fit(X, Y, clients=CLIENTS)
        assert model._server.memory.values["rounds"] == 2
        others = np.array(list("efgh"))[np.searchsorted(np.unique(CLIENTS), CLIENTS)]
        with pytest.warns(UserWarning, match=r"the memory of Momentum\(\) is empty at the start"):
            model.set_params(n_rounds=3, devices=None).fit(X, Y, clients=others)
        with pytest.warns(UserWarning, match=r"the memory of Rested\(\) is empty"):
            model.set_params(n_rounds=4, selector=Rested()).fit(X, Y, clients=others)

    def test_nobody_is_known_in_a_later_fit_of_others(self):
        model = estimator(n_rounds=1, warm_start=True).fit(X, Y, clients=CLIENTS)
        model.set_params(n_rounds=2, devices=None)
        model.fit(X, Y, clients=np.char.upper(CLIENTS))
        assert model._server.past.column("n_chosen").tolist() == [1] * 4


class TestTrial:
    def test_the_ledger_and_the_clock(self):
        def look(round):
            trial = round.trial(Cohort.mean(np.array([0, 1])))
            trial.poll([0, 2])
            round.poll([0])

        model = run(look, n_rounds=1)
        # Down: w_t to a, b, c, d, and the trial's model to a and c. Up: 2 of the trial, and 4.
        assert costs(model) == [6, 6, 0, 3, 12, 12 + 24, 3, 6, 4]
        trial, polls, training = 3.75, (0.25 + 1 + 2 / 3 + 0.25) + (0.25 + 2 / 9 + 0.25), 7.75
        assert model.history_["seconds"][0] == pytest.approx(trial + polls + training)
        kinds = [packed["kind"] for packed in model._server.rows[0]["exchanges"]]
        assert kinds == ["trial", "poll", "poll", "training"]

    def test_it_is_a_training_with_other_draws_that_is_thrown_away(self):
        found = []

        def look(round):
            trial = round.trial(Cohort.mean(np.array([0, 1])))
            again = round.trial(Cohort.mean(np.array([0, 1])))
            found.append([trial.poll([0]), again.poll([0]), round.poll([0])])
            return Cohort.mean(np.array([0, 1]))

        model = run(look, n_rounds=2)
        plain = run(lambda round: Cohort.mean(np.array([0, 1])), n_rounds=2)
        np.testing.assert_array_equal(model.coef_, plain.coef_)
        first, _ = found
        assert len({float(value) for (value,) in first}) == 3
        assert first[2] == pytest.approx(np.log(2))
        assert first[0] < first[2]

    def test_a_trial_on_all_rows_is_the_next_model(self):
        """Without draws the trial's loss is that of the model after the round."""
        found = []

        def look(round):
            cohort = Cohort.mean(np.array([0, 3]))
            found.append((round.poll([1])[0], round.trial(cohort).poll([1])[0]))
            return cohort

        model = estimator(selector=Seen(look), engine="loop", local_steps=None)
        model.set_params(estimator__batch_size=4).fit(X, Y, clients=CLIENTS)
        assert [one[1] for one in found[:-1]] == [one[0] for one in found[1:]]

    def test_objective_and_losses_are_those_of_the_round(self):
        def look(round):
            clients = np.flatnonzero(round.priority)
            round.poll(clients)
            round.trial(Cohort.mean(clients)).poll(clients)

        model = run(look, n_rounds=1)
        assert model.history_["objective"][0] == pytest.approx(np.log(2))
        plain = run(lambda round: None, n_rounds=1)
        assert model.history_["train_loss"][0] == plain.history_["train_loss"][0]
        assert model.history_["cohort"][0] == ("a", "b", "c", "d")

    def test_who_is_late_in_it_leaves_the_cohort(self):
        def look(round):
            round.trial(
                Cohort.mean(np.array([0, 3]))
            )  # d takes 7.75 s, and would take 6.75 s later

        model = run(look, n_rounds=1, deadline=7.5)
        assert model.history_["cohort"][0] == ("a", "b", "c")
        assert model.history_["causes"][0] == ("late",)

    def test_if_nobody_comes_back_it_is_the_current_model(self):
        losses = []

        def look(round):
            trial = round.trial(Cohort.mean(np.array([3])))
            losses.append((trial.poll([0])[0], round.poll([0])[0]))

        run(look, n_rounds=1, deadline=7.5)
        assert losses[0][0] == losses[0][1]

    def test_who_drops_out_is_drawn_once_a_round(self):
        def look(round):
            round.trial(Cohort.mean(np.arange(4)))

        model = run(look, n_rounds=6, availability=Dropout(0.5))
        for row in model._server.rows:
            away = [np.flatnonzero(_outcomes(packed) == 4).tolist() for packed in row["exchanges"]]
            assert away[0] == away[1]
        assert model.history_["n_failed"].sum() > 3

    def test_its_cohort_is_checked(self):
        with pytest.raises(ValueError, match=r"trial gave weights that sum to 2.0, not to 1"):
            run(lambda round: round.trial(Cohort(np.array([0, 1]), np.ones(2))))


def _outcomes(packed):
    dtype, data = packed["outcome"]
    values = np.frombuffer(data, dtype)
    return np.broadcast_to(values, 4)


class TestSketch:
    def test_the_ledger_and_the_clock(self):
        model = run(lambda round: round.sketch([0, 3]), n_rounds=1)
        # A seed down; 64 scalars up, which take 16 s; 4 rows at a training's cost.
        assert costs(model) == [4, 4, 2, 128, 0, 24 + 8, 0, 4, 4]
        assert model.history_["seconds"][0] == pytest.approx(0.25 + 1 + 0.5 + 4 + 16 + 6.75)

    def test_it_is_the_projection_of_the_gradient(self):
        """At weights of 0 the gradient of client 0 is the mean of (1/2 - y) x."""
        found = []
        model = run(lambda round: found.append(round.sketch([0, 1])), n_rounds=1)
        for k, sketch in enumerate(found[0]):
            x, y = X[4 * k : 4 * k + 4], Y[4 * k : 4 * k + 4]
            errors = 0.5 - np.stack([y == 0, y == 1], axis=1)
            gradient = [errors.T @ x / 4, errors.mean(0)]
            expected = project([torch.from_numpy(one) for one in gradient], model._server.seed)
            np.testing.assert_allclose(sketch, expected, atol=1e-7)

    def test_the_projection_is_linear_and_keeps_lengths(self):
        rng = np.random.default_rng(0)
        a, b = torch.from_numpy(rng.normal(size=(2, 200_000)))
        np.testing.assert_allclose(
            project([a], 3) + 2 * project([b], 3), project([a + 2 * b], 3), atol=1e-9
        )
        np.testing.assert_array_equal(project([a[:5], a[5:].view(5, -1)], 3), project([a], 3))
        lengths = [np.linalg.norm(project([a[i : i + 1000]], 3)) for i in range(0, 100_000, 1000)]
        exact = [np.linalg.norm(a[i : i + 1000]) for i in range(0, 100_000, 1000)]
        assert np.mean(np.square(np.divide(lengths, exact))) == pytest.approx(1, abs=0.06)
        assert np.abs(np.corrcoef(project([a], 3), project([a], 4))[0, 1]) < 0.5

    @pytest.mark.parametrize("name", ["update_privacy", "loss_privacy"])
    def test_privacy_does_not_cover_it(self, name):
        noise = GaussianMechanism(clip=1.0, noise_multiplier=1.0)
        with pytest.raises(ValueError, match=f"{name} does not cover the gradients"):
            run(lambda round: round.sketch([0]), **{name: noise})

    def test_it_depends_on_nobody_elses_gradient(self):
        """A criterion that is trained is part of the gradient."""

        class Scaled(nn.CrossEntropyLoss):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(()))

            def forward(self, output, y):
                return super().forward(self.scale * output, y)

        found = []

        def look(round):
            found.append([round.sketch([0, 0, 1, 1]), round.sketch([1, 0])])

        net = NeuralNetClassifier(nn.Linear(1, 2), criterion=Scaled, lr=0.1, batch_size=2)
        FederatedClassifier(net, selector=Seen(look), n_rounds=2, random_state=0).fit(
            X, Y, clients=CLIENTS
        )
        for one, other in found:
            np.testing.assert_array_equal(one[[0, 2]], one[[1, 3]])
            np.testing.assert_array_equal(other, one[[2, 0]])

    def test_only_gradients_are_sketched(self):
        with pytest.raises(ValueError, match=r'of must be "gradient", got \'update\''):
            run(lambda round: round.sketch([0], of="update"))

    def test_who_fails_is_left_out_with_a_row_of_nan(self):
        found = []

        def look(round):
            found.append(round.sketch([0, 1]))

        class Large(nn.Linear):
            def forward(self, X):
                return super().forward(X * 1e30)

        broken = X.copy()
        broken[:2] = 1e10  # which is infinite times 1e30
        model = FederatedClassifier(
            Large(1, 2), selector=Seen(look), n_rounds=1, lr_schedule=1e-32, random_state=0
        ).fit(broken, Y, clients=CLIENTS)
        assert np.isnan(found[0][0]).all() and np.isfinite(found[0][1]).all()
        assert model.history_["causes"][0] == (
            "ValueError: its gradient is not finite: lower the learning rate.",
        )
        assert "a" not in model.history_["cohort"][0]


class Captured(Admitting):
    """Keeps the reports that it is given."""

    reports: list = []

    def admit(self, round, reports):
        self.reports.append(reports)
        return super().admit(round, reports)


class TestTwoPhases:
    def test_the_ledger_and_the_clock(self):
        model = estimator(selector=Admitting(), engine="loop", n_rounds=1)
        model.fit(X, Y, clients=CLIENTS)
        # All four report a norm, two upload.
        assert costs(model) == [4, 2, 0, 4, 0, 24, 0, 4, 2]
        report, upload = 0.25 + 1 + 6 + 0.25, 0.25 + 0.5
        assert model.history_["seconds"][0] == pytest.approx(report + upload)
        assert len(model.history_["cohort"][0]) == 2

    def test_norms_are_weights_times_lengths(self):
        """With one step on all rows the update is the gradient times the rate, 0.1."""
        Captured.reports.clear()
        model = estimator(selector=Captured(), engine="loop", n_rounds=1, local_steps=1)
        model.set_params(estimator__batch_size=4).fit(X, Y, clients=CLIENTS)
        (reports,) = Captured.reports
        norms = []
        for k in range(4):
            x, y = X[4 * k : 4 * k + 4], Y[4 * k : 4 * k + 4]
            errors = 0.5 - np.stack([y == 0, y == 1], axis=1)
            norms.append(np.linalg.norm([*(errors.T @ x / 4).ravel(), *errors.mean(0)]))
        np.testing.assert_allclose(reports.norms, 0.25 * 0.1 * np.array(norms), rtol=1e-5)
        np.testing.assert_allclose(reports.losses, np.log(2), rtol=1e-6)
        assert reports.clients.tolist() == [0, 1, 2, 3]

    def test_admitting_all_is_the_rule_of_one_phase(self):
        class All(Admitting):
            def admit(self, round, reports):
                return Cohort.mean(reports.clients)

        two = estimator(selector=All(), engine="loop").fit(X, Y, clients=CLIENTS)
        one = run(lambda round: None)
        np.testing.assert_allclose(two.coef_, one.coef_, rtol=1e-6)
        np.testing.assert_allclose(
            two.history_["train_loss"], one.history_["train_loss"], rtol=1e-5
        )

    def test_nobody_may_be_admitted(self):
        class Nobody(Admitting):
            def admit(self, round, reports):
                return Cohort.mean(reports.clients[:0])

        with pytest.warns(UserWarning, match=r"in none of the 3 rounds has selector=Nobody"):
            model = estimator(selector=Nobody(), engine="loop").fit(X, Y, clients=CLIENTS)
        assert not model.coef_.any()
        assert model.history_["n_aggregated"].tolist() == [0, 0, 0]
        assert model.history_["n_trained"].tolist() == [4, 4, 4]

    def test_who_is_admitted_must_have_reported(self):
        class Wrong(Admitting):
            def admit(self, round, reports):
                return Cohort.mean(np.array([0, 0]))

        with pytest.raises(ValueError, match=r"Wrong admitted client 0 2 times, but it has repor"):
            estimator(selector=Wrong()).fit(X, Y, clients=CLIENTS)

    def test_dropouts_fail_before_the_report_and_the_goal_ends_it(self):
        Captured.reports.clear()
        model = estimator(selector=Captured(), report_goal=2, deadline=100.0, n_rounds=1)
        model.fit(X, Y, clients=CLIENTS)
        reports = Captured.reports[0]
        assert reports.clients.tolist() == [0, 1, 2, 3]
        assert np.isnan(reports.norms).tolist() == [False, False, True, True]  # c and d are late
        np.testing.assert_array_equal(np.isnan(reports.losses), np.isnan(reports.norms))
        assert model.history_["seconds"][0] == pytest.approx(3.5 + 0.75)

    def test_a_cohort_that_nobody_is_in_is_not_shown_to_the_rule(self):
        class Nobody(Dropout):
            def _reachable(self, federation, round, rng, fixed_rng):
                return np.full(len(federation), round != 1)

        Captured.reports.clear()
        model = estimator(selector=Captured(), availability=Nobody(0.0))
        model.fit(X, Y, clients=CLIENTS)
        assert len(Captured.reports) == 2
        assert model.history_["n_aggregated"].tolist() == [2, 0, 2]

    def test_what_is_no_cohort_is_refused(self):
        class Wrong(Admitting):
            def admit(self, round, reports):
                return reports.clients[:2]

        with pytest.raises(TypeError, match=r"Wrong gave array.* give a Cohort, such as Cohort.m"):
            estimator(selector=Wrong()).fit(X, Y, clients=CLIENTS)

    @pytest.mark.parametrize("engine", ["loop", "stacked"])
    def test_updates_are_known_of_those_that_uploaded(self, engine):
        """As in one phase; the spread of losses is in the reports, which all have sent."""

        class OnePhase(Seen):
            needs = ("updates", "last_layer", "spread")

        class Needing(Admitting):
            needs = OnePhase.needs

            def admit(self, round, reports):
                admitted = super().admit(round, reports)
                uploaded.append(admitted.clients)
                return admitted

        uploaded: list[np.ndarray] = []
        model = estimator(selector=Needing(), engine=engine, n_rounds=1).fit(X, Y, clients=CLIENTS)
        other = run(lambda round: None, OnePhase, n_rounds=1)
        past, expected = model._server.past.column, other._server.past.column
        known = np.isin(np.arange(4), uploaded[0])
        assert known.sum() == 2
        for name in ("updates", "last_layer"):
            assert np.isfinite(expected(name)).all()
            np.testing.assert_allclose(past(name)[known], expected(name)[known], atol=1e-6)
            assert np.isnan(past(name)[~known]).all()
        for name in ("loss_mean", "loss_std", "loss_rms"):
            np.testing.assert_allclose(past(name), expected(name), atol=1e-6)
        # Two scalars of the spread and a norm up.
        assert costs(model) == [4, 2, 0, 12, 0, 24, 0, 4, 2]

    def test_update_privacy_does_not_cover_norms(self):
        noise = GaussianMechanism(clip=1.0, noise_multiplier=1.0)
        with pytest.raises(ValueError, match=r"update_privacy does not cover the norms"):
            estimator(selector=Admitting(), update_privacy=noise).fit(X, Y, clients=CLIENTS)


def tables(model):
    timeless = [c for c in model.history_ if not c.endswith("_seconds")]
    return model.history_[timeless]


def same(one, other):
    pd.testing.assert_frame_equal(tables(one), tables(other))
    for name, tensor in one.net_.module_.state_dict().items():
        assert torch.equal(tensor, other.net_.module_.state_dict()[name]), name
    for name, value in one._server.memory.values.items():
        np.testing.assert_array_equal(value, other._server.memory.values[name])


SETTINGS = {
    "plain": {},
    "dropouts": {"availability": Dropout(0.4)},
    "deadline": {"deadline": 7.0},
    "public devices": {
        "devices": clone(DEVICES).set_params(public=True),
        "availability": IndependentAvailability(0.7),
    },
    "stacked": {"engine": "stacked"},
    "scaffold": {},
}


class Stop(RoundCallback):
    def on_round_end(self, estimator, record):
        if record["round"] == 2:
            raise OSError("killed")


@pytest.mark.filterwarnings("ignore:.*late in 5 of 5 rounds")
@pytest.mark.parametrize("rule", [*RULES, *COMPARED], ids=repr)
@pytest.mark.parametrize("name", SETTINGS)
def test_rules_resume_and_spread_over_jobs_bit_for_bit(rule, name, tmp_path):
    given = SETTINGS[name] | ({"aggregator": Scaffold()} if name == "scaffold" else {})
    if "deadline" in given:
        given = {"deadline": deadline_of(rule, given["deadline"])}
    model = estimator(selector=rule, n_rounds=5, **{"engine": "loop"} | given)
    whole = clone(model).fit(X, Y, clients=CLIENTS)
    same(clone(model).set_params(n_jobs=2).fit(X, Y, clients=CLIENTS), whole)
    model.set_params(checkpoint=tmp_path)
    with pytest.raises(OSError, match="killed"), pytest.warns(UserWarning, match="interrupted"):
        clone(model).set_callbacks(Stop()).fit(X, Y, clients=CLIENTS)
    same(clone(model).fit(X, Y, clients=CLIENTS), whole)


@pytest.mark.parametrize("rule", [*RULES, *COMPARED], ids=repr)
def test_the_stacked_engine_makes_the_same_choices(rule):
    one, other = (
        estimator(selector=rule, n_rounds=4, engine=engine).fit(X, Y, clients=CLIENTS)
        for engine in ("loop", "stacked")
    )
    costs = [c for c in COLUMNS if c in one.history_]
    pd.testing.assert_frame_equal(one.history_[costs], other.history_[costs])
    assert one.history_["cohort"].tolist() == other.history_["cohort"].tolist()
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-5)


def test_rules_without_them_pay_nothing():
    plain = run(lambda round: None)
    known = RandomSelector(1.0, "uniform", replace=False, weighting="mean", ignore_priority=True)
    model = estimator(selector=known, engine="loop").fit(X, Y, clients=CLIENTS)
    same(plain, model)


def test_a_rule_that_looks_at_updates_costs_what_random_selection_costs():
    model = estimator(selector=Updated(), engine="loop").fit(X, Y, clients=CLIENTS)
    assert costs(model, 1) == [2, 2, 0, 0, 0, 12, 0, 2, 2]
    assert set(sum(model.history_["cohort"].tolist()[:2], ())) == set("abcd")  # new ones first


def test_a_trial_that_is_better_is_taken():
    model = estimator(selector=Tried(), engine="loop").fit(X, Y, clients=CLIENTS)
    # The rows of a and b are alike; those of c and d are the other way round.
    assert model.history_["n_trained"].tolist() == [6, 6, 6]

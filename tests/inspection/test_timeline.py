"""The timeline of a round: bars, ends, names and errors. Seconds are those of test_clock.py."""

import numpy as np
import pytest
from clocked import ALL, CLIENTS, POW, Twice, X, Y, estimator, fit
from matplotlib.collections import PolyCollection
from rules import Admitting
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skfed import FedAlignSelector, PowerOfChoice
from skfed.availability import Dropout, TraceAvailability
from skfed.devices import LognormalDevices
from skfed.exchanges import KINDS
from skfed.inspection import TimelineDisplay, _timeline
from skfed.selection import Cohort


def bars(display):
    """Return the start and the end of each bar by what it shows, and then by place."""
    found = {}
    for drawn in display.ax_.collections:
        assert isinstance(drawn, PolyCollection)
        corners = [path.vertices[:4] for path in drawn.get_paths()]
        found[drawn.get_label()] = {
            round(float(c[:, 1].mean())): (c[:, 0].min(), c[:, 0].max()) for c in corners
        }
    return found


def lines(display, label):
    """Return where the vertical lines of a style are; the first has the label."""
    style = {"deadline": "--", "end of an exchange": "-"}[label]
    own = [line for line in display.ax_.lines if line.get_linestyle() == style]
    assert [line.get_label() for line in own][:1] == [label][: len(own)]
    return [line.get_xdata()[0] for line in own]


def names(display):
    return [text.get_text() for text in display.ax_.get_yticklabels()]


def test_a_training_by_hand(check_texts):
    """a to d train for 2.75, 3.75, 4.75 and 7.75 s; d is late at 5 s."""
    display = TimelineDisplay.from_estimator(fit(deadline=5.0), round=1)
    shown = bars(display)
    assert names(display) == ["d", "c", "b", "a"]  # the longest on top
    assert shown == {"trained": {1: (0, 4.75), 2: (0, 3.75), 3: (0, 2.75)}, "late": {0: (0, 5)}}
    assert lines(display, "deadline") == lines(display, "end of an exchange") == [5]
    assert display.ax_.get_xlabel() == "seconds since round 1 began"
    check_texts(display)


def test_a_poll_and_a_training_one_after_the_other():
    """d is late in the poll, at 2.8 s; who trains is above those that were only polled."""
    display = TimelineDisplay.from_estimator(fit(selector=PowerOfChoice(**POW), deadline=2.8))
    shown = bars(display)
    assert set(shown["polled"]) | set(shown["late"]) == {0, 1, 2, 3}
    assert {bar for bar in shown["late"].values() if bar[0] == 0} == {(0, 2.8)}
    assert shown["trained"].keys() <= {0, 1}
    assert [start for start, _ in shown["trained"].values()] == pytest.approx([2.8])
    assert lines(display, "deadline") == pytest.approx([2.8, 5.6])


class Everything(Admitting):
    """A sketch and a trial of all, and two phases."""

    def _select(self, round):
        clients = np.flatnonzero(round.available)
        round.sketch(clients)
        round.trial(Cohort.by_size(clients, round.sizes))
        return super()._select(round)


def test_a_sketch_a_trial_and_two_phases(check_texts):
    """d is last in each: a sketch of 0.25 + 1 + 0.5 + 4 + 16 s, a trial of 0.25 + 6 + 0.5 s and a
    report of 0.25 + 6 + 0.25 s with the model that it has; it uploads in 0.25 + 0.5 s."""
    display = TimelineDisplay.from_estimator(fit(selector=Everything(), n_rounds=1))
    shown = bars(display)
    place = names(display).index("d")
    assert [*shown] == ["sent a sketch", "trained on trial", "trained", "uploaded"]
    assert [len(own) for own in shown.values()] == [4, 4, 4, 2]
    ends = [21.75, 28.5, 35.0, 35.75]
    assert lines(display, "end of an exchange") == pytest.approx(ends)
    found = [own[place] for own in shown.values()]
    np.testing.assert_allclose(found, [*zip([0, *ends[:-1]], ends, strict=True)])
    assert {*shown["uploaded"]} == {0, 1}  # on top
    check_texts(display)


def test_each_kind_of_exchange_has_a_colour_of_its_own():
    assert {kind.done for kind in KINDS.values()} < _timeline._COLOURS.keys()
    assert len(set(_timeline._COLOURS.values())) == len(_timeline._COLOURS)


def test_what_has_no_colour_is_not_left_out(monkeypatch):
    monkeypatch.delitem(_timeline._COLOURS, "trained")
    with pytest.raises(KeyError, match="trained"):
        TimelineDisplay.from_estimator(fit())


def test_a_deadline_that_is_far_is_left_out():
    assert lines(TimelineDisplay.from_estimator(fit(deadline=8.0)), "deadline") == [8.0]
    assert lines(TimelineDisplay.from_estimator(fit(deadline=80.0)), "deadline") == []


def test_copies_of_a_client_are_one_bar():
    shown = bars(TimelineDisplay.from_estimator(fit(selector=Twice())))
    assert shown == {"trained": {0: (0, 4.25), 1: (0, 3.75)}}


def test_silent_clients_and_those_that_do_not_reply():
    selector = FedAlignSelector(eps=0, warmup=0)
    display = TimelineDisplay.from_estimator(fit(selector=selector, priority=["a", "b"]))
    assert [len(bars(display)[k]) for k in ("polled", "polled, silent", "trained")] == [2, 2, 2]
    display = TimelineDisplay.from_estimator(fit(availability=Dropout(1.0), deadline=5.0))
    [crosses] = [line for line in display.ax_.lines if line.get_marker() == "x"]
    assert (crosses.get_label(), len(crosses.get_xdata())) == ("no answer", 4)


@pytest.mark.parametrize(("n", "label"), [(10, "clients"), (100, "100 clients")])
def test_many_clients_are_counted(n, label, check_texts):
    model = estimator(selector=ALL, devices=LognormalDevices(3, 16, 32), deadline=6.0, n_rounds=1)
    rows = np.zeros((2 * n, 1), np.float32)
    model.fit(rows, np.arange(2 * n) % 2, clients=[f"client {i // 2}" for i in range(2 * n)])
    display = TimelineDisplay.from_estimator(model)
    assert display.ax_.get_ylabel() == label
    assert sum(map(len, bars(display).values())) == n
    check_texts(display)


def test_statistics_before_round_0_and_a_pipeline():
    step = estimator(n_rounds=1).set_params(estimator=None)
    pipeline = make_pipeline(FunctionTransformer(), step)
    pipeline.fit(X, Y, federatedclassifier__clients=CLIENTS)
    shown = bars(TimelineDisplay.from_estimator(pipeline))
    assert set(shown["sent statistics"].values()) == {(0, 1.5)}
    assert all(start == 1.5 for start, _ in shown["trained"].values())


def test_rounds_that_cannot_be_drawn():
    model = fit(availability=TraceAvailability([[1, 1, 1, 1], [0, 0, 0, 0]]), n_rounds=2)
    with pytest.raises(ValueError, match="round=1 asked no client"):
        TimelineDisplay.from_estimator(model)
    with pytest.raises(ValueError, match="round=2 is none of the 2 rounds"):
        TimelineDisplay.from_estimator(model, round=2)
    with pytest.raises(ValueError, match="had no clock"):
        TimelineDisplay.from_estimator(fit(devices=None))

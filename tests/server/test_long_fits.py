"""A late round costs what an early one does."""

import sys

import numpy as np
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback

from skfed import FederatedClassifier, PowerOfChoice
from skfed.modules import SoftmaxRegression

LINES = []  # run so far, at each round's end; a list of the module, since callbacks are copied


class CountLines(Callback):
    """Count the lines of skfed that are run, each pass of a loop on one line included."""

    def on_train_begin(self, net, **kwargs):
        LINES.clear()
        self.n_lines = 0
        sys.settrace(self.trace)

    def trace(self, frame, event, arg):
        if event == "call":
            return self.trace if "skfed" in frame.f_code.co_filename else None
        self.n_lines += event == "line"
        return self.trace

    def on_epoch_end(self, net, **kwargs):
        LINES.append(self.n_lines)

    def on_train_end(self, net, **kwargs):
        sys.settrace(None)


def test_a_round_runs_as_many_lines_late_in_a_fit_as_early():
    X, clients = np.eye(6, 4), np.repeat([0, 1, 2], 2)
    net = NeuralNetClassifier(
        SoftmaxRegression, module__n_features=4, module__n_classes=2, callbacks=[CountLines]
    )
    model = FederatedClassifier(net, selector=PowerOfChoice(d=2), n_rounds=100, engine="loop")
    before = sys.gettrace()
    try:
        model.fit(X, np.arange(6) % 2, clients=clients)
    finally:
        sys.settrace(before)
    lines = np.diff(LINES)
    assert abs(np.median(lines[-20:]) - np.median(lines[:20])) < 10, lines

"""What a long fit holds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG_FIT = """
import os
import numpy as np
import torch
from skfed import FederatedClassifier, PowerOfChoice
from skfed.contribution import DataBanzhaf
from skfed.selection import BaseSelector, Cohort

torch.set_num_threads(1)
PAGE = os.sysconf("SC_PAGE_SIZE")

class Remembering(BaseSelector):
    needs = ("updates", "last_layer", "spread")

    def __init__(self, d):
        self.d = d

    def _select(self, round):
        past, seen = round.past, round.memory.get("seen", np.zeros(10_000))
        rows = past.updates.sum(1) + past.last_layer.sum(1) + past.loss_std + past.loss_rms
        seen = seen + np.nansum(rows)
        chosen = np.argsort(past.n_chosen, kind="stable")[: self.d]
        weights = np.full(self.d, 1 / self.d)
        return Cohort(chosen, weights, memory={"seen": seen, "round": round.index})

class Watching(RULE):
    def _select(self, round):
        if round.index in (100, 599):
            print(int(open("/proc/self/statm").read().split()[1]) * PAGE)
        return super()._select(round)

rng = np.random.default_rng(0)
X, y, clients = rng.normal(size=(300, 20)), np.arange(300) % 3, np.arange(300) % 30
model = FederatedClassifier(
    selector=Watching(d=D), n_rounds=600, local_steps=1, random_state=0, contribution=METHOD
)
model.fit(X, y, clients=clients)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "d", "method"),
    [("PowerOfChoice", 10, "DataBanzhaf(16)"), ("Remembering", 25, None)],
)
def test_memory_does_not_grow_with_the_rounds(rule, d, method):
    """The updates of 25 clients, or the memory of the rule, are more than the bytes allowed."""
    program = LONG_FIT.replace("RULE", rule).replace("=D", f"={d}").replace("METHOD", str(method))
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    after_100, after_600 = map(int, told.stdout.split())
    assert after_600 - after_100 <= 500 * 10_000  # bytes a round; the history's row is 1000

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

torch.set_num_threads(1)
PAGE = os.sysconf("SC_PAGE_SIZE")

class Watching(PowerOfChoice):
    def _select(self, round):
        if round.index in (100, 599):
            print(int(open("/proc/self/statm").read().split()[1]) * PAGE)
        return super()._select(round)

rng = np.random.default_rng(0)
X, y, clients = rng.normal(size=(300, 20)), np.arange(300) % 3, np.arange(300) % 30
model = FederatedClassifier(
    selector=Watching(d=10), n_rounds=600, local_steps=1, random_state=0
)
model.fit(X, y, clients=clients)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.slow
def test_memory_does_not_grow_with_the_rounds():
    command = [sys.executable, "-c", LONG_FIT]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    after_100, after_600 = map(int, told.stdout.split())
    assert after_600 - after_100 <= 500 * 10_000  # bytes a round; the history's row is 1000

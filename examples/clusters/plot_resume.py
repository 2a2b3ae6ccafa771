"""
Resuming a fit that was killed
==============================

A training script that is killed, as by a power cut or a cluster's scheduler, and run again ends
with the model of an uninterrupted script, bit for bit. With ``checkpoint=`` a fit writes after
every round, or every few, all that it needs to continue. ``save`` and ``load`` keep the fitted
estimator.
"""

import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from skfed import FederatedClassifier, PowerOfChoice
from skfed.inspection import ConvergenceDisplay

# %%
# The script. It is the same before and after the kill: ``fit`` finds the run in the directory by
# its parameters and data. ``verbose=1`` prints what was found, and shows a progress bar.

SCRIPT = """
import numpy as np
from sklearn.datasets import load_digits
from skfed import FederatedClassifier, PowerOfChoice

X, y = load_digits(return_X_y=True)
model = FederatedClassifier(
    selector=PowerOfChoice(d=8, clients_per_round=2),
    n_rounds=300,
    lr_schedule=0.1,
    random_state=0,
    checkpoint="runs",
    checkpoint_every=10,
    verbose=1,
)
users = y * 2 + np.arange(len(y)) % 2  # each user writes one digit
model.fit(X / 16, y, clients=users)
model.save("model.safetensors")
"""

folder = Path(tempfile.mkdtemp())
command = [sys.executable, "-c", SCRIPT]
log = folder / "output.txt"
with log.open("w") as output:
    victim = subprocess.Popen(
        command, cwd=folder, stdout=output, stderr=subprocess.STDOUT
    )
states = "runs/*/state.safetensors"
while victim.poll() is None and not list(folder.glob(states)):
    time.sleep(0.05)  # until its first checkpoint
if victim.returncode:
    raise RuntimeError(f"the script has failed: {log.read_text()}")
time.sleep(0.2)
victim.kill()
print("killed with exit code", victim.wait())

# %%
# Run it again:

again = subprocess.run(
    command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True
)
print(textwrap.fill(again.stdout, 79, break_on_hyphens=False))
n_before = int(again.stdout.split("after round ")[1].split()[0])

# %%
# The file is loaded into an estimator with the same parameters: nothing in a file is executed, so
# the parameters come from the code. The model is that of an uninterrupted fit.

X, y = load_digits(return_X_y=True)
X, users = X / 16, y * 2 + np.arange(len(y)) % 2
params = {
    "selector": PowerOfChoice(d=8, clients_per_round=2),
    "n_rounds": 300,
    "lr_schedule": 0.1,
    "random_state": 0,
}
resumed = FederatedClassifier(**params).load(folder / "model.safetensors")
whole = FederatedClassifier(**params).fit(X, y, clients=users)
assert np.array_equal(resumed.predict_proba(X), whole.predict_proba(X))
assert list(resumed.history_["cohort"]) == list(whole.history_["cohort"])

# %%
# The history has the rounds of both processes, and its curve is that of the other fit.

fits = {"never killed": whole, "killed and run again": resumed}
display = ConvergenceDisplay.from_estimators(fits)
display.lines_[0].set(linewidth=4, alpha=0.4)  # the other line lies on it
display.ax_.axvline(
    n_before, color="grey", linestyle=":", label="the last checkpoint"
)
display.ax_.set_title("The run goes on as if nothing had happened")
display.ax_.legend(frameon=False)
plt.show()

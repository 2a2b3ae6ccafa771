from pathlib import Path

from flwr.serverapp import ServerApp

import skfed
from skfed.evaluation import FederatedEvaluation
from skfed.flower import FederatedStrategy, _discovery
from tiny.task import make_estimator

app = ServerApp()


@app.main()
def main(grid, context):
    settings = context.run_config
    folder = Path(settings["folder"])
    given = settings["rounds"], settings["selector"], folder / "runs"
    estimator = make_estimator(*given, with_steps=settings["steps"])
    if settings["report_goal"]:
        estimator.set_params(report_goal=settings["report_goal"])
    joining = {}
    if settings["join"]:
        estimator[-1].set_params(evaluation=FederatedEvaluation())
        joining = {"join": True, "min_sites": 2, "classes": [0, 1, 2]}
    strategy = FederatedStrategy(
        estimator,
        clients=settings["clients"].split(),
        timeout=settings["timeout"],
        **joining,
    )
    # A site that has come back is waited for, however long it imports on a busy machine.
    _discovery._RETRY_AFTER = settings["timeout"]
    strategy.start(grid)
    skfed.save(strategy.model_, folder / "model.safetensors")

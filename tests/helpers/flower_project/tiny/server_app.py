from pathlib import Path

from flwr.serverapp import ServerApp

import skfed
from skfed.flower import FederatedStrategy
from tiny.task import make_estimator

app = ServerApp()


@app.main()
def main(grid, context):
    settings = context.run_config
    folder = Path(settings["folder"])
    given = settings["rounds"], settings["selector"], folder / "runs"
    estimator = make_estimator(*given, with_steps=settings["steps"])
    if settings["deadline"]:
        estimator.set_params(deadline=settings["deadline"])
    strategy = FederatedStrategy(
        estimator,
        clients=settings["clients"].split(),
        timeout=settings["timeout"],
    )
    strategy.start(grid)
    skfed.save(strategy.model_, folder / "model.safetensors")

from pathlib import Path

from flwr.serverapp import ServerApp

from skfed.flower import FederatedStrategy
from tiny.task import make_estimator

app = ServerApp()


@app.main()
def main(grid, context):
    settings = context.run_config
    folder = Path(settings["folder"])
    strategy = FederatedStrategy(
        make_estimator(settings["rounds"], settings["selector"], folder / "runs"),
        clients=settings["clients"].split(),
        timeout=settings["timeout"],
    )
    strategy.start(grid)
    strategy.model_.save(folder / "model.safetensors")

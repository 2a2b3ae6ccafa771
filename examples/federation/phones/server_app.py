"""The ServerApp, which waits for the sites, runs the rounds and writes the model."""

from flwr.serverapp import ServerApp

from phones.task import ACTIVITIES, SITES, make_estimator
from skfed.flower import FederatedStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    settings = context.run_config
    strategy = FederatedStrategy(
        make_estimator(settings["rounds"], settings["checkpoint"] or None),
        clients=SITES,
        classes=ACTIVITIES,
        timeout=settings["timeout"],
    )
    strategy.start(grid)
    strategy.model_.save(settings["out"])

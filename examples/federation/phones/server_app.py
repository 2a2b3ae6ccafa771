"""The ServerApp: waits for the sites, fits the Pipeline and writes it."""

from flwr.serverapp import ServerApp

import skfed
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
    skfed.save(strategy.model_, settings["out"])

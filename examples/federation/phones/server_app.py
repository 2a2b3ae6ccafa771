"""The ServerApp: waits for the sites, fits, says who took part, and writes."""

from flwr.serverapp import ServerApp

import skfed
from phones.task import ACTIVITIES, SITES, make_estimator
from skfed.flower import FederatedStrategy
from skfed.inspection import participation_report

app = ServerApp()


@app.main()
def main(grid, context):
    settings = context.run_config
    strategy = FederatedStrategy(
        make_estimator(settings["rounds"], settings["checkpoint"] or None),
        clients=SITES[: settings["sites"]],
        classes=ACTIVITIES,
        timeout=settings["timeout"],
        log_json=settings["log-json"] or None,
    )
    strategy.start(grid)
    print(participation_report(strategy.model_).T.to_string())
    skfed.save(strategy.model_, settings["out"])

"""FedALIGN in a Flower project; sites 1 and 2 have priority."""

from flwr.serverapp import ServerApp

import skfed
from digits.task import load_data, make_net
from skfed import FedAlignSelector, FederatedClassifier
from skfed.flower import FederatedStrategy, client_app
from skfed.inspection import participation_report

model = FederatedClassifier(make_net(), n_rounds=5, local_epochs=5)
model.set_params(selector=FedAlignSelector(eps=0.2, warmup=1))
model.set_params(priority=["site 1", "site 2"], random_state=0)
client = client_app(model, load_data)
server = ServerApp()


@server.main()
def main(grid, context):
    strategy = FederatedStrategy(model, clients=5)
    strategy.start(grid)
    print(participation_report(strategy.model_).T.to_string())
    skfed.save(strategy.model_, context.run_config["out"])

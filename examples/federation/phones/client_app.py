"""The ClientApp of each site: the folder is in its node's configuration."""

from phones.task import make_estimator, read_site
from skfed.flower import client_app

# The server sets the number of rounds; the client uses the steps, the net and
# the privacy.
app = client_app(
    make_estimator(rounds=1),
    lambda context: read_site(context.node_config["data"]),
)

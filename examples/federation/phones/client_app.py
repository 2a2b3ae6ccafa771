"""What runs at each site: it reads the folder that its node was started with."""

from phones.task import make_estimator, read_site
from skfed.flower import client_app

# The server says how many rounds there are; the net and the privacy count here.
app = client_app(make_estimator(rounds=1), lambda context: read_site(context.node_config["data"]))

"""A Flower project: the Pipeline, the ServerApp and the ClientApp."""

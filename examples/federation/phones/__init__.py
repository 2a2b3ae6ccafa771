"""A Flower project: the estimator, the ServerApp and the ClientApp."""

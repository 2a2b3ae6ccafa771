"""FedALIGN: Ravi and Shomorony, Prioritized Federated Learning, TMLR 2024, and its preprint."""

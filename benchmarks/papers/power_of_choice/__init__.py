"""Power-of-choice: Cho, Wang and Joshi, Client Selection in Federated Learning, 2020."""

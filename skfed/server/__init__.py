"""The server's side of a fit: its state, its rounds, and what it sends to clients."""

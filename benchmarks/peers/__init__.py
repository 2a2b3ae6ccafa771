"""Other federated-learning packages, timed on the same rounds."""

from benchmarks.peers.peers import PEERS, PeerUnavailable, run_peer

__all__ = ["PEERS", "PeerUnavailable", "run_peer"]

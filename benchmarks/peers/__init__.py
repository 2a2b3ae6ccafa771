"""Other federated-learning packages, timed on the same rounds."""

from benchmarks.peers.peers import PEERS, Peer, PeerUnavailable

__all__ = ["PEERS", "Peer", "PeerUnavailable"]

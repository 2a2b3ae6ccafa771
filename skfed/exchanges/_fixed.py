"""The tensors of a model that training leaves alone, and the clients that have received them."""

from collections.abc import Callable, Mapping

import numpy as np


class FixedTensors:
    """The tensors that a client is sent with its first model, and again when they have changed.

    Parameters
    ----------
    n_bytes : mapping of str to int
        The bytes of each tensor by name.
    versions : mapping of str to int
        The version of the model, counted from 1, in which each had its present value first.
    n_clients : int
        All of the federation.
    received : callable
        Returns the version that each of some clients has received before the round; 0: none.

    Attributes
    ----------
    version : int
        The present one, which all have that are sent a model in the round.
    """

    def __init__(
        self,
        n_bytes: Mapping[str, int],
        versions: Mapping[str, int],
        n_clients: int,
        received: Callable[[np.ndarray], np.ndarray],
    ):
        self.n_bytes, self.versions, self._received = n_bytes, versions, received
        self.version = max(versions.values())
        of_version = np.zeros(self.version + 1, dtype=np.int64)
        for name, size in n_bytes.items():
            of_version[versions[name]] += size
        # By the version of a client: the bytes of what is newer.
        self._lacking = of_version.sum() - of_version.cumsum()
        self._in_round = np.zeros(n_clients, dtype=bool)  # who has received it since
        self._resent: dict[int, int] = {}  # bytes by client

    def lacking(self, clients: np.ndarray) -> np.ndarray:
        """Return the bytes that each is sent with a model; of a client listed twice, once."""
        sent = np.zeros(len(clients), dtype=np.int64)
        distinct, first = np.unique(clients, return_index=True)
        sent[first] = self._lacking[self._versions_of(distinct)]
        return sent

    def names_lacking(self, client: int) -> list[str]:
        """Return the names of the tensors that a client is sent with a model."""
        (version,) = self._versions_of(np.array([client])).tolist()
        return [name for name in self.n_bytes if self.versions[name] > version]

    def note(self, clients: np.ndarray) -> None:
        """Note that some clients have been sent a model."""
        self._in_round[clients] = True

    def resend(self, client: int, n_bytes: int) -> None:
        """Note that a client has lost the tensors, and is sent them again with other bytes."""
        self._resent[client] = sum(self.n_bytes.values()) + n_bytes

    def resent(self, clients: np.ndarray) -> np.ndarray:
        """Return what each has been sent again since this was asked; of copies, once."""
        found = [self._resent.pop(k, 0) for k in clients.tolist()]
        return np.array(found, dtype=np.int64)

    def news(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the clients whose version has changed in the round, and their versions."""
        known = np.flatnonzero(self._in_round)
        versions = self._versions_of(known)
        has_changed = versions != self._received(known)
        return known[has_changed], versions[has_changed]

    def _versions_of(self, clients: np.ndarray) -> np.ndarray:
        return np.where(self._in_round[clients], self.version, self._received(clients))

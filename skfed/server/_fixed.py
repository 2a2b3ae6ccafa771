"""Which tensors of the model training leaves alone, and since when they have their values."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch

from skfed.exchanges import FixedTensors, PastRecords
from skfed.nets import State
from skfed.utils._files import checksum


class Fixed(NamedTuple):
    """The tensors that training leaves alone, as clients have last been sent them."""

    versions: Mapping[str, int] = {}  # of the model, in which each had its value first
    digests: Mapping[str, str] = {}  # of the values
    state: State = {}  # the present values; in no file

    def of(self, state: State, names: Collection[str]) -> "Fixed":
        """Return those of a model, given which of its tensors training leaves alone now."""
        if self.state.keys() == set(names) and all(
            torch.equal(state[name], self.state[name]) for name in names
        ):
            return self
        fixed = {name: state[name] for name in state if name in names}
        digests = {name: checksum(name, {"": tensor}) for name, tensor in fixed.items()}
        changed = [name for name in fixed if self.digests.get(name) != digests[name]]
        version = max(self.versions.values(), default=0) + 1
        return Fixed(
            {**self.versions, **dict.fromkeys(changed, version)},
            {**self.digests, **digests},
            fixed,
        )

    def tensors(self, past: PastRecords) -> FixedTensors | None:
        """Return what clients are sent of them in a round; None: there are none."""
        if not self.state:
            return None
        n_bytes = {name: tensor.nbytes for name, tensor in self.state.items()}
        versions = {name: self.versions[name] for name in self.state}
        return FixedTensors(n_bytes, versions, past.n_clients, past.versions)

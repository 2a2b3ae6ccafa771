"""The transformers of a Pipeline that are fitted so far, in a file of a checkpoint directory."""

from pathlib import Path
from typing import Any

from sklearn.pipeline import Pipeline

from skfed._federation import Federation
from skfed.checkpoint._fingerprint import describe, describe_data, fingerprint
from skfed.checkpoint._fitted import State
from skfed.checkpoint._run import directory_of
from skfed.utils import _files


class StepsFile:
    """Reads and writes the states of fitted transformers.

    The file's name is the fingerprint of the steps, the columns and the clients; ``root`` None
    stands for no checkpoint.
    """

    def __init__(self, root: Any, steps: Pipeline, columns: Any, federation: Federation):
        self.path: Path | None = None
        if root is not None:
            described = {"steps": describe(steps, "steps"), "columns": repr(columns)}
            name = fingerprint(described | describe_data({}, federation))
            self.path = directory_of(root) / f"steps-{name}.safetensors"

    def read(self) -> list[State]:
        """Return the states of the transformers that were fitted before, in their order."""
        if self.path is None or not self.path.exists():
            return []
        return _files.read(self.path)

    def write(self, states: list[State]) -> None:
        """Write the states."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _files.write(self.path, states)

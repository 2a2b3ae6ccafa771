"""A directory of runs, each written after every n rounds, so that a killed fit can be resumed.

Each run has a folder, whose name is the fingerprint of its parameters and data; the candidates of a
search may share a directory. A folder has the files

- ``about.json``: the description of the parameters and the data;
- ``history-N.jsonl``: the rows of the history, one a line, to which rows are appended;
- ``state.safetensors``: the rest of the server's state, and the length of the history.

Of a Pipeline over :mod:`skfed.flower`, ``steps-FINGERPRINT.safetensors`` beside these folders has
the transformers that are fitted so far.

The state is written last and replaced as a whole. After a crash, longer histories are cut to the
length in the state. Nothing in these files is executed.
"""

from skfed.checkpoint._fitted import State, parts_of, restore, state_of
from skfed.checkpoint._run import Run, open_run
from skfed.checkpoint._save import (
    fitted_state,
    from_fitted_state,
    is_saved,
    read_fitted,
    write_fitted,
)
from skfed.checkpoint._state import warn_of_lost_state
from skfed.checkpoint._steps import StepsFile

__all__ = [
    "Run",
    "State",
    "StepsFile",
    "fitted_state",
    "from_fitted_state",
    "is_saved",
    "open_run",
    "parts_of",
    "read_fitted",
    "restore",
    "state_of",
    "warn_of_lost_state",
    "write_fitted",
]

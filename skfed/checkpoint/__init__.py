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

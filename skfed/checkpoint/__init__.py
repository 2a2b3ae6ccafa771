"""A directory of runs, each written after every n rounds, so that a killed fit can go on.

The directory has one folder a run, named by the fingerprint of its parameters and data; the
candidates of a search may share it. In it are

- ``about.json``: the parameters and the data, described, to say what differs;
- ``history-N.jsonl``: the rows of the history, a line each, appended to;
- ``state.safetensors``: all else that the server remembers, and how far the history goes.

The state is written last and replaced as a whole. What the history has beyond it, after a crash,
is cut off. Nothing in these files is executed.
"""

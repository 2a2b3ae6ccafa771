"""A directory of runs, each written after every n rounds, so that a killed fit can go on.

The directory has one folder a run, named by the fingerprint of its parameters and data; the
candidates of a search may share it. In it are

- ``about.json``: the parameters and the data, described, to say what differs;
- ``history-N.jsonl``: the rows of the history, a line each, appended to;
- ``state.safetensors``: all else that the server remembers, and how far the history goes.

The state is written last and replaced as a whole. What the history has beyond it, after a crash,
is cut off. Nothing in these files is executed.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from skfed import _files
from skfed._fingerprint import Description, differences, fingerprint
from skfed._nets import get_model
from skfed._rounds import Server
from skfed._state import position, restore, state_of

_SHOWN = 3

Saved = tuple[dict[str, Any], list[dict[str, Any]]]  # the state, and the rows of the history


class Run:
    """One run of a checkpoint directory, locked by who has it open.

    Parameters
    ----------
    folder : Path
        The run's own folder.
    every : int
        Rounds from one checkpoint to the next.
    """

    def __init__(self, folder: Path, every: int):
        self.folder, self.every = folder, every
        self._log: Path | None = None
        self._n_rows = 0  # in the log

    @property
    def _state_path(self) -> Path:
        return self.folder / "state.safetensors"

    def read(self) -> Saved | None:
        """Return the state and the rows of the last checkpoint, or None if there is none.

        Raises
        ------
        ValueError
            If the files have been damaged.
        """
        if not self._state_path.exists():
            return None
        saved = _files.read(self._state_path)
        try:
            state, (name, n_bytes, checksum) = saved["state"], saved["log"]
            data = (self.folder / name).read_bytes()[:n_bytes]
        except (KeyError, TypeError, ValueError, FileNotFoundError) as error:
            raise ValueError(f"{self.folder} is damaged: {error!r}; delete it.") from error
        if sha256(data).hexdigest() != checksum:
            raise ValueError(
                f"{self.folder / name} is damaged: its checksum does not fit; delete "
                f"{self.folder} to start this run anew."
            )
        rows = [_files.from_json(json.loads(line), {}) for line in data.splitlines()]
        self._log, self._n_rows = self.folder / name, len(rows)
        self._n_bytes, self._checksum = n_bytes, sha256(data)
        return state, rows

    def keep(self, server: Server, last: bool) -> None:
        """Write a checkpoint, if one is due.

        Raises
        ------
        OSError
            If it cannot be written; the one before is left as it was.
        """
        if server.round % self.every and not last:
            return
        self._append(server.rows)
        assert self._log is not None
        log = [self._log.name, self._n_bytes, self._checksum.hexdigest()]
        _files.write(self._state_path, {"state": state_of(server), "log": log})
        for old in self.folder.glob("history-*.jsonl"):
            if old != self._log:
                old.unlink()

    def _append(self, rows: list[dict[str, Any]]) -> None:
        """Add what the log lacks to it, behind what its last checkpoint knows of."""
        if self._log is None:
            taken = [int(path.stem.split("-")[1]) for path in self.folder.glob("history-*.jsonl")]
            self._log = self.folder / f"history-{max(taken, default=-1) + 1}.jsonl"
            self._n_rows, self._n_bytes, self._checksum = 0, 0, sha256()
        lines = [json.dumps(_files.to_json(row, {})) for row in rows[self._n_rows :]]
        data = "".join(f"{line}\n" for line in lines).encode()
        with open(self._log, "r+b" if self._log.exists() else "xb") as file:
            file.truncate(self._n_bytes)
            file.seek(self._n_bytes)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._n_rows, self._n_bytes = len(rows), self._n_bytes + len(data)
        self._checksum.update(data)


@contextmanager
def opened(
    directory: str | os.PathLike, every: int, about: Description, server: Server, verbose: int
) -> Iterator[Run]:
    """Open the run that parameters and data stand for, and bring the server to where it has come.

    A server that has finished rounds before (``warm_start``) goes on with the run that holds its
    very state; else where it starts is part of what tells the run from others.

    Raises
    ------
    OSError
        If the directory cannot be written to, or another process has this run open.
    ValueError
        If the run's files have been damaged.
    """
    root, here = Path(directory), position(get_model(server.net), server.seed, server.round)
    if server.round and _position(Run(root / fingerprint(about), every).read()) != here:
        about = about | {"start": here}
    run = Run(root / fingerprint(about), every)
    run.folder.mkdir(parents=True, exist_ok=True)
    with _locked(run.folder):
        found = run.read()
        if verbose:
            _tell(root, run.folder, about, found, _position(found) == here)
        if found is None:
            _files.replace(run.folder / "about.json", json.dumps(about, indent=1).encode())
        elif _position(found) != here:
            _restore(run.folder, server, found)
        yield run


def _position(found: Saved | None) -> str | None:
    return found and position(found[0]["model"], found[0]["seed"], len(found[1]))


def _restore(folder: Path, server: Server, found: Saved) -> None:
    try:
        restore(server, *found)
    except ValueError as error:
        raise ValueError(f"{folder} cannot be taken up: {error}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a run for this process alone; the lock of a killed process is free."""
    try:
        with FileLock(folder / "lock", timeout=0):
            for aside in folder.glob(".*"):  # of a process killed while it wrote
                aside.unlink()
            yield
    except Timeout:
        raise BlockingIOError(
            f"checkpoint: another process or thread is at this very run, {folder}: wait for it, "
            "or give this fit a directory of its own."
        ) from None


def _tell(root: Path, folder: Path, about: Description, found: Saved | None, is_here: bool) -> None:
    """Print which run was found, or what differs from the nearest one."""
    if found is not None:
        verb = "writes on" if is_here else "goes on"
        print(f"checkpoint: {verb} after round {len(found[1])} of the run in {folder}")
        return
    text = f"checkpoint: a new run in {folder}"
    others = [differences(about, other) for other in _others(root)]
    if others:
        nearest = min(others, key=len)
        more = f" and {len(nearest) - _SHOWN} more" if len(nearest) > _SHOWN else ""
        text += f"; the nearest there differs in {', '.join(nearest[:_SHOWN])}{more}"
    print(text)


def _others(root: Path) -> Iterator[Description]:
    for path in sorted(root.glob("*/about.json")):
        with suppress(ValueError):  # a damaged one cannot be compared with
            yield json.loads(path.read_text())

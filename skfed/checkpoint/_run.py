"""Finds, writes and resumes the runs of a checkpoint directory."""

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from skfed._federation import Federation
from skfed.checkpoint._fingerprint import (
    FORMAT,
    describe_data,
    describe_parameters,
    fingerprint,
)
from skfed.checkpoint._state import position, restore, state_to_dict, warn_of_lost_state
from skfed.nets import get_state
from skfed.server import ServerState
from skfed.utils import _files
from skfed.utils._warnings import warn

_SHOWN = 3
_FOLDER = re.compile(r"(v\d+-)?[0-9a-f]{32}")  # of a run; the first format has no number
_LOG = re.compile(r"history-(\d+)\.jsonl")

Description = dict[str, str]
Saved = tuple[dict[str, Any], list[dict[str, Any]]]  # the state, and the rows of the history


class Run:
    """Reads the files of one run, and writes them after each ``every`` rounds."""

    def __init__(self, folder: Path, every: int):
        self.folder, self.every = folder, every
        self._state_path = folder / "state.safetensors"
        self._log: Path | None = None
        self._n_rows = 0  # in the history's file
        self._warned = False

    def read(self) -> Saved | None:
        """Return the state and the rows of the last checkpoint, or None if there is none."""
        if not self._state_path.exists():
            return None
        saved = _files.read(self._state_path)
        try:
            state, (name, n_bytes, checksum) = saved["state"], saved["log"]
            position(state["model"], state["seed"], 0)
            if not _LOG.fullmatch(name):  # it is written to, so it must be in the folder
                raise ValueError(f"it names {name!r} as its history")
            data = (self.folder / name).read_bytes()[: index(n_bytes)]
        except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            raise ValueError(f"{self.folder} is damaged: {error!r}; delete it.") from error
        if sha256(data).hexdigest() != str(checksum):  # of any type, in a damaged file
            raise ValueError(
                f"{self.folder / name} is damaged: its checksum does not fit; delete "
                f"{self.folder} to start this run anew."
            )
        try:
            rows = [_files.from_json(json.loads(line), {}) for line in data.splitlines()]
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.folder / name} is damaged: {error}; delete it.") from error
        self._log, self._n_rows = self.folder / name, len(rows)
        self._n_bytes, self._checksum = n_bytes, sha256(data)
        return state, rows

    def keep(self, server: ServerState, last: bool) -> None:
        """Write a checkpoint, if one is due; on an error the one before is left as it was."""
        if server.round % self.every and not last:
            return
        if not self._warned:
            self._warned = True
            warn_of_lost_state(server)
        self._append(server.rows)
        assert self._log is not None
        log = [self._log.name, self._n_bytes, self._checksum.hexdigest()]
        _files.write(self._state_path, {"state": state_to_dict(server), "log": log})
        for old in self.folder.glob("history-*.jsonl"):
            if old != self._log:
                old.unlink()

    def _append(self, rows: list[dict[str, Any]]) -> None:
        """Append new rows to the history's file, after those of the last checkpoint."""
        if self._log is None:
            found = map(_LOG.fullmatch, os.listdir(self.folder))
            taken = [int(match[1]) for match in found if match]
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
def open_run(
    kind: type,
    params: Mapping[str, Any],
    server: ServerState,
    federation: Federation,
    data: Mapping[str, Any],
) -> Iterator[Run | None]:
    """Context manager for the run of a fit; restores the run's last state.

    With ``warm_start``, a run that has more than ``n_rounds`` is not changed, and the new run has
    ``n_rounds`` in its fingerprint. A server that has finished rounds resumes the run that begins
    with these rounds; without one, the new run has the server's position in its fingerprint.

    ``kind`` and ``params`` are the estimator's class and parameters, nested ones included; ``data``
    has, by name, what else the result depends on. Yields None without ``checkpoint``.
    """
    checkpoint = params["checkpoint"]
    if checkpoint is None:
        yield None
        return
    root = directory_of(checkpoint)
    _check_ids(federation.ids)
    description = describe_parameters(kind, params) | describe_data(data, federation)
    description = _choose(root, description, server, params["n_rounds"])
    run = Run(root / fingerprint(description), params["checkpoint_every"])
    if not run.folder.exists():
        _warn_of_other_formats(root)
    run.folder.mkdir(parents=True, exist_ok=True)
    with _locked(run.folder):
        _resume(run, description, server, params["verbose"])
        yield run


def directory_of(checkpoint: Any) -> Path:
    """Return the directory that ``checkpoint`` names; ValueError if it names none."""
    if not os.fspath(checkpoint) or "\0" in str(checkpoint):
        raise ValueError(f"checkpoint={checkpoint!r} names no directory: name one, or pass None.")
    return Path(checkpoint)


def _resume(run: Run, description: Description, server: ServerState, verbose: int) -> None:
    """Restore a run's last state, or begin the run."""
    found = run.read()
    if verbose:
        _print_found(run.folder, description, found)
    if found is None:
        _files.replace(run.folder / "about.json", json.dumps(description, indent=1).encode())
    elif len(found[1]) != server.round:
        if description.get("random_state", "None") == "None":
            warn(
                "random_state=None, so this fit resumes with the seed of the run in "
                f"{run.folder}: set random_state, or give each repeat a checkpoint directory of "
                "its own."
            )
        try:
            restore(server, *found)
        except ValueError as error:
            raise ValueError(f"{run.folder} cannot be resumed: {error}") from error


def _check_ids(ids: np.ndarray) -> None:
    """Check that client ids can be written, before anything is trained."""
    for client in ids if ids.dtype == object else ():
        try:
            _files.to_json(client, {})
        except TypeError as error:
            raise TypeError(
                f"clients has the id {client!r}, which checkpoint cannot write: {error}"
            ) from error


def _warn_of_other_formats(root: Path) -> None:
    """Warn of runs that were described in another format."""
    names = (path.name for path in root.glob("*") if _FOLDER.fullmatch(path.name))
    n_runs = sum(not name.startswith(f"v{FORMAT}-") for name in names)
    if n_runs:
        warn(
            f"checkpoint: {n_runs} runs in {root} were written by another version of skfed, which "
            f"described parameters in another way, so they are not resumed and this fit begins a "
            f"new run. Folders without v{FORMAT}- in their names can be deleted."
        )


def _choose(
    root: Path, description: Description, server: ServerState, n_rounds: int
) -> Description:
    """Return the description of the run to resume or to begin."""
    starts: list[Description] = [{}]
    if server.round:
        starts.append({"start": position(get_state(server.net), server.seed, server.round)})
    for start, limit in itertools.product(starts, ({}, {"n_rounds": str(n_rounds)})):
        candidate = description | start | limit
        found = Run(root / fingerprint(candidate), 1).read()
        is_own = bool(start) or not server.round
        if found is None and is_own:
            break
        if found and len(found[1]) <= n_rounds and (is_own or _continues(found, server)):
            break
    return candidate


def _continues(found: Saved, server: ServerState) -> bool:
    """Tell whether a run begins with all rounds of a server."""
    state, rows = found
    pairs = zip(server.rows, rows[: server.round], strict=True)
    return (
        len(rows) >= server.round
        and state["seed"] == server.seed
        and all(_timeless(a) == _timeless(b) for a, b in pairs)
    )


def _timeless(row: dict[str, Any]) -> str:
    return json.dumps(
        [_files.to_json([k, v], {}) for k, v in row.items() if not k.endswith("_seconds")]
    )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Context manager for a run's lock, which a killed process releases."""
    try:
        with FileLock(folder / "lock", timeout=0):
            for name in ("state.safetensors", "about.json"):
                for aside in folder.glob(f".{name}.*"):  # of a process killed while it wrote
                    aside.unlink()
            yield
    except Timeout:
        raise BlockingIOError(
            f"checkpoint: another process or thread has the run in {folder} open: wait for it, or "
            "pass another directory."
        ) from None


def _print_found(folder: Path, description: Description, found: Saved | None) -> None:
    """Print which run was found, or how the most similar one differs."""
    if found is not None:
        print(f"checkpoint: resumes after round {len(found[1])} of the run in {folder}")
        return
    text = f"checkpoint: a new run in {folder}"
    runs = _descriptions(folder.parent)
    others = [_differences(description, other) for one, other in runs if one != folder]
    if others:
        nearest = min(others, key=len)
        more = f" and {len(nearest) - _SHOWN} more" if len(nearest) > _SHOWN else ""
        text += f"; the most similar run differs in {', '.join(nearest[:_SHOWN])}{more}"
    print(text)


def _differences(one: Description, other: Description) -> list[str]:
    """Name the differing parts of two descriptions, with the text of ``other``, then of ``one``."""
    return [
        f"{name} ({other.get(name, 'default'):.60}, now {one.get(name, 'default'):.60})"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


def _descriptions(root: Path) -> Iterator[tuple[Path, Description]]:
    """Yield the folders of runs, and their descriptions unless they are damaged."""
    for path in sorted(root.glob(f"v{FORMAT}-*/about.json")):
        with suppress(OSError, ValueError, RecursionError):
            description = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(description, dict) and {*map(type, description.values())} == {str}:
                yield path.parent, description

"""Starts a SuperNode whose messages are handled by forks of a process that has all imports.

``python -m skfed.flower.warm flower-supernode --superlink ... --node-config ...``

A node runs the command ``flwr-clientapp`` for each message, which takes seconds to import Flower,
scikit-learn and torch. Here it finds another command of this name in PATH, which asks a process
that has imported them for a fork. Each message still has a process of its own, which loads the
project.

This process becomes the node: its id and exit status are the node's. It needs Linux.
"""

import gc
import multiprocessing
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import torch

_COMMAND = "flwr-clientapp"
_PAUSE = 0.5  # seconds from one look for what has ended to the next


def main() -> None:
    """Start a process that forks for each message, and become the node."""
    command, real = sys.argv[1:], shutil.which(_COMMAND)
    if sys.platform != "linux":
        sys.exit("skfed.flower.warm needs Linux: start the node without it.")
    if not command or shutil.which(command[0]) is None:
        sys.exit("usage: python -m skfed.flower.warm flower-supernode [OPTION]...")
    if real is None:
        sys.exit(f"{_COMMAND} is not in PATH: add the folder with the commands of Flower.")
    if os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOEXEC:
        sys.exit(f"{tempfile.gettempdir()} is mounted with noexec: set TMPDIR to another folder.")
    run = _import_all()  # before the node starts: Flower waits 30 seconds for a message's process
    folder, node = Path(tempfile.mkdtemp(prefix="skfed-warm-")), os.getpid()  # for this user alone
    listener = _listen(folder)
    _write_command(folder / _COMMAND, folder, real)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    if os.fork():
        os.execvp(command[0], command)
    try:
        _fork_until_it_ends(node, listener, run)
    finally:
        shutil.rmtree(folder)


def _listen(folder: Path) -> socket.socket:
    listener, descriptor = socket.socket(socket.AF_UNIX), os.open(folder, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{descriptor}/socket")  # a path may have 107 bytes alone
    os.close(descriptor)
    listener.listen()
    return listener


def _write_command(path: Path, folder: Path, real: str) -> None:
    script = Path(__file__).with_name("_ask_for_fork.py")
    ask = shlex.join([sys.executable, "-IS", str(script), str(folder), real])
    path.write_text(f'#!/bin/sh\nexec {ask} "$@"\n')
    path.chmod(0o700)


def _fork_until_it_ends(node: int, listener: socket.socket, run: Callable[[], None]) -> None:
    """Handle each connection in a fork, until the node has ended."""
    for one in (signal.SIGINT, signal.SIGTERM):  # which a service sends to all of its processes
        signal.signal(one, signal.SIG_IGN)
    listener.settimeout(_PAUSE)
    while os.getppid() == node:
        multiprocessing.active_children()  # waits for those that have ended
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        arguments = listener, connection, run
        with connection, suppress(OSError):  # no fork: the command, not answered, runs by itself
            multiprocessing.get_context("fork").Process(target=_handle, args=arguments).start()
            connection.sendall(b"1")


def _import_all() -> Callable[[], None]:
    """Import what messages need; return the function of the command."""
    if not sys.flags.safe_path:
        del sys.path[0]  # that of -m: the command does not have it
    (entry,) = entry_points(group="console_scripts", name=_COMMAND)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports torch's compiler
    run = entry.load()
    gc.freeze()  # a fork that collects does not copy what is here
    return run


def _handle(listener: socket.socket, connection: socket.socket, run: Callable[[], None]) -> None:
    """Run the command with the arguments that a connection sends, as a new process would."""
    listener.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    np.random.seed()  # noqa: NPY002 - else forks draw the same; Python's generator does so itself
    with connection, connection.makefile("rb") as file:
        *arguments, _ = file.read().split(b"\0")
    sys.argv = [_COMMAND, *map(os.fsdecode, arguments)]
    run()


if __name__ == "__main__":
    main()

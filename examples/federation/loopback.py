"""Starts and stops a SuperLink and SuperNodes of Flower on this machine."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; its default is 1
}
_BIN = Path(sys.executable).parent
#: What messages of a node import.
_IMPORTS = ["skfed.flower.warm", "flwr.supernode.cli", "torch._dynamo"]


class _Fork:
    """A node in a fork of a process that has the imports; as Popen has it.

    Messages of all nodes of one machine import once in this way. Each node is
    what ``python -m skfed.flower.warm`` makes of its process.
    """

    def __init__(self, command: list[str], environment: dict, log: Path):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTS)
        arguments = command, environment, log, _new_path()
        self._process = context.Process(target=_become, args=arguments)
        with _without_program():
            self._process.start()
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.poll()


@contextmanager
def _without_program():
    """Context manager in which new processes do not import the program.

    They would have its project then, instead of the one that is submitted. They
    have Flower's settings, of which it reads some when it is imported.
    """
    program, before = sys.modules["__main__"], dict(os.environ)
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        sys.modules["__main__"] = program
        os.environ.clear()
        os.environ.update(before)


def _become(command: list[str], environment: dict, log: Path, path: list[str]):
    """Make this process a node, whose environment and path are new."""
    from skfed.flower import warm

    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # to be read from the environment
    sys.argv, sys.path[:] = ["warm", *command], path
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    warm.main()


def _new_path() -> list[str]:
    """Return the path of a new process of ``python -m``."""
    ask = [
        sys.executable,
        "-c",
        "import json, sys; print(json.dumps(sys.path))",
    ]
    return json.loads(subprocess.check_output(ask))


class Loopback:
    """A federation of processes, which end with the context.

    What forks nodes ends with the program.

    Parameters
    ----------
    folder : path
        Folder for logs and Flower's files.
    certificates : Certificates, default=None
        Encrypt all traffic, and admit registered nodes only; None is safe on
        loopback alone.
    warm : bool, default=on Linux
        Start nodes by ``skfed.flower.warm``; they share what messages import.
    """

    def __init__(
        self, folder, certificates=None, warm=sys.platform == "linux"
    ):
        self.folder, self.certificates = Path(folder), certificates
        self.warm = warm
        self.port = _free_port()
        self.address = f"127.0.0.1:{self.port}"
        # SuperLink, nodes by their names, and by its id what prints the log of
        # a run, which ends with it.
        self.processes: dict[str, subprocess.Popen | _Fork] = {}

    def __enter__(self):
        self._write_config()
        options = ["--host", "127.0.0.1", "--port", str(self.port)]
        options += ["--disable-runtime-dependency-installation"]
        if self.certificates is None:
            options += ["--insecure"]
        else:
            options += self.certificates.of_superlink()
        self._start("superlink", "flower-superlink", *options)
        try:
            self.wait_for(
                lambda: _listens(self.port), "SuperLink does not start"
            )
        except BaseException:  # Ctrl-C too; __exit__ is not called then
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # Every process is ended, even if one end fails; SuperLink is the last,
        # since nodes tell it that they leave.
        superlink = self.processes.pop("superlink")
        others = list(self.processes.values())
        try:
            with ThreadPoolExecutor(len(others) + 1) as pool:  # all at once
                ends = [pool.submit(_end, process) for process in others]
            for end in ends:
                end.result()
        finally:
            _end(superlink)

    def node(self, name: str, data, key=None, insecure=None, client=None):
        """Start a SuperNode with a client's data, or start it again.

        ``client`` is the name of the client if it is not that of the node.
        """
        insecure = self.certificates is None if insecure is None else insecure
        options = ["--superlink", self.address, "--port", str(_free_port())]
        options += [
            "--node-config",
            f'client-name="{client or name}" data="{data}"',
        ]
        if insecure:
            options += ["--insecure"]
        else:
            options += ["--root-certificates", str(self.certificates.ca)]
        if key is not None:
            options += ["--auth-supernode-private-key", str(key)]
        command, home = ["flower-supernode", *options], f"home-{name}"
        if self.warm:
            log = self.folder / f"{name}.log"
            log.touch()
            self.processes[name] = _Fork(command, self._environment(home), log)
        else:
            self._start(name, *command)

    def stop(self, name: str):
        """Stop a node, and wait for its end."""
        _end(self.processes.pop(name))

    def kill(self, name: str):
        """Kill a node and what it has started, as a power cut would."""
        node = self.processes.pop(name)
        _kill(_family(node.pid))
        node.wait()

    def submit(self, app, **settings) -> str:
        """Submit a Flower project; return the id of its run."""
        text = " ".join(
            f"{name}={json.dumps(value)}" for name, value in settings.items()
        )
        started = self._json("run", str(app), "loop", "--run-config", text)
        run = str(started["run-id"])
        self._start(run, "flwr", "log", run, "loop", "--stream", home="flower")
        return run

    def status(self, run: str) -> str:
        """Return a run's status: pending, starting, running or finished:..."""
        return self._json("list", "loop", "--run-id", run)["runs"][0]["status"]

    def wait(
        self,
        run: str,
        limit: float = 1200.0,
        show: Callable[[str], None] | None = None,
        nodes: Iterable[str] = (),
    ) -> str:
        """Wait for the end of a run; return its log.

        Raises
        ------
        RuntimeError
            If the ServerApp raised: Flower's own command does not report it;
            or as ``wait_for``, of which ``nodes`` are the names.
        TimeoutError
            If it takes longer.
        """
        shown = 0

        def has_ended():
            nonlocal shown
            ended = self.processes[run].poll() is not None
            shown = _show(self.log(run), shown, show)
            return ended

        self.wait_for(has_ended, "the run does not end", *nodes, limit=limit)
        status = self.status(run)
        if status != "finished:completed":
            raise RuntimeError(
                f"the run ended as {status}: {self.log(run)[-4000:]}"
            )
        return self.log(run)

    def wait_for(
        self,
        ready: Callable[[], bool],
        message: str,
        *names: str,
        limit: float = 1200.0,
    ):
        """Wait until something is there.

        Raises
        ------
        RuntimeError
            If SuperLink, or a node or run among ``names``, ends before: it
            has what they have printed.
        TimeoutError
            If it takes over ``limit`` seconds.
        """
        end, watched = time.monotonic() + limit, ["superlink", *names]
        while True:
            # In this order: it may be there when they end.
            ended = [
                n for n in watched if self.processes[n].poll() is not None
            ]
            late = time.monotonic() > end
            if ready():
                return
            if ended or late:
                logs = {name: self.log(name)[-2000:] for name in watched}
                told = "".join(f"\n{n}:\n{log}" for n, log in logs.items())
                if ended:
                    raise RuntimeError(f"{message}: {ended} ended{told}")
                raise TimeoutError(f"{message} within {limit} s{told}")
            time.sleep(0.2)

    def _json(self, *arguments: str) -> dict:
        """Run Flower's command line; return its parsed output."""
        output = json.loads(self.flwr(*arguments, "--format", "json"))
        if not output["success"]:  # its exit status is 0 all the same
            raise RuntimeError(
                f"flwr {' '.join(arguments)}: {output['error-message']}"
            )
        return output

    def flwr(self, *arguments: str) -> str:
        """Run Flower's command line; return its output."""
        done = self._popen(
            "flwr",
            *arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, err = done.communicate(timeout=1200)
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {out}{err}")
        return out

    def log(self, name: str) -> str:
        """Return the output of a process so far."""
        return (self.folder / f"{name}.log").read_text()

    def _write_config(self):
        home = self.folder / "flower"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        lines = ["[superlink]", 'default = "loop"', "[superlink.loop]"]
        lines += [f'address = "{self.address}"']
        if self.certificates is None:
            lines += ["insecure = true"]
        else:
            lines += [f'root-certificates = "{self.certificates.ca}"']
        (home / "config.toml").write_text("\n".join(lines) + "\n")

    def _start(self, name: str, command: str, *options: str, home=None):
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = self._popen(
                command,
                *options,
                home=home or f"home-{name}",
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _popen(
        self, command: str, *options: str, home="flower", **streams
    ) -> subprocess.Popen:
        return subprocess.Popen(
            [_BIN / command, *options], env=self._environment(home), **streams
        )

    def _environment(self, home: str) -> dict[str, str]:
        # For what Flower starts itself.
        path = f"{_BIN}{os.pathsep}{os.environ['PATH']}"
        return (
            dict(os.environ)
            | _ENVIRONMENT
            | {"FLWR_HOME": str(self.folder / home), "PATH": path}
            | {"TMPDIR": str(self.folder)}  # where killed ones leave files
        )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _family(pid: int) -> list[int]:
    """Return a process and all of its descendants, children first."""
    parents = _parents()
    found = [pid]
    for one in found:
        found += [child for child, parent in parents if parent == one]
    return found[::-1]


def _parents() -> list[tuple[int, int]]:
    """Return each process with its parent, from /proc or else from ps."""
    if not Path("/proc/self/stat").exists():
        command = ["ps", "-eo", "pid=,ppid="]
        output = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
        return [
            (int(pid), int(parent))
            for pid, parent in map(str.split, output.splitlines())
        ]
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(
            FileNotFoundError, ProcessLookupError
        ):  # it has ended meanwhile
            after_name = stat.read_text().rpartition(")")[2].split()
            found.append((int(stat.parent.name), int(after_name[1])))
    return found


def _kill(processes: list[int]):
    """Kill processes, of which some may have ended."""
    for one in processes:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _end(process: "subprocess.Popen | _Fork"):
    """Terminate a process, and kill its remaining descendants."""
    family = _family(process.pid)
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _kill(family)


def _show(text: str, start: int, show: Callable[[str], None] | None) -> int:
    """Pass new lines of a log to ``show``; return where they end."""
    whole = text.rfind("\n") + 1
    if show is not None:
        for line in text[start:whole].splitlines():
            show(line)
    return max(start, whole)

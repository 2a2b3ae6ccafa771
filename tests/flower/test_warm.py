"""A node's commands, handled by forks of one process."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from skfed.flower import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks after imports")
ASK = Path(warm.__file__).with_name("_ask_for_fork.py")
# Runs the command twice, and stays until its input is closed.
NODE = 'echo $$; flwr-clientapp --token "a b"; flwr-clientapp; read line; exit 3'
COMMAND = """
import json, os, random, signal, sys
import numpy as np
imported = ["torch" in sys.modules, "torch._dynamo" in sys.modules]
def main():
    print(json.dumps({
        "arguments": sys.argv[1:], "imported": imported, "pid": os.getpid(),
        "drawn": [np.random.rand(), random.random()], "path": os.getcwd() in sys.path,
        "signals": [signal.getsignal(s) == d for s, d in (
            (signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL))],
    }), flush=True)
"""


def path_of_commands():
    """Return PATH with the folder of this Python's commands."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def environment(folder):
    """Return that of a Flower of another command, which says what it has."""
    info = folder / "packages" / "flwr-1.41.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: flwr\nVersion: 1.41\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nflwr-clientapp = command:main\n")
    (info.parent / "command.py").write_text(COMMAND)
    paths = str(info.parent), str(Path(__file__).parents[2])
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": path_of_commands(),
        "TMPDIR": str(folder),
    }


def test_each_command_of_a_node_is_handled_by_a_fork(tmp_path):
    """The node keeps its process; forks have the imports, draws of their own, and no leftovers."""
    command = [sys.executable, "-m", "skfed.flower.warm", "sh", "-c", NODE]
    with subprocess.Popen(
        command,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as node:
        assert int(node.stdout.readline()) == node.pid
        one, other = sorted(
            (json.loads(node.stdout.readline()) for _ in range(2)), key=lambda o: o["arguments"]
        )
        left, _ = node.communicate()  # until the process that forks has ended, too
    assert node.returncode == 3 and left == ""
    assert one["arguments"] == [] and other["arguments"] == ["--token", "a b"]
    assert one["imported"] == other["imported"] == [True, True]
    assert one["signals"] == [True, True]
    assert not one["path"]  # the command itself does not look in the current folder
    assert len({node.pid, one["pid"], other["pid"]}) == 3
    assert not set(one["drawn"]) & set(other["drawn"])
    assert not [*tmp_path.glob("skfed-*")]


def test_without_a_process_that_forks_the_command_itself_runs(tmp_path):
    command = [sys.executable, "-IS", ASK, tmp_path, "/bin/echo", "a b", "c"]
    assert subprocess.check_output(command, text=True) == "a b c\n"


def test_without_a_fork_the_command_itself_runs(tmp_path):
    """The process that forks takes the arguments, and has no memory for a fork."""
    with warm._listen(tmp_path) as listener:
        command = [sys.executable, "-IS", ASK, tmp_path, "/bin/echo", "a b"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as file:
                assert file.read() == b"a b\0"
            assert asking.communicate()[0] == "a b\n"


@pytest.mark.parametrize(
    ("command", "path", "message"),
    [
        ([], None, "usage: python -m skfed.flower.warm"),
        (["no-such-command"], None, "usage: python -m skfed.flower.warm"),
        (["/bin/sh"], "/bin", "flwr-clientapp is not in PATH"),
    ],
)
def test_a_node_that_cannot_start_is_an_error(monkeypatch, command, path, message):
    monkeypatch.setattr(sys, "argv", ["warm", *command])
    if path:
        monkeypatch.setenv("PATH", path)
    with pytest.raises(SystemExit, match=message):
        warm.main()


def test_a_folder_from_which_no_command_runs_is_an_error(monkeypatch):
    """As Docker mounts a tmpfs by default; a test cannot mount one."""
    monkeypatch.setattr(sys, "argv", ["warm", "sh"])
    monkeypatch.setenv("PATH", path_of_commands())
    mounted = {tempfile.gettempdir(): SimpleNamespace(f_flag=os.ST_NOEXEC)}
    monkeypatch.setattr(warm.os, "statvfs", mounted.__getitem__)
    with pytest.raises(SystemExit, match=" is mounted with noexec: set TMPDIR"):
        warm.main()

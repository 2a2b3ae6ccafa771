"""The example's processes end, also after errors; its certificates have all names."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from cryptography import x509

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
PARENT = [sys.executable, "-c", f"import subprocess; subprocess.run({SLEEPS!r})"]


@pytest.fixture(autouse=True)
def example(monkeypatch):
    """Import the example's modules."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples" / "federation")


@pytest.fixture
def start():
    """Return a function that starts a process; all are killed at the end."""
    started = []

    def popen(command):
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        return started[-1]

    yield popen
    for process in started:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


@pytest.fixture
def federation(start, tmp_path, monkeypatch):
    """A federation whose processes sleep, and have logged that the port is taken."""
    import loopback

    def sleep(name, *_):
        federation.processes[name] = start(SLEEPS)
        (tmp_path / f"{name}.log").write_text("the port is taken")

    federation = loopback.Loopback(tmp_path)
    monkeypatch.setattr(federation, "_start", sleep)
    return federation


def test_a_superlink_is_ended_if_the_wait_for_it_is_interrupted(federation, monkeypatch):
    import loopback

    def interrupt(port):
        (superlink,) = federation.processes.values()
        started.append(superlink)
        raise KeyboardInterrupt

    started = []
    monkeypatch.setattr(loopback, "_listens", interrupt)
    with pytest.raises(KeyboardInterrupt), federation:
        pass
    assert started[0].poll() is not None


def test_a_wait_ends_with_what_it_waits_for_or_with_the_process_that_brings_it(federation):
    for name in ("superlink", "a", "b"):
        federation._start(name)
    looks = iter([False, True])
    federation.wait_for(lambda: next(looks), "nothing comes", "a")
    with pytest.raises(TimeoutError, match=r"nothing comes within 0 s(?s:.*)the port is taken"):
        federation.wait_for(lambda: False, "nothing comes", "a", limit=0)
    federation.processes["b"].kill()
    federation.processes["b"].wait()
    federation.wait_for(lambda: True, "nothing comes", "b")
    with pytest.raises(RuntimeError, match=r"nothing comes: \['b'\] ended(?s:.*)the port is taken"):
        federation.wait_for(lambda: False, "nothing comes", "a", "b")
    federation.__exit__()


def test_all_processes_are_ended_if_one_cannot_be(federation, monkeypatch):
    import loopback

    for name in ("superlink", "b", "a"):
        federation._start(name)
    broken = federation.processes["b"]
    end = loopback._end

    def end_or_fail(process):
        if process is broken:
            raise PermissionError("not yours")
        end(process)

    monkeypatch.setattr(loopback, "_end", end_or_fail)
    processes = [federation.processes[name] for name in ("superlink", "a")]
    with pytest.raises(PermissionError):
        federation.__exit__()
    assert all(process.poll() is not None for process in processes)


@pytest.mark.parametrize("tool", ["/proc", "ps"])
def test_children_are_found_and_ended(tool, start, monkeypatch):
    import loopback

    there = {"/proc": Path("/proc/self/stat").exists(), "ps": shutil.which("ps")}
    if not there[tool]:
        pytest.skip(f"there is no {tool}")
    if tool == "ps":
        monkeypatch.setattr(loopback.Path, "exists", lambda path: False)
    else:
        monkeypatch.setenv("PATH", "")
    parent = start(PARENT)
    while len(loopback._family(parent.pid)) != 2:
        assert parent.poll() is None
    assert loopback._family(parent.pid)[-1] == parent.pid
    loopback._end(parent)
    parent.communicate(timeout=300)  # both have closed the pipe


@pytest.mark.skipif(sys.platform != "linux", reason="forks after imports")
def test_a_node_that_is_a_fork_is_as_another_process(tmp_path, monkeypatch):
    """Its command, environment, output, status and end; where it looks is that of a new process."""
    pytest.importorskip("flwr")
    import loopback

    program = ModuleType("__main__")  # a program that must not be run again for a node
    program.__file__ = str(tmp_path / "program.py")
    Path(program.__file__).write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.setitem(sys.modules, "__main__", program)
    before = dict(os.environ)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = dict(os.environ, PATH=path, NODE="site a", TMPDIR=str(tmp_path))
    log = tmp_path / "node.log"
    command = ["sh", "-c", 'echo $$ $NODE; ls "$TMPDIR"; exit 3']
    node = loopback._Fork(command, environment, log)
    assert node.wait() == node.poll() == 3
    assert os.environ == before and sys.modules["__main__"] is program
    assert not (tmp_path / "imported").exists()
    first, *files = log.read_text().splitlines()
    assert first == f"{node.pid} site a"
    assert any(name.startswith("skfed-warm-") for name in files)
    assert loopback._new_path()[0] == ""
    node = loopback._Fork(["sleep", "600"], environment, log)
    with pytest.raises(subprocess.TimeoutExpired):
        node.wait(0.1)
    while b"sleep" not in Path(f"/proc/{node.pid}/cmdline").read_bytes():
        time.sleep(0.05)
    loopback._end(node)
    assert node.poll() == -signal.SIGTERM


def test_certificates_have_the_superlink_s_own_address(tmp_path):
    from certificates import Certificates

    made = Certificates(tmp_path, ["fl.example.org"])
    certificate = x509.load_pem_x509_certificate(made.server.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = {str(name.value) for name in names}
    assert hosts == {"fl.example.org", "localhost", "127.0.0.1"}

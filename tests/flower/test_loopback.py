"""The example's processes end, also after errors; its certificates have all names."""

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
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


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt])
def test_a_superlink_that_does_not_start_is_ended(error, start, tmp_path, monkeypatch):
    import loopback

    def fail(*_):
        raise error

    (tmp_path / "superlink.log").write_text("the port is taken")
    federation = loopback.Loopback(tmp_path)
    monkeypatch.setattr(federation, "_start", lambda *_: start(SLEEPS))
    monkeypatch.setattr(loopback, "wait_until", fail)
    with pytest.raises(error) as raised, federation:
        pass
    assert federation.superlink.poll() is not None
    assert raised.value.__notes__ == ["the port is taken"]


def test_all_processes_are_ended_if_one_cannot_be(start, tmp_path, monkeypatch):
    import loopback

    federation = loopback.Loopback(tmp_path)
    federation.superlink = start(SLEEPS)
    federation.nodes = {"a": start(SLEEPS), "b": start(SLEEPS)}
    broken = federation.nodes["b"]
    end = loopback._end

    def end_or_fail(process):
        if process is broken:
            raise PermissionError("not yours")
        end(process)

    monkeypatch.setattr(loopback, "_end", end_or_fail)
    processes = [federation.superlink, federation.nodes["a"]]
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
    loopback.wait_until(lambda: len(loopback._family(parent.pid)) == 2, 60, "no child")
    assert loopback._family(parent.pid)[-1] == parent.pid
    loopback._end(parent)
    parent.communicate(timeout=10)  # both have closed the pipe


def test_certificates_have_the_superlink_s_own_address(tmp_path):
    from certificates import Certificates

    made = Certificates(tmp_path, ["fl.example.org"])
    certificate = x509.load_pem_x509_certificate(made.server.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = {str(name.value) for name in names}
    assert hosts == {"fl.example.org", "localhost", "127.0.0.1"}

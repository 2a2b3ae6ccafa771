"""Runs other federated-learning packages on the workloads, each in an environment of its own.

>>> with Peer("fedjax", "W1", data_dir) as peer:  # doctest: +SKIP
...     seconds = peer.time(5)
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = ("fedjax", "fedlab", "pfl", "flower", "blazefl")
INSTALL_SECONDS = 900


class PeerUnavailable(RuntimeError):
    """A peer cannot be installed or run here; the message is the reason, in one line."""


class Peer:
    """A peer at work on a workload, in a process that waits between the rounds asked of it.

    ``data_dir`` holds X.npy (float32), y.npy and clients.npy (int64). The peer's environment is
    made first if it is missing, and two rounds fill its caches and compile what it compiles.

    Raises
    ------
    PeerUnavailable
        Here or later, if the peer cannot be installed or run.
    """

    def __init__(self, name: str, workload: str, data_dir: str | Path, timeout: float = 600):
        self.name, self.timeout = name, timeout
        make = ["bash", str(HERE / "make_env.sh"), name]
        python = _last_line(_run(make, INSTALL_SECONDS, name))
        command = [python, str(HERE / name / "run.py"), "--data", str(data_dir)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close)
        self.process = _start(
            [*command, "--workload", workload], stdin=subprocess.PIPE, stderr=self.errors
        )
        try:
            self.time(1)
        except PeerUnavailable:
            self.close()
            raise

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the peer's processes."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self._signal(signal.SIGCONT)
        _stop(self.process)
        self.process.stdout.close()
        self.errors.close()

    def time(self, rounds: int) -> list[float]:
        """Return the seconds of each round, after one that brings the data back into caches."""
        self._signal(signal.SIGCONT)
        self._send(f"{rounds + 1}\n")
        seconds = self._answer()["seconds"]
        self._signal(signal.SIGSTOP)  # Ray's processes would take 4% of a core while they wait
        return seconds[1:]

    def report(self) -> dict:
        """End the peer and return its name, version, and losses before and after all rounds."""
        self._signal(signal.SIGCONT)
        self._send("0\n")
        return self._answer()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # what it died of is told by _answer
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def _answer(self) -> dict:
        """Return the next line of JSON, among what the peer's package may print."""
        timer = threading.Timer(self.timeout, _kill, [self.process])
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            timer.cancel()
        if self.process.wait() == -signal.SIGKILL:
            raise PeerUnavailable(f"{self.name}: killed, or not done after {self.timeout:g} s")
        self.errors.seek(0)
        raise PeerUnavailable(f"{self.name}: {_last_line(self.errors.read()) or 'no answer'}")


def _run(command: list[str], timeout: float, name: str) -> str:
    """Return the output of a command."""
    process = _start(command, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{name}: not done after {timeout:g} s") from None
    finally:
        _stop(process)
    if process.returncode:
        raise PeerUnavailable(f"{name}: {_last_line(errors) or process.returncode}")
    return output


def _start(command: list[str], **pipes) -> subprocess.Popen:
    """Start a command in a new session, so that all of its processes can be ended."""
    # Without PYTHONPATH, so that a peer imports from its own environment alone.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env["PYTHON"] = sys.executable
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True, **pipes
    )


def _stop(process: subprocess.Popen) -> None:
    """Terminate a command that is still running, and kill what it leaves or after 20 seconds."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
    _kill(process)
    process.wait()


def _kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def main() -> None:
    """Print the median seconds a round of the named peers, or of all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(PEERS)}; default: all")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for name in args.peers or PEERS:
        try:
            with Peer(name, args.workload, args.data) as peer:
                median = statistics.median(peer.time(args.rounds))
                result = peer.report()
        except PeerUnavailable as reason:
            print(f"unavailable: {reason}")
        else:
            version = f"{name} {result['version']}, Python {result['python']}"
            print(f"{version}: {median:.4f} s a round, loss {result['loss']}")


if __name__ == "__main__":
    main()

"""Runs other federated-learning packages on the workloads, each in an environment of its own.

>>> run_peer("fedjax", "W1", data_dir, rounds=5)  # doctest: +SKIP
{'peer': 'fedjax', 'version': '0.0.17', 'workload': 'W1', 'seconds': [...], 'loss': [...]}
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = ("fedjax", "fedlab", "pfl", "flower")
INSTALL_SECONDS = 900


class PeerUnavailable(RuntimeError):
    """A peer cannot be installed or run here; the message is the reason, in one line."""


def run_peer(
    name: str, workload: str, data_dir: str | Path, rounds: int, timeout: float = 600
) -> dict:
    """Return the report of a peer's ``run.py``; make its environment first if it is missing.

    ``data_dir`` holds X.npy (float32), y.npy and clients.npy (int64). In the report, ``seconds``
    are those of each timed round on one core, ``loss`` the losses before and after all rounds.
    """
    make = ["bash", str(HERE / "make_env.sh"), name]
    python = _last_line(_run(make, INSTALL_SECONDS, name))
    command = [python, str(HERE / name / "run.py"), "--data", str(data_dir)]
    command += ["--workload", workload, "--rounds", str(rounds)]
    line = _last_line(_run(command, timeout, name))
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        raise PeerUnavailable(f"{name}: no result but {line!r}") from None


def _run(command: list[str], timeout: float, name: str) -> str:
    """Return the output of a command; end all of its processes."""
    # Without PYTHONPATH, so that a peer imports from its own environment alone; in a new session,
    # so that all of its processes can be killed.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env | {"PYTHON": sys.executable},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{name}: not done after {timeout:g} s") from None
    finally:
        _stop(process)
    if process.returncode:
        raise PeerUnavailable(f"{name}: {_last_line(errors) or process.returncode}")
    return output


def _stop(process: subprocess.Popen) -> None:
    """Terminate a command that is still running; kill it and its processes after 20 seconds."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


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
            result = run_peer(name, args.workload, args.data, args.rounds)
        except PeerUnavailable as reason:
            print(f"unavailable: {reason}")
        else:
            median = statistics.median(result["seconds"])
            print(f"{name} {result['version']}: {median:.4f} s a round, loss {result['loss']}")


if __name__ == "__main__":
    main()

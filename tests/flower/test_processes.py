"""A SuperLink and SuperNodes as processes on loopback: the same rounds, and what befalls them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "project"
pytestmark = [pytest.mark.federation, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def modules():
    """Import the example's modules, and the project's."""
    before = list(sys.path)
    sys.path[:0] = [str(ROOT / "examples" / "federation"), str(PROJECT)]
    yield
    sys.path[:] = before


@pytest.fixture(scope="module")
def plain(tmp_path_factory, modules):
    """Start a SuperLink and three sites."""
    from loopback import Loopback

    folder = tmp_path_factory.mktemp("plain")
    with Loopback(folder) as federation:
        for name in "abc":
            (folder / name).mkdir()
            federation.node(name, folder / name)
        yield federation


def simulate(rounds, selector="FedALIGN"):
    from tiny.task import make_estimator, make_site

    sites = {name: make_site(name) for name in "abc"}
    X, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    clients = np.repeat(list(sites), [len(y) for _, y in sites.values()])
    return make_estimator(rounds, selector).fit(X, y, clients=clients)


def load(folder, rounds, selector="FedALIGN"):
    from tiny.task import make_estimator

    return make_estimator(rounds, selector).load(folder / "model.safetensors")


def assert_same_rounds(model, simulated):
    timeless = [c for c in simulated.history_ if not c.endswith("_seconds")]
    told, expected = (m.history_[timeless] for m in (model, simulated))
    pd.testing.assert_frame_equal(told, expected, rtol=1e-6)
    states = (m.net_.module_.state_dict().values() for m in (model, simulated))
    assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(*states, strict=True))


def rows(folder):
    """Return how many rounds stand in the checkpoint."""
    logs = [*folder.glob("runs/*/history-*.jsonl")]
    return sum(len(log.read_text().splitlines()) for log in logs)


def kill_server_app(federation):
    told = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True
    )
    mine = f"flwr-serverapp --runtime-api-address 127.0.0.1:{federation.port}"
    (found,) = [int(line.split()[0]) for line in told.stdout.splitlines() if mine in line]
    os.kill(found, signal.SIGKILL)


def test_nodes_and_servers_that_die_and_come_back(plain, tmp_path):
    from loopback import wait_until

    def wait_for_rounds(n):
        wait_until(lambda: rows(tmp_path) >= n, 240, f"fewer than {n} rounds")

    b, c = plain.folder / "b", plain.folder / "c"
    settings = {"rounds": 4, "selector": "everybody", "folder": str(tmp_path), "timeout": 30.0}
    first = plain.submit(PROJECT, **settings)
    wait_for_rounds(1)
    kill_server_app(plain)
    with pytest.raises(RuntimeError, match="the run ended as finished:failed"):
        plain.wait(first, timeout=120)  # until then nodes are busy with it
    before = rows(tmp_path)
    (b / "garbage").touch()
    (c / "stall").touch()
    run = plain.submit(PROJECT, **settings)
    wait_until((c / "stalled").exists, 120, "the second run does not train")
    plain.kill("c")
    wait_for_rounds(before + 1)
    (b / "garbage").unlink()
    (c / "stall").unlink()
    plain.node("c", c)
    plain.wait(run, timeout=240)
    model = load(tmp_path, 4, "everybody")
    failed = model.history_["failed"].tolist()
    assert model.history_["round"].tolist() == list(range(4))
    assert failed[:before] == [()] * before
    assert set(failed[before]) == {"b", "c"}
    assert failed[-1] == ()
    causes = model.history_["causes"][before]
    assert any("its answer has no ArrayRecord 'model-0'" in cause for cause in causes)
    assert any("no answer" in cause for cause in causes)
    alone = simulate(before, "everybody")  # of the rounds in which nobody failed
    assert model.history_["cohort"][:before].tolist() == alone.history_["cohort"].tolist()


def test_strangers_are_refused(tmp_path, modules):
    """With TLS and keys: a node without a key, without the certificate, or by another's name."""
    from certificates import Certificates
    from loopback import Loopback, wait_until

    certificates = Certificates(tmp_path / "certificates")
    others = Certificates(tmp_path / "others")
    (tmp_path / "data").mkdir()
    with Loopback(tmp_path, certificates) as federation:
        keys = {name: certificates.make_key(name) for name in ("a", "b", "no")}
        for name in "ab":
            federation.flwr("supernode", "register", str(keys[name][1]), "loop", "--name", name)
        federation.node("a", tmp_path / "data", keys["a"][0])
        federation.node("c", tmp_path / "data", keys["b"][0])  # by another name than b's
        federation.node("unregistered", tmp_path / "data", keys["no"][0])
        federation.node("without a key", tmp_path / "data")
        federation.certificates = others
        federation.node("another CA", tmp_path / "data", keys["b"][0])
        federation.certificates = certificates
        federation.node("plain", tmp_path / "data", insecure=True)
        run = federation.submit(PROJECT, rounds=1, clients="a", folder=str(tmp_path), timeout=60.0)
        log = federation.wait(run, timeout=120)
        model = load(tmp_path, 1)
        assert model.clients_.tolist() == ["a"]
        assert "it says that it is 'c', but is registered as 'b'" in log
        refusals = {
            "unregistered": "Failed to activate SuperNode",
            "without a key": "All SuperNodes must be registered",
            "another CA": "CERTIFICATE_VERIFY_FAILED",
            "plain": "Connection attempt failed",
        }
        for name, refusal in refusals.items():
            wait_until(lambda n=name, r=refusal: r in federation.log(n), 60, federation.log(name))
            assert "SuperNode ID" not in federation.log(name), name


def test_the_rounds_are_those_of_the_simulation(plain, tmp_path):
    run = plain.submit(PROJECT, rounds=2, folder=str(tmp_path))
    plain.wait(run, timeout=240)
    model = load(tmp_path, 2)
    assert_same_rounds(model, simulate(2))
    exchanges = [
        json.loads(line)
        for name in "abc"
        for line in (plain.folder / name / "exchanges.jsonl").read_text().splitlines()
    ]
    asked, answered = (
        [kind for one in side for kind in one] for side in zip(*exchanges, strict=True)
    )
    history = model.history_
    assert asked.count("model") == history["models_down"].sum()
    assert answered.count("model-0") == history["models_up"].sum()
    assert answered.count("answer") == history["scalars_up"].sum()
    assert asked.count("question") == history["n_polled"].sum()
    assert answered.count("answer") < asked.count("question")  # somebody kept silent


@pytest.mark.skipif(not os.environ.get("SKFED_DATA"), reason="SKFED_DATA is unset: no WISDM")
def test_the_example_prints_the_table_of_the_simulation():
    command = [sys.executable, ROOT / "examples" / "federation" / "run.py", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    assert "[ROUND 2/2]" in done.stdout
    _, over_processes, in_one = done.stdout.rsplit("\n\n", 2)
    assert over_processes.splitlines()[0].endswith("processes")
    assert over_processes.splitlines()[1:] == in_one.splitlines()[1:]
    assert len(in_one.splitlines()) == 4

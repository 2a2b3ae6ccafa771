"""A SuperLink and SuperNodes as processes on loopback: the same rounds, also after failures."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch

import skfed
from skfed.checkpoint._fitted import state_of
from skfed.devices import TraceDevices
from skfed.metrics import client_exchanges
from skfed.utils import _files

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "tests" / "helpers" / "flower_project"
LONGEST_WAIT = 1200.0  # seconds, far more than slow machines take: it only ends what hangs
pytestmark = [pytest.mark.federation, pytest.mark.slow]


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """Import the example's modules, and the project's."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "federation")
    monkeypatch.syspath_prepend(PROJECT)


def add_sites(federation, folder, names, keys=None):
    """Start the nodes of some sites; return their folders."""
    sites = [folder / name for name in names]
    for site in sites:
        site.mkdir()
        federation.node(site.name, site, keys[site.name][0] if keys else None)
    return sites


def add_strangers(federation, folder, keys):
    """Start nodes that are to be refused; one has the name c and the key of e."""
    from certificates import Certificates

    folder.mkdir()
    federation.node("c", folder, keys["e"][0])
    federation.node("unregistered", folder, keys["no"][0])
    federation.node("without a key", folder)
    federation.node("plain", folder, insecure=True)
    own, federation.certificates = federation.certificates, Certificates(folder / "others")
    federation.node("another CA", folder, keys["b"][0])
    federation.certificates = own


def assert_refused(federation):
    from loopback import wait_until

    connected = "SuperNode ID"
    assert connected in federation.log("a")
    refusals = {
        "unregistered": "Failed to activate SuperNode",
        "without a key": "All SuperNodes must be registered",
        "another CA": "CERTIFICATE_VERIFY_FAILED",
        "plain": "Connection attempt failed",
    }
    for name, refusal in refusals.items():
        wait_until(
            lambda n=name, r=refusal: r in federation.log(n), LONGEST_WAIT, f"{name} is not refused"
        )
        assert connected not in federation.log(name), name


def simulate(rounds, selector="FedALIGN", **params):
    from tiny.task import make_estimator, make_site

    sites = {name: make_site(name) for name in "abc"}
    X, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    clients = np.repeat(list(sites), [len(y) for _, y in sites.values()])
    return make_estimator(rounds, selector).set_params(**params).fit(X, y, clients=clients)


def load(folder, rounds, selector="FedALIGN"):
    from tiny.task import make_estimator

    return make_estimator(rounds, selector).load(folder / "model.safetensors")


def assert_same_rounds(model, simulated, measured=()):
    times = {"seconds", "elapsed", "slowest"} - set(measured)
    timeless = [c for c in simulated.history_ if not c.endswith("_seconds") and c not in times]
    found, expected = (m.history_[timeless] for m in (model, simulated))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-6)
    states = (m.net_.module_.state_dict().values() for m in (model, simulated))
    assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(*states, strict=True))


def assert_counted(history, seen):
    """Check the ledger against the messages that the sites have logged."""
    received, sent = ([name for one in seen for name in one[side]] for side in ("received", "sent"))
    n_polls = sum(one["kind"] == "query.skfed_poll" for one in seen)
    assert received.count("state") == history["models_down"].sum()
    assert sent.count("state-0") == history["models_up"].sum()
    assert sent.count("metrics") == history["scalars_up"].sum()
    assert n_polls == history["n_polled"].sum()
    assert sent.count("metrics") < n_polls  # some client was silent


def exchanges(site):
    """Return the messages that a site has logged."""
    return [json.loads(line) for line in (site / "exchanges.jsonl").read_text().splitlines()]


def rows(folder):
    """Return how many rounds are in the checkpoint."""
    logs = [*folder.glob("runs/*/history-*.jsonl")]
    return sum(len(log.read_text().splitlines()) for log in logs)


def kill_server_app(federation):
    processes = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True
    )
    mine = f"flwr-serverapp --runtime-api-address 127.0.0.1:{federation.port}"
    (found,) = [int(line.split()[0]) for line in processes.stdout.splitlines() if mine in line]
    os.kill(found, signal.SIGKILL)


def test_nodes_and_servers_that_die_and_come_back(tmp_path):
    """A killed server continues; a node sends an invalid reply, is killed, and comes back."""
    from loopback import Loopback, wait_until

    settings = {"rounds": 4, "selector": "everybody", "clients": "a b", "folder": str(tmp_path)}
    with Loopback(tmp_path) as federation:
        a, b = add_sites(federation, tmp_path, "ab")
        (b / "stall-1").touch()
        began = time.monotonic()
        first = federation.submit(PROJECT, **settings, timeout=240.0)
        wait_until((b / "stalled").exists, LONGEST_WAIT, "round 1 does not begin")
        n_seconds = time.monotonic() - began  # of two exchanges and the beginning of a third
        kill_server_app(federation)
        federation.flwr("stop", first, "loop")  # Flower would notice by itself after a minute
        (b / "stalled").unlink()
        (b / "stall-1").unlink()
        with pytest.raises(RuntimeError, match="the run ended as finished:stopped"):
            federation.wait(first, LONGEST_WAIT)
        assert rows(tmp_path) == 1
        (b / "garbage-1").touch()
        (b / "stall-2").touch()
        timeout = max(60.0, n_seconds)  # all of which round 2 takes; "a" has to answer within it
        second = federation.submit(PROJECT, **settings, timeout=timeout)
        wait_until((b / "stalled").exists, LONGEST_WAIT, "round 2 does not begin")
        federation.kill("b")
        federation.node("b", b)  # it is back before the round ends by its timeout
        federation.wait(second, LONGEST_WAIT)
        history = load(tmp_path, 4, "everybody").history_
    assert history["round"].tolist() == [0, 1, 2, 3]
    assert history["failed"].tolist() == [(), ("b",), ("b",), ()]
    assert "its reply has no ArrayRecord 'state-0'" in history["causes"][1][0]
    assert "no answer" in history["causes"][2][0]
    trained = [seen["round"] for seen in exchanges(a) if "state-0" in seen["sent"]]
    assert [trained.count(t) for t in (0, 2, 3)] == [1, 1, 1]  # the second server continues
    assert exchanges(b)[-1]["round"] == 3


def test_two_slow_sites_are_measured_simulated_and_late(tmp_path):
    """First both are waited for; then one sleeps far beyond the deadline."""
    from loopback import Loopback

    runs = [tmp_path / "waits", tmp_path / "ends"]
    settings = {"rounds": 2, "selector": "everybody", "clients": "a b c", "timeout": 600.0}

    def run_rounds(folder, **deadline):
        folder.mkdir()
        run = federation.submit(PROJECT, folder=str(folder), **settings, **deadline)
        federation.wait(run, LONGEST_WAIT)
        return load(folder, 2, "everybody")

    with Loopback(tmp_path) as federation:
        _, b, c = add_sites(federation, tmp_path, "abc")
        (b / "slow").write_text("8")
        (c / "slow").write_text("16")
        (c / "after").write_text("b")  # so that b is seen first, however long each one imports
        waited = run_rounds(runs[0])
        times = client_exchanges(waited)
        # A site imports torch for each message, which takes long beside other tests.
        deadline = 1.5 * times["seconds"].max()
        (b / "slow").unlink()
        (c / "after").unlink()
        (c / "slow").write_text(str(2 * deadline))
        ended = run_rounds(runs[1], deadline=deadline)
    seconds = times.pivot(index="round", columns="client", values="seconds")
    assert (seconds.min() > [0, 8, 24]).all()
    assert (seconds["c"] >= seconds["b"]).all()  # equal where both are seen at one look
    assert ((times["computing"] > 0) & (times["computing"] < times["seconds"])).all()
    last = times[times["seconds"] == times["duration"]]  # replies seen at one look are equal
    slowest = last.groupby("round")["client"].agg(tuple)
    assert waited.history_["slowest"].tolist() == slowest.tolist()
    again = simulate(2, "everybody", devices=TraceDevices(times))
    assert_same_rounds(waited, again, measured=["seconds", "elapsed", "slowest"])
    history = ended.history_
    assert history["failed"].tolist() == [("c",)] * 2
    assert history["causes"].tolist() == [("late",)] * 2
    assert history["seconds"].tolist() == [deadline] * 2
    assert history["cohort"].tolist() == [("a", "b")] * 2


@pytest.mark.skipif(not os.environ.get("SKFED_DATA"), reason="SKFED_DATA is unset: no WISDM")
def test_the_example_prints_the_table_of_the_simulation():
    command = [sys.executable, ROOT / "examples" / "federation" / "run.py", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_WAIT, check=True)
    assert "[ROUND 1/1]" in done.stdout
    _, over_processes, in_one = done.stdout.rsplit("\n\n", 2)
    assert over_processes.splitlines()[0].endswith("processes")
    assert over_processes.splitlines()[1:] == in_one.splitlines()[1:]
    assert len(in_one.splitlines()) == 4
    assert in_one.splitlines()[-1].startswith("accuracy on all rows: 0.")


def test_the_tutorials_output_is_that_of_its_command():
    tutorials = ROOT / "doc" / "tutorials"
    sites = runpy.run_path(str(tutorials / "plot_notebook_to_sites.py"))["folder"]
    run = ROOT / "examples" / "federation" / "run.py"
    command = [sys.executable, run, "--sites", sites, "--rounds", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_WAIT, check=True)
    assert done.stdout.endswith((tutorials / "sites_output.txt").read_text(encoding="utf-8"))


def simulate_pipeline(rounds, names="abc", **params):
    """Fit the sites' Pipeline in this process."""
    from tiny.task import make_estimator, make_table

    sites = {name: make_table(name) for name in names}
    X, y = pd.concat([X for X, _ in sites.values()]), [y for _, y in sites.values()]
    clients = np.repeat(list(sites), [len(one) for one in y])
    pipeline = make_estimator(rounds, "everybody", with_steps=True).set_params(**params)
    with sklearn.config_context(enable_metadata_routing=True):
        return pipeline.fit(X, np.concatenate(y), clients=clients)


def load_pipeline(folder, rounds):
    from tiny.task import make_estimator

    like = make_estimator(rounds, "everybody", with_steps=True)
    return skfed.load(like, folder / "model.safetensors")


def assert_same_steps(found, expected):
    """Check that all fitted attributes are equal bit for bit."""
    texts = []
    for steps in (found[:-1], expected[:-1]):
        tensors = {}
        text = repr(_files.to_json(state_of(steps), tensors))
        texts.append((text, [tensor.numpy().tobytes() for tensor in tensors.values()]))
    assert texts[0] == texts[1]


def test_a_site_killed_while_a_pipeline_is_fitted_costs_its_statistics(tmp_path):
    """The rest is that of the simulation: transformers bit for bit, the net to rounding."""
    from loopback import Loopback, wait_until

    settings = {"rounds": 1, "selector": "everybody", "folder": str(tmp_path), "steps": True}
    with Loopback(tmp_path) as federation:
        a, b, _ = add_sites(federation, tmp_path, "abc")
        for site in (a, b):
            (site / "stall-steps").touch()
        run = federation.submit(PROJECT, **settings, timeout=200.0)
        for site in (a, b):
            wait_until((site / "stalled").exists, LONGEST_WAIT, "the imputer is not fitted")
        federation.kill("b")
        (b / "stall-steps").unlink()
        n_connections = federation.log("b").count("SuperNode ID")
        federation.node("b", b)
        back = lambda: federation.log("b").count("SuperNode ID") > n_connections  # noqa: E731
        wait_until(back, 150, "b does not come back")
        (a / "stall-steps").unlink()  # so the exchange does not end before b is back
        log = federation.wait(run, LONGEST_WAIT)
    assert "client 'b' sends no statistics of FederatedSimpleImputer: no answer" in log
    model = load_pipeline(tmp_path, 1)
    imputer = model["columns"].named_transformers_["numbers"]["impute"]
    assert imputer.exchange_["result"].tolist() == ["exact", "failed", "exact"]
    expected = simulate_pipeline(1, columns__numbers__impute__priority=["a", "c"])
    others = expected["columns"].named_transformers_["numbers"]["impute"]
    others.exchange_ = imputer.exchange_  # that of the simulation has no row of b
    assert_same_steps(model, expected)
    assert_same_rounds(model[-1], expected[-1])
    assert model[-1].history_["n_failed"].tolist() == [0]


def test_the_secured_rounds_are_those_of_the_simulation(tmp_path):
    """With TLS and keys; nodes without a key or certificate, or with a wrong name, are refused."""
    from certificates import Certificates
    from loopback import Loopback, wait_until

    certificates, strangers = Certificates(tmp_path / "certificates"), tmp_path / "strangers"
    keys = {name: certificates.make_key(name) for name in ("a", "b", "c", "e", "no")}
    with Loopback(tmp_path, certificates) as federation:
        for name in "abce":
            federation.flwr("supernode", "register", str(keys[name][1]), "loop", "--name", name)
        sites = add_sites(federation, tmp_path, "ab", keys)
        add_strangers(federation, strangers, keys)
        run = federation.submit(PROJECT, rounds=2, folder=str(tmp_path), timeout=240.0)
        # Not once the server has said so: its log may reach this process minutes later. It pulls
        # replies every few seconds.
        wait_until(
            lambda: "Sent successfully" in federation.log("c"), LONGEST_WAIT, "c does not answer"
        )
        time.sleep(15)
        federation.stop("c")
        sites += add_sites(federation, tmp_path, "c", keys)
        log = federation.wait(run, LONGEST_WAIT)
        assert_refused(federation)
    assert "it reports the name 'c', but is registered as 'e'" in log
    assert {seen["kind"] for seen in exchanges(strangers)} == {"query.skfed_hello"}
    model = load(tmp_path, 2)
    assert_same_rounds(model, simulate(2))
    assert_counted(model.history_, [seen for site in sites for seen in exchanges(site)])

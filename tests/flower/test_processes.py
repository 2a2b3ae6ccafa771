"""A SuperLink and SuperNodes as processes on loopback: the same rounds, also after failures."""

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch

import skfed
from skfed.availability import LateJoin, TraceAvailability
from skfed.checkpoint._fitted import state_of
from skfed.devices import TraceDevices
from skfed.evaluation import FederatedEvaluation
from skfed.metrics import client_evaluations, client_exchanges
from skfed.utils import _files

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "tests" / "helpers" / "flower_project"
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
    federation.node("false c", folder, keys["e"][0], client="c")
    federation.node("unregistered", folder, keys["no"][0])
    federation.node("without a key", folder)
    federation.node("plain", folder, insecure=True)
    own, federation.certificates = federation.certificates, Certificates(folder / "others")
    federation.node("another CA", folder, keys["b"][0])
    federation.certificates = own


def assert_refused(federation):
    connected = "SuperNode ID"
    assert connected in federation.log("a")
    refusals = {
        "unregistered": "Failed to activate SuperNode",
        "without a key": "All SuperNodes must be registered",
        "another CA": "CERTIFICATE_VERIFY_FAILED",
        "plain": "Connection attempt failed",
    }
    for name, refusal in refusals.items():
        refused = lambda n=name, r=refusal: r in federation.log(n)  # noqa: E731
        federation.wait_for(refused, f"{name} is not refused")
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


TIMES = ("seconds", "elapsed", "slowest")


def assert_same_rounds(model, simulated, columns=None):
    """Check the model, and columns of the history: all but those with times, by default."""
    if columns is None:
        columns = [c for c in simulated.history_ if not c.endswith(TIMES)]
    found, expected = (m.history_[columns] for m in (model, simulated))
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


def in_order(value):
    """Return JSON with attributes in order: those of steps that were read have another."""
    if isinstance(value, dict):
        value = {key: in_order(one) for key, one in value.items()}
        return {"dict": sorted(value["dict"], key=repr)} if "dict" in value else value
    return [in_order(one) for one in value] if isinstance(value, list) else value


def assert_same_steps(found, expected):
    """Check that all fitted attributes are equal bit for bit."""
    texts = []
    for steps in (found[:-1], expected[:-1]):
        tensors = {}
        text = in_order(_files.to_json(state_of(steps), tensors))
        texts.append((text, [tensor.numpy().tobytes() for tensor in tensors.values()]))
    assert texts[0] == texts[1]


def run_until_the_server_is_killed(federation, a, b, settings):
    """Return the log; b is killed while the first step is fitted, and the server in round 1."""
    for site in (a, b):
        (site / "stall-steps").touch()
    run = federation.submit(PROJECT, **settings)
    for site in (a, b):
        federation.wait_for((site / "stalled").exists, "no step is fitted", "a", "b", run)
    federation.kill("b")
    (b / "stall-steps").unlink()
    (b / "stalled").unlink()
    (b / "stall-1").touch()
    restart(federation, b, run)
    (a / "stall-steps").unlink()  # so the exchange does not end before b is back
    federation.wait_for((b / "stalled").exists, "round 1 does not begin", "a", "b", run)
    kill_server_app(federation)
    federation.flwr("stop", run, "loop")  # Flower would notice by itself after a minute
    (b / "stalled").unlink()
    (b / "stall-1").unlink()
    with pytest.raises(RuntimeError, match="the run ended as finished:stopped"):
        federation.wait(run, nodes="ab")
    return federation.log(run)


def run_to_the_end(federation, a, b, settings):
    """b sends an invalid reply in round 1, and is stopped in round 2, which waits for a."""
    (b / "garbage-1").touch()
    for site in (a, b):
        (site / "stall-2").touch()
    run = federation.submit(PROJECT, **settings)
    federation.wait_for((b / "stalled").exists, "round 2 does not begin", "a", "b", run)
    federation.stop("b")
    (b / "stall-2").unlink()
    restart(federation, b, run)
    (a / "stall-2").unlink()  # so round 3 does not begin before b is back
    federation.wait(run, nodes="ab")


def restart(federation, b, run):
    """Start b again, and wait until it is connected."""
    n_connections = federation.log("b").count("SuperNode ID")
    federation.node("b", b)
    back = lambda: federation.log("b").count("SuperNode ID") > n_connections  # noqa: E731
    federation.wait_for(back, "b does not come back", "a", "b", run)


def test_nodes_and_servers_that_die_and_come_back(tmp_path):
    """The rest is that of the simulation: transformers bit for bit, the net to rounding."""
    from loopback import Loopback

    settings = {"rounds": 4, "selector": "everybody", "clients": "a b", "folder": str(tmp_path)}
    with Loopback(tmp_path) as federation:
        a, b = add_sites(federation, tmp_path, "ab")
        log = run_until_the_server_is_killed(federation, a, b, settings | {"steps": True})
        assert rows(tmp_path) == 1
        run_to_the_end(federation, a, b, settings | {"steps": True})
    assert "client 'b' sends no statistics of FederatedSimpleImputer: no answer" in log
    model = load_pipeline(tmp_path, 4)
    imputer = model["columns"].named_transformers_["numbers"]["impute"]
    assert imputer.exchange_["result"].tolist() == ["exact", "failed"]
    history = model[-1].history_
    assert history["round"].tolist() == [0, 1, 2, 3]
    assert history["failed"].tolist() == [(), ("b",), ("b",), ()]
    assert "its reply has no MetricRecord 'report-0'" in history["causes"][1][0]
    assert "no answer" in history["causes"][2][0]
    trained = [seen["round"] for seen in exchanges(a) if "state-0" in seen["sent"]]
    assert [trained.count(t) for t in (0, 2, 3)] == [1, 1, 1]  # the second server continues
    assert exchanges(b)[-1]["round"] == 3
    away = TraceAvailability([[True, t in (0, 3)] for t in range(4)])
    expected = simulate_pipeline(
        4, "ab", columns__numbers__impute__priority=["a"], model__availability=away
    )
    others = expected["columns"].named_transformers_["numbers"]["impute"]
    others.exchange_ = imputer.exchange_  # that of the simulation has no row of b
    assert_same_steps(model, expected)
    assert_same_rounds(model[-1], expected[-1], ["cohort", "n_aggregated", "train_loss"])


def run_that_c_joins(federation, folder, a, b):
    """Run four rounds; c comes in the first."""
    for t in (0, 1):
        (a / f"stall-{t}").touch()
    settings = {"rounds": 4, "selector": "everybody", "steps": True, "join": True}
    run = federation.submit(PROJECT, **settings, folder=str(folder))
    federation.wait_for((a / "stalled").exists, "round 0 does not begin", "a", "b", run)
    (c,) = add_sites(federation, folder, "c")
    connected = lambda: "SuperNode ID" in federation.log("c")  # noqa: E731
    federation.wait_for(connected, "c does not connect", "a", "b", "c", run)
    (a / "stall-0").unlink()
    asked = (c / "exchanges.jsonl").exists
    federation.wait_for(asked, "c is not asked", "a", "b", "c", run)
    (a / "stall-1").unlink()
    federation.wait(run, nodes="abc")


def test_a_site_joins_a_run_and_all_evaluate_the_model(tmp_path):
    from loopback import Loopback

    with Loopback(tmp_path) as federation:
        run_that_c_joins(federation, tmp_path, *add_sites(federation, tmp_path, "ab"))
    model = load_pipeline(tmp_path, 4)
    history = model[-1].history_
    first = history["not_joined"].tolist().index(())
    assert first in (2, 3) and history["cohort"].tolist()[first] == ("a", "b", "c")
    expected = simulate_joining(4, {"c": first})
    assert_same_steps(model, expected)
    assert_same_rounds(model[-1], expected[-1], ["cohort", "not_joined", "train_loss"])
    found, same = client_evaluations(model), client_evaluations(expected)
    pd.testing.assert_frame_equal(found, same, rtol=1e-6)
    assert found["client"].tolist()[-3:] == ["a", "b", "c"]


def simulate_joining(rounds, joins):
    """Fit the sites' Pipeline in this process; they keep rows aside."""
    from tiny.task import make_estimator, make_table

    sites = {name: make_table(name) for name in "abc"}
    parts = {
        kind: (
            pd.concat([X[rows] for X, _ in sites.values()]),
            np.concatenate([y[rows] for _, y in sites.values()]),
            np.repeat(list(sites), 20 if kind == "train" else 10),
        )
        for kind, rows in {"train": slice(20), "val": slice(20, None)}.items()
    }
    pipeline = make_estimator(rounds, "everybody", with_steps=True).set_params(
        model__availability=LateJoin(joins),
        model__evaluation=FederatedEvaluation(),
        columns__numbers__impute__priority=["a", "b"],
        columns__numbers__scale__priority=["a", "b"],
        columns__text__priority=["a", "b"],
    )
    (X, y, clients), (X_val, y_val, clients_val) = parts.values()
    held_out = {"X_val": X_val, "y_val": y_val, "clients_val": clients_val}
    with sklearn.config_context(enable_metadata_routing=True):
        return pipeline.fit(X, y, clients=clients, **held_out)


def test_the_tutorials_output_is_that_of_its_command_in_two_rounds():
    tutorials = ROOT / "doc" / "tutorials"
    sites = runpy.run_path(str(tutorials / "plot_notebook_to_sites.py"))["folder"]
    run = ROOT / "examples" / "federation" / "run.py"
    command = [sys.executable, run, "--sites", sites, "--rounds", "2"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert "[ROUND 1/2]" in done.stdout
    # Without the page's last round, which costs as much as the two before it.
    page = (tutorials / "sites_output.txt").read_text(encoding="utf-8").split("\n\n")
    printed = done.stdout.rsplit("\n\n", 2)[1:]
    for found, expected in zip(printed, page, strict=True):
        assert found.splitlines()[:-1] == expected.splitlines()[:-2]
    over_processes, in_one = (found.splitlines()[-1] for found in printed)
    assert over_processes == in_one and in_one.startswith("accuracy on all rows: 0.")


def run_secured(federation, folder, keys):
    """Run two rounds; return the sites' folders, and the log. Strangers are refused."""
    sites = add_sites(federation, folder, "ab", keys)
    add_strangers(federation, folder / "strangers", keys)
    run = federation.submit(PROJECT, rounds=2, folder=str(folder))
    has_answered = lambda: "Sent successfully" in federation.log("false c")  # noqa: E731
    federation.wait_for(has_answered, "the false c does not answer", "a", "b", "false c", run)
    sites += add_sites(federation, folder, "c", keys)
    log = federation.wait(run, nodes="abc")
    assert_refused(federation)
    return sites, log


def run_with_a_late_site(federation, folder, a, b, c):
    """Run rounds that end when a, and then b, have answered."""
    folder.mkdir()
    (a / "exchanges.jsonl").unlink()
    (b / "after").write_text("a")  # so that a is seen first, however long each one imports
    (b / "slow").write_text("2")
    (c / "stall-0").touch()
    settings = {"rounds": 2, "selector": "everybody", "report_goal": 2, "folder": str(folder)}
    federation.wait(federation.submit(PROJECT, **settings), nodes="abc")


def test_secured_rounds_and_measured_seconds_are_those_of_the_simulation(tmp_path):
    """With TLS and keys; nodes without a key or certificate, or with a wrong name, are refused."""
    from certificates import Certificates
    from loopback import Loopback

    certificates = Certificates(tmp_path / "certificates")
    keys = {name: certificates.make_key(name) for name in ("a", "b", "c", "e", "no")}
    with Loopback(tmp_path, certificates) as federation:
        for name in "abce":
            federation.flwr("supernode", "register", str(keys[name][1]), "loop", "--name", name)
        sites, log = run_secured(federation, tmp_path, keys)
        seen = [one for site in sites for one in exchanges(site)]
        run_with_a_late_site(federation, tmp_path / "late", *sites)
    assert "it reports the name 'c', but is registered as 'e'" in log
    strangers = exchanges(tmp_path / "strangers")
    assert {one["kind"] for one in strangers} == {"query.skfed_hello"}
    model = load(tmp_path, 2)
    assert_same_rounds(model, simulate(2))
    assert_counted(model.history_, seen)
    assert_measured(load(tmp_path / "late", 2, "everybody"))


def assert_measured(model):
    """Check the seconds of a and b, and that a simulation with these has the same rounds."""
    times, history = client_exchanges(model), model.history_
    late = times["outcome"] == "late"
    assert times.loc[late, "client"].tolist() == ["c", "c"]
    answered = times[~late]
    seconds = answered.pivot(index="round", columns="client", values="seconds")
    assert (seconds["a"] > 0).all() and (seconds["b"] > 2).all()
    assert (seconds["b"] >= seconds["a"]).all()  # equal where both are seen at one look
    assert (answered["computing"] > 0).all()
    assert (answered["computing"] < answered["seconds"]).all()
    last = times[(times["seconds"] == times["duration"]) | late]
    assert history["slowest"].tolist() == last.groupby("round")["client"].agg(tuple).tolist()
    assert history["failed"].tolist() == [("c",)] * 2
    assert history["causes"].tolist() == [("late",)] * 2
    assert history["cohort"].tolist() == [("a", "b")] * 2
    slow = answered[answered["client"] == "b"].assign(client="c")
    slow["seconds"] += 1000.0
    again = simulate(
        2, "everybody", report_goal=2, devices=TraceDevices(pd.concat([answered, slow]))
    )
    # In a simulation it is known how long a late client would have taken: c alone is slowest.
    same = [c for c in history if not c.endswith("_seconds") and c != "slowest"]
    assert_same_rounds(model, again, same)

"""The files that operators start from: they are valid, and their commands make a federation."""

import http.client
import json
import os
import runpy
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "federation"
DEPLOY = EXAMPLE / "deploy"
PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])


@pytest.fixture
def services():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]


def needs(command):
    """Return the path of a program; skip where it is not installed."""
    found = shutil.which(command, path=PROGRAMS)
    if found is None:
        pytest.skip(f"{command} is not installed")
    return found


@pytest.mark.parametrize(
    "command",
    [
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"],
        ["hadolint", "Dockerfile"],
    ],
    ids=lambda command: command[0],
)
def test_files_are_valid(command):
    done = subprocess.run(
        [needs(command[0]), *command[1:]], cwd=DEPLOY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_units_are_valid(tmp_path):
    command = needs("systemd-analyze")
    for unit in DEPLOY.glob("*.service"):
        text = unit.read_text(encoding="utf-8").replace(
            "/opt/federation/bin", str(Path(sys.executable).parent)
        )
        (tmp_path / unit.name).write_text(text)
    units = sorted(tmp_path.iterdir())
    assert [unit.stem for unit in units] == ["superlink", "supernode"]
    done = subprocess.run([command, "verify", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_sites_share_a_network_with_the_proxy_alone(services):
    networks = {name: set(service["networks"]) for name, service in services.items()}
    sites = [name for name in services if name.startswith("site-")]
    assert len(sites) == 3
    for site in sites:
        reached = {name for name in services if networks[name] & networks[site]}
        assert reached - set(sites) == {"proxy"}
        assert "ports" not in services[site]
    (published,) = services["superlink"]["ports"]
    assert published.startswith("127.0.0.1:")


def test_each_service_gets_the_files_that_its_command_names_and_no_others(
    services, tmp_path, monkeypatch
):
    """A command makes them all."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    used = set()
    for name, service in services.items():
        text = " ".join(service.get("command", [])) or (DEPLOY / "nginx.conf").read_text()
        named = {part.split()[0].rstrip(";") for part in text.split("/run/secrets/")[1:]}
        assert named == set(service["secrets"]), name
        used |= named
    assert used == compose["secrets"].keys()
    monkeypatch.setattr(sys, "path", [*sys.path])
    runpy.run_path(str(DEPLOY / "make_keys.py"))["make_keys"](tmp_path)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert used < modes.keys()
    public = {name for name, mode in modes.items() if mode & 0o044}
    assert public == {name for name in modes if name.endswith((".pem", ".pub"))}


@pytest.mark.federation
def test_the_command_line_accepts_all_options(services):
    """The units and the compose file name options that Flower's programs have."""
    known = {}
    texts = [" ".join(one.get("command", ())) for one in services.values()]
    texts += [unit.read_text(encoding="utf-8") for unit in DEPLOY.glob("*.service")]
    for text in texts:
        for program in ("flower-superlink", "flower-supernode", "flower-superexec"):
            _, found, options = text.rpartition(f"{program} ")
            if found:
                known.setdefault(program, set()).update(
                    part.split("=")[0] for part in options.split() if part.startswith("--")
                )
    assert len(known) == 3
    for program, options in known.items():
        done = subprocess.run(
            [Path(sys.executable).parent / program, "--help"], capture_output=True, text=True
        )
        assert options <= set(done.stdout.replace(",", " ").replace("]", " ").split()), program


def temporary_folders(folder):
    """Return directives by which nginx runs without root."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)


class Hosts:
    """What in the files is different on one machine: addresses and folders."""

    def __init__(self, folder, certificates, ports):
        self.folder, self.certificates = folder, certificates
        self.changes = {
            "--host=0.0.0.0": "--host=127.0.0.1",
            "--port=8000": f"--port={ports['superlink']}",
            "superlink:8000": f"127.0.0.1:{ports['superlink']}",
            "proxy:8443": f"127.0.0.1:{ports['proxy']}",
            "listen 8443": f"listen 127.0.0.1:{ports['proxy']}",
            "/run/secrets/": f"{certificates.folder}/",
            "/state/": f"{folder}/",
            "/dev/stdout": f"{folder}/access.log",
            "http {": f"http {{ {temporary_folders(folder)}",
        }

    def of(self, text, **more):
        for old, new in (self.changes | more).items():
            text = text.replace(old, new)
        return text


def write_site(folder, site):
    """Write the rows of a site."""
    rng = np.random.default_rng(site)
    k = rng.integers(6, size=60)
    table = pd.DataFrame(rng.normal(size=(60, 3)) + k[:, None], columns=["x", "y", "z"])
    activities = ["Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking"]
    folder.mkdir()
    table.assign(activity=np.array(activities)[k]).to_csv(folder / "user.csv", index=False)


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    from loopback import _free_port

    needs("nginx")
    certificates = runpy.run_path(str(DEPLOY / "make_keys.py"))["make_keys"](tmp_path / "keys")
    return Hosts(tmp_path, certificates, {name: _free_port() for name in ("superlink", "proxy")})


def start(federation, name, hosts, services, **more):
    program, *options = (hosts.of(part, **more) for part in services[name]["command"])
    if "flower-supernode" in options:
        from loopback import _free_port

        options.append(f"--port={_free_port()}")
    federation._start(name, program, *options)


def start_proxy(federation, hosts):
    """Start nginx in the foreground, with the example's configuration."""
    conf = hosts.folder / "nginx.conf"
    conf.write_text(hosts.of((DEPLOY / "nginx.conf").read_text(encoding="utf-8")))
    settings = f"daemon off; pid {hosts.folder}/nginx.pid; error_log stderr;"
    federation._start("proxy", needs("nginx"), "-e", "stderr", "-c", str(conf), "-g", settings)


def status_of(port, certificates, path, method="POST"):
    """Return the status of a request without content."""
    context = ssl.create_default_context(cafile=certificates.ca)
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    connection.putrequest(method, path)
    connection.putheader("Content-Length", "0")
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


CONTROL, FLEET = "/v1/control/list-runs", "/v1/fleet/pull-messages"
REFUSED = [
    CONTROL,
    "/v1/fleet/..%2fcontrol/list-runs",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "//v1/control/list-runs",
    "/v1/control/../fleet/../control/list-runs",
    "/v1/runtime/acquire-task",
    "/docs",
    "/health",
]


@pytest.mark.federation
@pytest.mark.slow
def test_the_commands_make_a_federation_whose_sites_reach_the_fleet_api_alone(hosts, services):
    """Those of the compose file, in processes; the operator does not use the proxy."""
    from loopback import Loopback, _listens

    federation = Loopback(hosts.folder, hosts.certificates)
    ports = {name: int(hosts.of(text).rpartition(":")[2]) for name, text in PORTS.items()}
    federation.port, federation.address = ports["superlink"], f"127.0.0.1:{ports['superlink']}"
    federation._write_config()
    start(federation, "superlink", hosts, services)
    try:
        start_proxy(federation, hosts)
        for name, port in ports.items():
            federation.wait_for(lambda p=port: _listens(p), f"{name} does not start", "proxy")
        start(federation, "serverapp", hosts, services)
        history = run_round(federation, hosts, services)
        assert history["cohort"].tolist() == [("site 1", "site 2")]
        lines = (hosts.folder / "rounds.jsonl").read_text().splitlines()
        assert {json.loads(line)["client"] for line in lines} == {"site 1", "site 2"}
        assert_guarded(federation, hosts, ports)
    finally:
        federation.__exit__()


PORTS = {"superlink": "superlink:8000", "proxy": "proxy:8443"}


def run_round(federation, hosts, services):
    """Register three sites, start them, and run a round; return the history."""
    from phones.task import make_estimator

    import skfed

    names = [f"site-{k}" for k in (1, 2, 3)]
    for k, name in enumerate(names, start=1):
        write_site(hosts.folder / f"data-{k}", k)
        public = hosts.certificates.folder / f"{name}.pub"
        federation.flwr("supernode", "register", str(public), "loop", "--name", f"site {k}")
        start(federation, name, hosts, services, **{"/data": f"{hosts.folder}/data-{k}"})
    out = hosts.folder / "model.safetensors"
    log = hosts.folder / "rounds.jsonl"
    settings = {"rounds": 1, "sites": 3, "out": str(out), "log-json": str(log)}
    federation.wait(federation.submit(EXAMPLE, **settings), nodes=[*names, "serverapp"])
    return skfed.load(make_estimator(1), out)[-1].history_


def assert_guarded(federation, hosts, ports):
    """Check that the proxy refuses what the SuperLink answers."""
    for path in (CONTROL, FLEET):  # which say that the request is no message
        assert status_of(ports["superlink"], hosts.certificates, path) == 415
    assert status_of(ports["proxy"], hosts.certificates, FLEET) == 415
    for path in REFUSED:
        assert status_of(ports["proxy"], hosts.certificates, path) == 404, path
    assert status_of(ports["proxy"], hosts.certificates, FLEET, "GET") == 403
    assert f'"POST {FLEET} HTTP/1.1" 200' in (hosts.folder / "access.log").read_text()
    federation.port, federation.address = ports["proxy"], f"127.0.0.1:{ports['proxy']}"
    federation._write_config()
    with pytest.raises(RuntimeError, match="404 Not Found"):
        federation.submit(EXAMPLE, rounds=1)

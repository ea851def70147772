"""The command lines of packaging/ work: each is run as it is written, but for the paths of a container.

Each deployment's addresses are those of a loopback of its own, which needs network namespaces.
"""

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.docs import private_network

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
CREDENTIALS = 'innerClientAuthenticationCredentials={"accessKey":"brokers","secretKey":"of a test"}\n'
#: Kubernetes' newest two minor versions of those that kubernetes-validate knows.
VERSIONS = ("1.33", "1.34")


def run_services(
    directory: Path, services: Mapping[str, Sequence[str]], addresses: Sequence[str], then: Sequence[str]
) -> str:
    """Return what a program printed while services ran that have these command lines."""
    plan = directory / "services.json"
    plan.write_text(json.dumps({"services": services, "addresses": addresses, "then": then}))
    done = subprocess.run(
        private_network.command([sys.executable, "-m", "tests.packaging.services", str(plan)]),
        cwd=PACKAGING.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout


def at_host(command: Sequence[str], mounts: Mapping[str, Path]) -> list[str]:
    """Return a container's command line with the paths of the machine, in its configuration files as well."""
    line = []
    for word in command:
        for inside, outside in mounts.items():
            word = re.sub(rf"(?<![\w/]){inside}(?=/|$)", str(outside), word)
        line.append(word)
    return line


@pytest.fixture
def _namespaces() -> None:
    if private_network.command(["true"]) == ["true"]:
        pytest.skip("this machine allows no network namespaces")


@pytest.mark.usefixtures("_namespaces")
@pytest.mark.timeout(320)
def test_three_brokers_of_compose_form_a_cluster(tmp_path: Path) -> None:
    compose = yaml.safe_load((PACKAGING / "compose" / "three-brokers.yaml").read_text())
    services, addresses = {}, []
    for name, service in compose["services"].items():
        home = tmp_path / name
        (home / "data").mkdir(parents=True)
        address = service["networks"]["rocketmq"]["ipv4_address"]
        # Containers listen on all of their addresses; here those of all containers are one machine's.
        mounts = {"/data": home / "data"}
        for volume in service.get("volumes", ()):
            source, inside = volume.split(":")[:2]
            if source.endswith("credentials.conf"):
                (home / "credentials.conf").write_text(CREDENTIALS)
                (home / "credentials.conf").chmod(0o600)
                mounts[inside] = home / "credentials.conf"
            elif source.startswith("./"):
                text = (PACKAGING / "compose" / source).read_text()
                (home / Path(inside).name).write_text(
                    text.replace("/data", str(home / "data")).replace("0.0.0.0", address)
                )
                mounts[inside] = home / Path(inside).name
        services[name] = at_host(shlex.split(service["command"].replace("0.0.0.0", address)), mounts)
        addresses.append(address)
    namesrv = f"{addresses[0]}:9876"
    printed = run_services(tmp_path, services, addresses, ["admin", "clusterList", "-n", namesrv, "--json"])
    assert {row["broker"] for row in json.loads(printed)} == {"broker-a", "broker-b", "broker-c"}


@pytest.mark.usefixtures("_namespaces")
@pytest.mark.timeout(320)
def test_three_brokers_of_kubernetes_form_a_cluster(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((PACKAGING / "kubernetes" / "three-brokers.yaml").read_text()))
    of_kind = {each["kind"]: each["spec"] for each in documents}
    (tmp_path / "credentials.conf").write_text(CREDENTIALS)
    (tmp_path / "credentials.conf").chmod(0o600)
    pods: dict[str, tuple[str, dict[str, Any]]] = {"nameserver": ("10.244.0.10", of_kind["Deployment"])}
    for number in range(of_kind["StatefulSet"]["replicas"]):
        pods[f"libramq-broker-{number}"] = (f"10.244.0.{11 + number}", of_kind["StatefulSet"])
    services = {}
    for name, (address, spec) in pods.items():
        (container,) = spec["template"]["spec"]["containers"]
        (tmp_path / name).mkdir()
        mounts = {"/data": tmp_path / name, "/etc/libramq": tmp_path}
        known = {"$(POD_NAME)": name, "$(POD_IP)": address, "libramq-nameserver:9876": "10.244.0.10:9876"}
        line = [_replaced(word, known) for word in container["args"]]
        services[name] = [re.sub(r"=/data\b", f"={tmp_path / name}", word) for word in at_host(line, mounts)]
        services[name] = [word.replace("0.0.0.0", address) for word in services[name]]
    addresses = [address for address, _ in pods.values()]
    then = ["admin", "clusterList", "-n", "10.244.0.10:9876", "--json"]
    printed = run_services(tmp_path, services, addresses, then)
    assert {row["broker"] for row in json.loads(printed)} == pods.keys() - {"nameserver"}


def _replaced(word: str, known: Mapping[str, str]) -> str:
    for name, value in known.items():
        word = word.replace(name, value)
    return word


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    for document in yaml.safe_load_all((PACKAGING / "kubernetes" / "three-brokers.yaml").read_text()):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.usefixtures("_namespaces")
def test_the_container_s_command_starts_and_its_check_passes(tmp_path: Path) -> None:
    text = (PACKAGING / "Containerfile").read_text()
    command, check = (
        json.loads(re.search(pattern, text, re.MULTILINE)[1])  # type: ignore[index]
        for pattern in (r"^CMD (\[.*\])$", r"^    CMD (\[.*\])$")
    )
    mounts = {"/data": tmp_path}
    assert check[0] == "libra"
    printed = run_services(tmp_path, {"libramq": at_host(command, mounts)}, [], check[1:])
    assert "brokerVersionDesc" in printed


def test_the_unit_s_command_tells_systemd_when_clients_can_connect(tmp_path: Path) -> None:
    unit = (PACKAGING / "systemd" / "libramq.service").read_text()
    start = re.search(r"^ExecStart=/opt/libramq/bin/libra (.*)$", unit, re.MULTILINE)
    assert start is not None
    assert re.search(r"^Type=notify$", unit, re.MULTILINE)
    line = at_host(shlex.split(start[1]), {"/var/lib/libramq": tmp_path / "data"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-m", "libramq", *line],
            env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert systemd.recv(100) == b"READY=1"
            process.terminate()
            assert systemd.recv(100) == b"STOPPING=1"
            assert "LibraMQ is up" in process.communicate(timeout=60)[0]
            assert process.returncode == 0
        finally:
            process.kill()
            process.communicate()

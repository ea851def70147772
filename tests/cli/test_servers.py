"""`libra up`, `nameserver` and `broker` as processes."""

import signal
import socket

import pytest

from tests.cli.commands import end, libra, one_line, start
from tests.interop.ports import free_broker_port, free_port

HOST = "127.0.0.1"


def test_up_says_what_runs_where(up):
    assert up.said[0] == (
        f"LibraMQ is up: name server {up.namesrv}, broker broker-a {HOST}:{up.broker_port}, data in {up.data}"
    )
    assert f"libra send -n {up.namesrv} -t Hello" in up.said[1]


def test_a_taken_port_and_a_directory_in_use(up):
    taken = one_line(libra("up", "--nameserver-port", str(up.nameserver_port)))
    assert taken.startswith(
        f"port {up.nameserver_port} on {HOST} is taken; stop what listens there or choose"
    )
    taken = one_line(libra("nameserver", "--port", str(up.nameserver_port)))
    assert taken.startswith(f"port {up.nameserver_port} on {HOST} is taken")
    in_use = one_line(libra("up", "--data", up.data))
    assert f"{up.data} is in use by another process" in in_use


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_gracefully(number):
    port = free_port()
    process = start(["nameserver", "--port", str(port), "--log-level", "warning"])
    try:
        assert process.stdout is not None
        assert f"listens on {HOST}:{port}" in process.stdout.readline()
        with socket.create_connection((HOST, port)) as idle:
            process.send_signal(number)
            assert process.communicate(timeout=30) == ("", "")
            assert process.returncode == 0
            assert idle.recv(1) == b""
    finally:
        end(process)


def test_a_broker_reads_apaches_file(up, tmp_path):
    """Its names; what is unknown is told and has no effect."""
    port = free_broker_port()
    (tmp_path / "broker.conf").write_text(
        "# as for Apache's broker\n"
        "brokerClusterName = SecondCluster\n"
        "brokerName=broker-z\n"
        "brokerId=0\n"
        "deleteWhen=04\n"
        "fileReservedTime=48\n"
        "brokerRole=ASYNC_MASTER\n"
        "noSuchName=1\n"
        f"listenPort={port}\n"
        "storePathRootDir=store-z\n"
    )
    process = start(["broker", "-c", "broker.conf", "-n", up.namesrv, "--log-level", "warning"], cwd=tmp_path)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith(f"Broker broker-z of cluster SecondCluster listens on {HOST}:{port}")
        brokers = libra("admin", "clusterList", "-n", up.namesrv)
        assert "SecondCluster" in brokers.out
        assert "DefaultCluster" in brokers.out
        assert (tmp_path / "store-z" / "lock").is_file()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "libra: broker.conf: noSuchName is not known here and has no effect" in err.splitlines()
    finally:
        end(process)
    # It has unregistered itself.
    assert "SecondCluster" not in libra("admin", "clusterList", "-n", up.namesrv).out

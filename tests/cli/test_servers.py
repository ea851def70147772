"""`libra up`, `nameserver` and `broker` as processes."""

import select
import shutil
import signal
import socket

import pytest

from tests.cli.commands import SECONDS_MAX, STOPPING, end, libra, one_line, start
from tests.interop.ports import free_broker_port, free_port

HOST = "127.0.0.1"


def test_up_prints_which_server_listens_where(up):
    assert up.said[0] == (
        f"LibraMQ is up: name server {up.namesrv}, broker broker-a {HOST}:{up.broker_port}, data in {up.data}"
    )
    assert f"libra send -n {up.namesrv} -t Hello" in up.said[1]


def test_a_taken_port_and_a_locked_directory_are_named(up, tmp_path):
    taken = one_line(libra("up", "--nameserver-port", str(up.nameserver_port)))
    assert taken.startswith(
        f"port {up.nameserver_port} on {HOST} is taken; stop what listens there or choose"
    )
    taken = one_line(libra("nameserver", "--port", str(up.nameserver_port)))
    assert taken.startswith(f"port {up.nameserver_port} on {HOST} is taken")
    (tmp_path / "namesrv.conf").write_text(f"bindAddress localhost\nlistenPort: {up.nameserver_port}\n")
    taken = one_line(libra("nameserver", "-c", str(tmp_path / "namesrv.conf")))
    assert taken.startswith(f"port {up.nameserver_port} on localhost is taken")
    ports = ("--nameserver-port", str(free_port()), "--broker-port", str(free_broker_port()))
    in_use = one_line(libra("up", "--data", up.data, *ports))
    assert f"{up.data} is in use by another process" in in_use


def test_a_broker_works_on_with_more_connections_than_descriptors(tmp_path):
    """They used to take the store's descriptors; its `open` failed, and writes stopped until a restart."""
    port, broker_port = free_port(), free_broker_port()
    servers = ["up", "--nameserver-port", str(port), "--broker-port", str(broker_port)]
    process = start([*servers, "--data", str(tmp_path), "--log-level", "warning"], descriptors_max=200)
    namesrv = f"{HOST}:{port}"
    idle: list[socket.socket] = []
    try:
        assert process.stdout is not None
        assert "is up" in process.stdout.readline()
        assert libra("send", "-n", namesrv, "-t", "T", "before").code == 0
        idle += [socket.create_connection((HOST, broker_port)) for _ in range(300)]
        wait_ended(idle[-1:])  # They are accepted in order: none is left that could take a free place.
        for connection in idle[:20]:  # Room for a producer, and for files that are briefly open.
            connection.shutdown(socket.SHUT_WR)
        wait_ended(idle[:20])
        assert libra("send", "-n", namesrv, "-t", "Another", "after").code == 0
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=SECONDS_MAX)[1]
        assert said.count("connections are refused") == 1, said
        assert "flush" not in said
        assert process.returncode == 0
    finally:
        for connection in idle:
            connection.close()
        end(process)


def wait_ended(connections: list[socket.socket]) -> None:
    """Wait until the server has closed these connections; it sends nothing on them."""
    for connection in connections:
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        assert poll.poll(SECONDS_MAX * 1000), "the server keeps a connection that it should close"


def test_the_address_for_clients_may_differ_from_the_one_listened_on(tmp_path):
    """Clients of a container with published ports need the outer address; the broker itself does not."""
    port, broker_port = free_port(), free_broker_port()
    servers = [
        "up",
        "--nameserver-port",
        str(port),
        "--broker-port",
        str(broker_port),
        "--data",
        str(tmp_path),
    ]
    process = start([*servers, "--host", "0.0.0.0", "--allow-public", "--advertise", "192.0.2.1"])
    try:
        assert process.stdout is not None
        assert f"name server 192.0.2.1:{port}" in process.stdout.readline()
        route = libra("admin", "topicRoute", "-t", "TBW102", "-n", f"{HOST}:{port}")
        assert f"0=192.0.2.1:{broker_port}" in route.out
    finally:
        end(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_gracefully(number):
    port = free_port()
    process = start(["nameserver", "--port", str(port), "--log-level", "warning"])
    try:
        assert process.stdout is not None
        assert f"listens on {HOST}:{port}" in process.stdout.readline()
        with socket.create_connection((HOST, port)) as idle:
            process.send_signal(number)
            assert process.communicate(timeout=SECONDS_MAX) == (STOPPING, "")
            assert process.returncode == 0
            assert idle.recv(1) == b""
    finally:
        end(process)


def test_a_broker_without_its_store_ends_with_a_failure(up, tmp_path):
    """It used to end as if it had written its tables."""
    store = tmp_path / "store"
    port = free_broker_port()
    (tmp_path / "broker.conf").write_text(
        f"brokerName=broker-lost\nlistenPort={port}\nstorePathRootDir={store}\n"
    )
    process = start(["broker", "-c", str(tmp_path / "broker.conf"), "-n", up.namesrv])
    try:
        assert process.stdout is not None
        process.stdout.readline()
        store.rename(tmp_path / "elsewhere")
        shutil.copytree(tmp_path / "elsewhere", store)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 2
        assert f"libra: the broker's last state was not written: {store} was removed or exchanged" in err
    finally:
        end(process)


def test_a_broker_reads_apaches_file(up, tmp_path):
    """Apache's option names work; an unknown one is reported and has no effect."""
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
        _, err = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0
        assert "libra: broker.conf: noSuchName is unknown and has no effect" in err.splitlines()
    finally:
        end(process)
    # The broker has unregistered itself.
    assert "SecondCluster" not in libra("admin", "clusterList", "-n", up.namesrv).out


def test_a_directory_that_every_user_may_write_to_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    refused = libra("up", "--data", str(tmp_path / "open"))
    assert refused.code == 2
    assert f"every user of this machine may write to {tmp_path / 'open'}" in refused.err
    assert list((tmp_path / "open").iterdir()) == []


def test_a_readable_file_with_a_secret_is_reported(up, tmp_path):
    file = tmp_path / "secret.conf"
    file.write_text('innerClientAuthenticationCredentials={"accessKey":"k","secretKey":"s"}\nlistenPort=0\n')
    for mode, is_reported in ((0o644, True), (0o640, False)):
        file.chmod(mode)
        refused = libra("nameserver", "-c", str(file), "--host", "192.0.2.1")
        assert refused.code == 2
        assert ("holds secrets, and every user of this machine can read it" in refused.err) == is_reported


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_broker_without_its_log_starts_with_the_option_that_accepts_the_loss(tmp_path, brokers):
    """`libra up` passes the option to every broker, including those in further processes."""
    port, broker_port = free_port(), free_broker_port(brokers)
    servers = [
        "up",
        "--nameserver-port",
        str(port),
        "--broker-port",
        str(broker_port),
        "--data",
        str(tmp_path),
    ]
    servers += ["--brokers", str(brokers)]
    process = start(servers)
    try:
        assert process.stdout is not None
        assert "is up" in process.stdout.readline()
        for _ in range(8):
            assert libra("send", "-n", f"{HOST}:{port}", "-t", "T", "one").code == 0
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS_MAX)
    finally:
        end(process)
    for log in tmp_path.rglob("commitlog"):
        shutil.rmtree(log)
    refused = libra(*servers)
    assert (refused.code, refused.out) == (2, "")
    reason = refused.err.splitlines()[-1]  # On a busy machine brokers may report a stall first.
    assert "--damaged=skip" in reason
    assert "messages of the queues are gone" in reason
    assert "Traceback" not in refused.err
    process = start([*servers, "--damaged=skip"])
    try:
        assert process.stdout is not None
        assert "is up" in process.stdout.readline()
    finally:
        end(process)

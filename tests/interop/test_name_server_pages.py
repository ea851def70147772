"""Name servers listed on a page: Apache's clients and our broker read it from a tiny web server."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.interop.apache import start_program
from tests.interop.cluster import Cluster
from tests.interop.libra import ENVIRONMENT, LIBRA, LibraServers
from tests.interop.ports import free_broker_port
from tests.interop.process import PATIENCE_S, Process

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]


@contextmanager
def page(name_servers: str) -> Iterator[str]:
    """Serve /rocketmq/nsaddr; yield the server's host and port."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.startswith("/rocketmq/nsaddr")
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(name_servers.encode() + b"\n" if found else b"")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_clients_and_brokers_find_their_name_servers_on_a_page(tmp_path: Path) -> None:
    """Java's client uses rocketmq.namesrv.domain, our broker rmqAddressServerDomain."""
    with ExitStack() as stack:
        servers = LibraServers(tmp_path)
        stack.callback(servers.stop)
        domain = stack.enter_context(page(servers.namesrv))
        configuration = tmp_path / "broker.conf"
        lines = {
            "brokerName": "paged",
            "listenPort": free_broker_port(),
            "storePathRootDir": tmp_path / "paged" / "store",
            "fetchNamesrvAddrByAddressServer": "true",
            "rmqAddressServerDomain": domain,
        }
        configuration.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        command = [*LIBRA, "broker", "-c", str(configuration)]
        broker = Process("paged", command, directory=tmp_path, env={**ENVIRONMENT, "NAMESRV_ADDR": ""})
        stack.callback(broker.stop)
        broker.wait_line("listens on", within_s=PATIENCE_S)
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        assert cluster.broker_name == "paged"
        cluster.create_topic("Paged", 1)
        by_page = {"rocketmq.namesrv.domain": domain, "topic": "Paged"}
        producer = start_program("Produce", {**by_page, "group": "p"}, home=tmp_path / "produce")
        stack.callback(producer.stop)
        producer.wait_event("started")
        assert (
            producer.ask("sent", {"kind": "sync", "topic": "Paged", "body": "found"})["status"] == "SEND_OK"
        )
        consumer = start_program("Consume", {**by_page, "group": "c"}, home=tmp_path / "consume")
        stack.callback(consumer.stop)
        assert consumer.wait_event("message")["body"] == "found"

"""TLS servers: always among each other, and with all clients or those that request it."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest
import trustme

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.client import Producer
from libramq.clock import SystemClock
from libramq.codes import RequestCode
from libramq.filesystem import LocalFileSystem
from libramq.formats.access import UserInfo
from libramq.formats.tables import TopicConfig
from libramq.message import Message
from libramq.nameserver import NameServer
from libramq.protocols.kafka.server import KafkaServer
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials
from libramq.transport.access import Access
from libramq.transport.asyncio_remotes import AsyncioRemotes
from libramq.transport.server_tls import encryption
from libramq.transport.tls import Encryption, Tls
from tests.interop.ports import free_broker_port, free_port
from tests.transport.certificates import Certificates
from tests.transport.loops import LOOPS, run_on, until

TLS_HANDSHAKE = 22
#: Kafka's ApiVersions, version 0: length, key, version, correlation id, no client id.
API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000007 ffff")


class Permissive:
    """Both kinds of connection on every port; counts them."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._context)
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        self.tls = Tls(ca_file=str(directory / "ca.pem"))
        self.encryption = Encryption(incoming=self._choose, outgoing=self.tls)
        self.encrypted_count = self.plain_count = 0

    def _choose(self, first: int) -> ssl.SSLContext | None:
        if first == TLS_HANDSHAKE:
            self.encrypted_count += 1
            return self._context
        self.plain_count += 1
        return None


@pytest.mark.parametrize("loop", list(LOOPS))
def test_brokers_slaves_and_name_servers_reach_each_other_encrypted(loop: str, tmp_path: Path) -> None:
    """Registration, peers, a slave's tables and its copy of the log; then Kafka's and RocketMQ's clients."""

    async def scenario() -> None:
        permissive = Permissive(tmp_path)

        def broker(name: str, **options: object) -> BrokerServer:
            config = BrokerConfig(
                store_path=str(tmp_path / name),
                listen_port=free_broker_port(),
                namesrv_addr=namesrv.address,
                credentials=Credentials("a", "secret"),
                **({"broker_name": name} | options),
            )
            return BrokerServer(
                config, clock=SystemClock(), filesystem=LocalFileSystem(), encryption=permissive.encryption
            )

        async with NameServer("127.0.0.1", 0, encryption=permissive.encryption) as namesrv:
            master, other = broker("a", ha_listen_port=free_broker_port()), broker("b")
            slave = broker("slave of a", broker_name="a", broker_id=1, broker_role="SLAVE")
            for each in (master, other, slave):
                await each.start()
            topic = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
            master.broker.topics.put(topic, SystemClock().wall_ms())
            await until(lambda: master.broker.cluster.others.view.names == ["a", "b"])
            await until(lambda: "T" in slave.broker.topics)
            await until(lambda: namesrv.route_info.route("T") is not None)
            assert permissive.plain_count == 0
            assert permissive.encrypted_count >= 6

            for tls in (permissive.tls, None):
                producer = Producer(group="p", namesrv=namesrv.address, tls=tls)
                await producer.start()
                await producer.send(Message("T", b"hi"))
                await producer.stop()
            await until(lambda: slave.broker.store.visible_offset == master.broker.store.end > 0)

            kafka = KafkaServer(master, BrokerConfig(), LocalFileSystem(), port=0)
            await kafka.start()
            port = kafka.address.rpartition(":")[2]
            for context in (permissive.tls.context(), None):
                reader, writer = await asyncio.open_connection("127.0.0.1", int(port), ssl=context)
                writer.write(API_VERSIONS)
                assert (await reader.readexactly(8))[4:] == API_VERSIONS[8:12]
                writer.close()
            await kafka.stop()
            for each in (slave, other, master):
                await each.stop()

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_every_port_of_a_broker_is_encrypted_only(loop: str, tmp_path: Path) -> None:
    """Under `enforcing`, with clients' certificates: requests, the VIP port, HA, Kafka, and the metrics."""
    certificates = Certificates(tmp_path / "tls")
    own = str(certificates.client("broker.example"))
    options = certificates.options(
        server_mode="enforcing",
        need_client_auth="require",
        server_trust_cert_path=str(certificates.ca_file),
        enable=True,
        client_trust_cert_path=str(certificates.ca_file),
        client_cert_path=own,
    )

    def broker(name: str, namesrv: str, **more: object) -> BrokerServer:
        config = BrokerConfig(
            store_path=str(tmp_path / name),
            listen_port=free_broker_port(),
            namesrv_addr=namesrv,
            tls=options,
            **more,  # type: ignore[arg-type]
        )
        return BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())

    async def scenario() -> None:
        async with NameServer("127.0.0.1", 0, encryption=encryption(options)) as namesrv:
            ha_port, metrics_port = free_broker_port(), free_port()
            master = broker(
                "master",
                namesrv.address,
                ha_listen_port=ha_port,
                metrics_exporter_type="PROM",
                metrics_port=metrics_port,
            )
            slave = broker("slave", namesrv.address, broker_id=1, broker_role="SLAVE")
            for each in (master, slave):
                await each.start()
            kafka = KafkaServer(master, BrokerConfig(), LocalFileSystem(), port=0)
            await kafka.start()
            async with Producer(
                group="p", namesrv=namesrv.address, tls=certificates.tls(cert_file=own)
            ) as producer:
                await producer.send(Message("T", b"hi"))
            await until(lambda: slave.broker.store.visible_offset == master.broker.store.end > 0)
            context = certificates.tls(cert_file=own).context()
            reader, writer = await asyncio.open_connection("127.0.0.1", metrics_port, ssl=context)
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b"rocketmq_messages_in" in await reader.read()
            writer.close()
            listen_port = int(master.address.rpartition(":")[2])
            ports = (namesrv.port, listen_port, listen_port - 2, ha_port, metrics_port)
            for port in (*ports, int(kafka.address.rpartition(":")[2])):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(API_VERSIONS)
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
            await kafka.stop()
            for each in (slave, master):
                await each.stop()

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_certificates_name_is_a_user(loop: str, tmp_path: Path) -> None:
    """Unsigned requests are of the user that the certificate names, with that user's permissions."""
    certificates = Certificates(tmp_path / "tls")
    own = str(certificates.client("orders.example"))
    options = certificates.options(
        server_mode="enforcing", need_client_auth="optional", server_trust_cert_path=str(certificates.ca_file)
    )

    async def scenario() -> None:
        async with NameServer("127.0.0.1", 0) as namesrv:
            config = BrokerConfig(
                store_path=str(tmp_path / "store"),
                listen_port=free_broker_port(),
                namesrv_addr=namesrv.address,
                credentials=Credentials("brokers", "theirs"),
                tls=options,
                authentication_enabled=True,
                authorization_enabled=True,
            )
            broker = BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())
            await broker.start()
            users = broker.broker.files.tables.users
            users.create(UserInfo(username="orders.example", password="unused"))
            remotes = AsyncioRemotes(
                SystemClock().monotonic_ms, access=Access(tls=certificates.tls(cert_file=own))
            )
            info = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)
            refused = await remotes.call(broker.address, info)
            assert "User:orders.example has no permission" in (refused.remark or "")
            users.update(UserInfo(username="orders.example", user_type="Super"))
            assert (await remotes.call(broker.address, info)).code == 0
            await remotes.aclose()
            nobody = AsyncioRemotes(SystemClock().monotonic_ms, access=Access(tls=certificates.tls()))
            unsigned = await nobody.call(broker.address, info)
            assert unsigned.remark == "authentication field is null"
            await nobody.aclose()
            await broker.stop()

    run_on(loop, scenario)

"""The Kafka endpoint of `libra broker`: if it cannot be opened, one sentence says why."""

import builtins
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from libramq.broker.config import BrokerConfig
from libramq.cli.servers.commands import broker_server, kafka_servers
from libramq.errors import ConfigError
from tests.cli.commands import SECONDS_MAX, end, start
from tests.interop.ports import free_broker_port, free_port


def test_a_slave_has_no_kafka_port(tmp_path: Path):
    with pytest.raises(ConfigError, match="set it at its master only"):
        BrokerConfig(
            store_path=str(tmp_path),
            broker_role="SLAVE",
            broker_id=1,
            kafka_listen_port=9092,
            namesrv_addr="127.0.0.1:1",
        )


def test_several_brokers_serve_kafkas_clients_together(tmp_path: Path):
    nameserver, kafka = free_port(), free_port(1)
    options = ("--brokers", "2", "--nameserver-port", str(nameserver), "--kafka-port", str(kafka))
    process = start(["up", *options, "--broker-port", str(free_broker_port(2)), "--data", str(tmp_path)])
    try:
        assert process.stdout is not None
        expected = f"127.0.0.1:{kafka},127.0.0.1:{kafka + 1}"
        while f"Kafka's clients connect to {expected}" not in process.stdout.readline():
            assert process.poll() is None
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{kafka}"})
        deadline = time.monotonic() + SECONDS_MAX
        while len(brokers := admin.list_topics(timeout=SECONDS_MAX).brokers) < 2:
            assert time.monotonic() < deadline
        assert {broker.port for broker in brokers.values()} == {kafka, kafka + 1}
    finally:
        end(process)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = BrokerConfig(store_path=str(tmp_path), kafka_listen_port=9092)
    imported = builtins.__import__

    def without_extra(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "libramq.protocols.kafka.server":
            raise ModuleNotFoundError("No module named 'google_crc32c'", name="google_crc32c")
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_extra)
    with pytest.raises(ConfigError, match=r"google_crc32c: pip install 'libramq\[kafka\]'"):
        kafka_servers(broker_server(config), config)

"""The Kafka endpoint of `libra broker`: if it cannot be opened, one sentence says why."""

import asyncio
import builtins
from pathlib import Path
from typing import Any

import pytest

from libramq.broker.config import BrokerConfig
from libramq.cli.options import LogLevel
from libramq.cli.servers import commands
from libramq.cli.servers.commands import broker_server
from libramq.cli.servers.kafka import kafka_servers
from libramq.errors import ConfigError


def test_a_slave_has_no_kafka_port(tmp_path: Path):
    config = BrokerConfig(
        store_path=str(tmp_path),
        broker_role="SLAVE",
        broker_id=1,
        kafka_listen_port=9092,
        namesrv_addr="127.0.0.1:1",
    )
    with pytest.raises(ConfigError, match="set it at its master only"):
        kafka_servers(broker_server(config), config)


def test_several_brokers_have_no_kafka_port(tmp_path: Path):
    up = commands.up(
        nameserver_port=None,
        broker_port=None,
        brokers=2,
        metrics_port=None,
        kafka_port=9092,
        host="127.0.0.1",
        data=tmp_path,
        advertise=None,
        allow_public=False,
        damaged=None,
        log_level=LogLevel.WARNING,
    )
    with pytest.raises(ConfigError, match="drop --brokers"):
        asyncio.run(up)


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

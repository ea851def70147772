"""Metrics: from events and samples to the text that Prometheus reads over HTTP."""

import asyncio
import contextlib
import http.client
import random
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from libramq import Message, Producer
from libramq.broker import metrics_server
from libramq.broker.broker_conf import broker_config
from libramq.broker.config import BrokerConfig
from libramq.broker.metrics import GROUPS_MAX, OTHERS, TOTALS, VALUES, Metrics, TopicLag
from libramq.broker.metrics_server import HEAD_BYTES_MAX, HeadReader
from libramq.broker.shell import BrokerServer
from libramq.clock import SystemClock
from libramq.errors import ConfigError
from libramq.filesystem import LocalFileSystem
from libramq.groups.rebalance_event import QueueMove, RebalanceEvent
from libramq.nameserver import NameServer
from tests.interop.ports import free_broker_port, free_port


def event(kind: str, group: str = "G", **fields: object) -> RebalanceEvent:
    return RebalanceEvent(v=1, group=group, epoch=1, seq=1, at_ms=1_000, kind=kind, **fields)  # type: ignore[arg-type]


def move(pause_ms: int, double_owner_ms: int = 0) -> QueueMove:
    return QueueMove(
        topic="T",
        broker="b",
        queue=0,
        from_="alice",
        to="bob",
        stopped_ms=1_000,
        resumed_ms=1_000 + pause_ms,
        redelivered=0,
        double_owner_ms=double_owner_ms,
    )


def sample(metrics: Metrics, diagnoses: dict[str, set[str]], **values: float) -> None:
    metrics.sample({**dict.fromkeys((*TOTALS, *VALUES), 0), **values}, refused={}, diagnoses=diagnoses)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_rebalance_is_counted_and_timed():
    metrics = Metrics()
    for told in (
        event("started", reason="member_joined", member_count=2),
        event("moved", moves=[move(300), move(1_200, 40)]),
        event(
            "settled", member_count=2, moved=2, minimum=1, time_to_stable_ms=1_400, unowned=3,
            redelivered_upper_bound=7, duplicates_reported=5, peak_catch_up_rate=900,
        ),
    ):  # fmt: skip
        metrics.record(told)
    group = {"consumer_group": "G"}
    assert value(metrics, "libra_group_rebalances_total", reason="member_joined", **group) == 1
    assert value(metrics, "libra_group_queue_pause_seconds_sum", **group) == 1.5
    assert value(metrics, "libra_group_queue_pause_seconds_bucket", le="0.5", **group) == 1
    assert value(metrics, "libra_group_queue_double_owner_seconds_sum", **group) == 0.04
    assert value(metrics, "libra_group_time_to_stable_seconds_sum", **group) == 1.4
    assert value(metrics, "libra_group_queues_moved_total", **group) == 2
    assert value(metrics, "libra_group_queues_moved_minimum_total", **group) == 1
    assert value(metrics, "libra_group_messages_redelivered_bound_total", **group) == 7
    assert value(metrics, "libra_group_rebalances_redelivered_unknown_total", **group) == 0
    assert value(metrics, "libra_group_messages_duplicate_total", **group) == 5
    assert value(metrics, "libra_group_catch_up_peak_messages_per_second", **group) == 900
    assert value(metrics, "libra_group_members", **group) == 2
    assert value(metrics, "libra_group_queues_unowned", **group) == 3


def test_a_rebalance_with_unknown_redelivery_is_counted_as_unknown():
    metrics = Metrics()
    metrics.record(event("settled", member_count=2, moved=2, minimum=1, redelivered_upper_bound=None))
    group = {"consumer_group": "G"}
    assert value(metrics, "libra_group_messages_redelivered_bound_total", **group) == 0
    assert value(metrics, "libra_group_rebalances_redelivered_unknown_total", **group) == 1


def test_the_pause_of_a_static_members_restart_is_observed():
    metrics = Metrics()
    metrics.record(event("restarted", reason="static_member_restarted", member_count=2, worst_pause_ms=1_500))
    group = {"consumer_group": "G"}
    assert value(metrics, "libra_static_member_restart_pause_seconds_sum", **group) == 1.5
    assert value(metrics, "libra_group_rebalances_total", reason="static_member_restarted", **group) is None


def test_totals_grow_and_ended_diagnoses_disappear():
    metrics = Metrics()
    sample(metrics, {"G": {"idle_members"}}, messages_in=5, held_pulls=2, connections=3)
    found = {"consumer_group": "G", "kind": "idle_members"}
    assert value(metrics, "libra_group_diagnosis", **found) == 1
    sample(metrics, {}, messages_in=7)
    assert value(metrics, "rocketmq_messages_in_total") == 7
    assert value(metrics, "libra_held_pulls") == 0
    assert value(metrics, "libra_group_diagnosis", **found) == 0


def test_groups_beyond_the_limit_share_their_series():
    metrics = Metrics()
    for number in range(GROUPS_MAX + 2):
        metrics.record(event("started", f"G{number}", reason="member_joined", member_count=1))
    assert value(metrics, "libra_group_rebalances_total", consumer_group=OTHERS, reason="member_joined") == 2
    assert value(metrics, "libra_group_members", consumer_group="G0") == 1


@pytest.mark.parametrize("order", [1, -1])
def test_shared_series_have_the_sum_of_queues_and_the_greatest_age_that_is_known(order):
    metrics = Metrics()
    metrics.progress([TopicLag(f"G{number}", "T", 0, 0) for number in range(GROUPS_MAX)], {})
    lags = [TopicLag("H", "T", 1, None), TopicLag("I", "T", 2, 70), TopicLag("J", "T", 3, 50)]
    metrics.progress(lags[::order], {"H": 4, "I": 8, "G1": 3})
    shared = {"consumer_group": OTHERS}
    assert value(metrics, "libra_group_queues_unowned", **shared) == 12
    assert value(metrics, "libra_group_queues_unowned", consumer_group="G1") == 3
    assert value(metrics, "rocketmq_consumer_lag_messages", topic=OTHERS, **shared) == 6
    assert value(metrics, "rocketmq_consumer_lag_latency", topic=OTHERS, **shared) == 70
    metrics.progress([], {})
    assert value(metrics, "libra_group_queues_unowned", **shared) == 0


def test_idle_groups_take_no_series_from_others():
    metrics = Metrics()
    metrics.progress([TopicLag("Read", "T", 0, None)], {})
    counts = {f"Idle{number}": 0 for number in range(GROUPS_MAX)} | {"Read": 0}
    metrics.dead_letters(counts.items())
    name = "rocketmq_send_to_dlq_messages_total"
    assert value(metrics, name, consumer_group="Read") == 0
    assert value(metrics, name, consumer_group="Idle0") is None
    metrics.dead_letters((counts | {"Idle7": 1, "Busy": 2}).items())
    assert value(metrics, name, consumer_group="Idle7") == 1
    assert value(metrics, name, consumer_group="Busy") == 2
    assert value(metrics, name, consumer_group=OTHERS) is None


def test_options_have_apaches_names():
    config, unknown = broker_config(
        {
            "metricsExporterType": "PROM",
            "metricsPromExporterPort": "9557",
            "metricsPromExporterHost": "127.0.0.1",
        }
    )
    assert (config.serves_metrics, config.metrics_port, unknown) == (True, 9557, [])
    assert not BrokerConfig().serves_metrics
    with pytest.raises(ConfigError, match="metricsExporterType 'LOG'; DISABLE or PROM is allowed"):
        broker_config({"metricsExporterType": "LOG"})


def server(tmp_path: Path, **options: object) -> BrokerServer:
    config = BrokerConfig(
        store_path=str(tmp_path), listen_port=free_broker_port(), commit_log_file_bytes=1 << 20, **options
    )  # type: ignore[arg-type]
    return BrokerServer(
        config, clock=SystemClock(), filesystem=LocalFileSystem(), randomness=random.Random(7)
    )


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        one.name: one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if not one.labels
    }


async def test_a_broker_is_scraped(tmp_path):
    names = NameServer("127.0.0.1", free_port())
    await names.start()
    port = free_port()
    broker = server(
        tmp_path, metrics_exporter_type="PROM", metrics_port=port, namesrv_addr=f"127.0.0.1:{names.port}"
    )
    await broker.start()
    try:
        async with Producer(namesrv=f"127.0.0.1:{names.port}") as producer:
            for _ in range(3):
                await producer.send(Message("T", b"x"))
            async with asyncio.timeout(60):
                found = await asyncio.to_thread(scrape, port)
                while found["rocketmq_messages_in_total"] < 3:  # Sampled once a second.
                    found = await asyncio.to_thread(scrape, port)
        assert found["libra_connections"] >= 1
        assert found["libra_longest_turn_seconds"] > 0
    finally:
        await broker.stop()
        await names.stop()
    with pytest.raises(OSError):
        await asyncio.to_thread(scrape, port)


def exchange(port: int, text: str, line_end: str = "\r\n") -> list[tuple[int, bytes]]:
    """Send requests over one connection; return the statuses and bodies of the answers until it ends."""
    answers = []
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(text.replace("\n", line_end).encode("latin-1"))
        with client.makefile("rb") as read, contextlib.suppress(ConnectionResetError):
            while line := read.readline():
                length = int(http.client.parse_headers(read)["Content-Length"])
                answers.append((int(line.split()[1]), read.read(length)))
    return answers


async def test_metrics_are_one_more_protocol_with_the_limits_of_all(tmp_path):
    """One connection may carry many requests; bodies and endless heads are not read."""
    port = free_port()
    broker = server(tmp_path, metrics_exporter_type="PROM", metrics_port=port)
    await broker.start()
    try:
        wanted = "?name[]=libra_held_pulls HTTP/1.1\n"
        (first, text), (second, _), (third, _) = await asyncio.to_thread(
            exchange,
            port,
            f"GET /metrics{wanted}Content-Length: 0\n\nPUT /metrics HTTP/1.1\n\n"
            f"GET /metrics{wanted}Accept-Encoding: gzip\nConnection: close\n\n",
        )
        assert (first, second, third) == (200, 405, 200)
        assert [line for line in text.splitlines() if not line.startswith(b"#")] == [b"libra_held_pulls 0.0"]
        body = "POST / HTTP/1.1\nContent-Length: 3\n\n"
        assert await asyncio.to_thread(exchange, port, body) == [(400, b"")]
        assert await asyncio.to_thread(exchange, port, "GET //[ HTTP/1.0\nAccept: ;;=,\n\n") != []
        assert await asyncio.to_thread(exchange, port, f"GET /{'x' * HEAD_BYTES_MAX}") == []
    finally:
        await broker.stop()


async def test_unusual_heads_are_answered(tmp_path, capfd):
    port = free_port()
    broker = server(tmp_path, metrics_exporter_type="PROM", metrics_port=port)
    await broker.start()
    try:
        wanted = "GET /metrics?name[]=libra_held_pulls HTTP/1.1\n"
        closing = f"{wanted}Connection: TE, Close\n\n"
        for line_end in ("\r\n", "\n"):
            answers = await asyncio.to_thread(exchange, port, f"{wanted}\n{closing}{wanted}\n", line_end)
            assert [status for status, _ in answers] == [200, 200]
        for version in ("\xff", "1.0.x", "1" * 5_000):
            accept = f"Accept: application/openmetrics-text;version={version}\n"
            ((status, text),) = await asyncio.to_thread(
                exchange, port, f"{wanted}{accept}Connection: close\n\n"
            )
            assert (status, b"libra_held_pulls 0.0" in text) == (200, True)
    finally:
        await broker.stop()
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_head_that_comes_byte_by_byte_is_searched_once(monkeypatch):
    """16,000 bytes took 3 s when each new byte restarted the search."""
    searched: list[int] = []

    class End:
        def search(self, data: bytes, start: int) -> re.Match[bytes] | None:
            searched.append(len(data) - start)
            return end.search(data, start)

    end = metrics_server._END
    monkeypatch.setattr(metrics_server, "_END", End())
    lines, endings = (b"a\nx", b"b\r\nx"), (b"\n\n", b"\r\n\r\n")
    stream = b"".join(line + ending for line in lines for ending in endings)
    stream += b"c\n\r\nd\r\n\ne"
    whole, bytewise = HeadReader(), HeadReader()
    heads = [head for at in range(len(stream)) for head in bytewise.receive(stream[at : at + 1])]
    assert max(searched) <= 4
    assert heads == whole.receive(stream)
    assert (len(heads), bytewise.partial_bytes, whole.partial_bytes) == (6, 1, 1)


async def test_a_taken_port_is_one_clear_error(tmp_path):
    port = free_port()
    first = server(tmp_path / "a", metrics_exporter_type="PROM", metrics_port=port)
    second = server(tmp_path / "b", metrics_exporter_type="PROM", metrics_port=port)
    await first.start()
    try:
        with pytest.raises(ConfigError, match=f"cannot serve metrics on 127.0.0.1:{port}: .*choose another"):
            await second.start()
    finally:
        await first.stop()


def test_metrics_on_a_public_address_need_permission(tmp_path):
    with pytest.raises(ConfigError, match="allowPublic"):
        server(tmp_path, metrics_exporter_type="PROM", metrics_host="0.0.0.0")


async def test_a_broker_says_that_it_lives_and_is_ready(tmp_path):
    """It is ready while a name server knows it; otherwise the answer has the reason."""

    async def get(path: str) -> tuple[int, bytes]:
        request = f"GET {path} HTTP/1.1\nConnection: close\n\n"
        ((status, body),) = await asyncio.to_thread(exchange, port, request)
        return status, body

    async def until(status: int) -> bytes:
        async with asyncio.timeout(60):
            while True:
                found, body = await get("/ready")
                if found == status:
                    return body
                await asyncio.sleep(0.05)

    names = NameServer("127.0.0.1", free_port())
    await names.start()
    port = free_port()
    broker = server(
        tmp_path, metrics_exporter_type="PROM", metrics_port=port, namesrv_addr=f"127.0.0.1:{names.port}"
    )
    await broker.start()
    try:
        assert await until(200) == b"ready\n"
        await names.stop()
        assert await until(503) == b"no name server knows this broker\n"
        assert await get("/live") == (200, b"live\n")
        assert (await get("/"))[0] == 200
        # A mistyped probe used to get the metrics, and always succeeded.
        assert await get("/readyz") == (404, b"there are /metrics, /live and /ready\n")
    finally:
        await broker.stop()
        await names.stop()

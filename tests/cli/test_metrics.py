"""`libra up --metrics-port`: each broker serves its own metrics, on consecutive ports."""

import urllib.request

from tests.cli.commands import SECONDS_MAX, end, start
from tests.interop.ports import free_broker_port, free_port


def test_each_broker_serves_metrics_at_its_own_port(tmp_path):
    metrics = free_port(1)
    process = start(
        [
            *("up", "--brokers", "2", "--data", str(tmp_path), "--metrics-port", str(metrics)),
            *("--nameserver-port", str(free_port()), "--broker-port", str(free_broker_port(brokers=2))),
        ]
    )
    try:
        assert process.stdout is not None
        while "LibraMQ is up" not in (said := process.stdout.readline()):
            assert said, process.stderr
        for port in (metrics, metrics + 1):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS_MAX) as answer:
                assert b"# TYPE rocketmq_messages_in_total counter" in answer.read()
    finally:
        end(process)

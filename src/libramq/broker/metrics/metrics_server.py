"""The metrics server: a broker's metrics over HTTP, on threads of its own, so that no reader delays it.

It is imported only by brokers that serve metrics.
"""

import asyncio
import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import start_http_server

from libramq.broker.broker import Broker
from libramq.broker.metrics.metrics import Metrics, Sample
from libramq.errors import ConfigError
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.kernel.longest_turn import METRICS


class MetricsServer:
    """The metrics, and Prometheus's own server for them."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._metrics = Metrics()
        self._running: tuple[WSGIServer, threading.Thread] | None = None

    def start(self) -> None:
        """Listen; ConfigError if the port is not available."""
        try:
            self._running = start_http_server(self._port, self._host, self._metrics.registry)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {self._host}:{self._port}: {error.strerror}; choose another port "
                "(metricsPromExporterPort, --metrics-port)"
            ) from None

    async def stop(self) -> None:
        """Stop; responses under way are finished."""
        running, self._running = self._running, None
        if running is not None:
            server, thread = running
            await asyncio.to_thread(server.shutdown)
            server.server_close()
            await asyncio.to_thread(thread.join)

    def record(self, event: RebalanceEvent) -> None:
        """Count a rebalance event."""
        self._metrics.record(event)

    def sample(self, broker: Broker, connection_count: int) -> None:
        """Set the broker's current values."""
        store = broker.store.statistics()
        self._metrics.sample(
            Sample(
                messages_in=store.put_message_count,
                messages_out=store.get_message_count,
                bytes_in=store.put_bytes,
                bytes_out=store.get_bytes,
                held_pulls=len(broker.held),
                connections=connection_count,
                longest_turn_us=broker.engine.longest_turn.take_us(METRICS),
                diagnoses=broker.health.kinds(),
            )
        )

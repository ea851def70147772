"""The metrics server: a broker's metrics over HTTP, as one more protocol with the limits of all its ports.

A thread encodes them, so that no reader delays the broker. The module is imported only by brokers that serve
metrics.
"""

import email.parser
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from prometheus_client import make_wsgi_app
from prometheus_client.exposition import choose_encoder

from libramq.broker.broker import Broker
from libramq.broker.metrics import Metrics, Sample
from libramq.errors import ConfigError, RemoteProtocolError
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Effects, Thread
from libramq.kernel.parts import METRICS
from libramq.kernel.work import InThread, Work
from libramq.logs import get_logger
from libramq.runtime.performer import Performer
from libramq.transport.admission import Census, ConnectionLimits, Limit
from libramq.transport.server import Server
from libramq.transport.tls import TlsByFirstByte

log = get_logger(__name__)

#: Ours: Prometheus keeps one for each of its servers. Nobody authenticates here, so the oldest of the address
#: with most makes room, and whoever keeps all of them only ends its own.
CONNECTIONS_MAX: Final = 128
#: Ours: a scraper sends some 300 bytes.
HEAD_BYTES_MAX: Final = 16 * 1024
#: A line may end without a carriage return, says RFC 9112, 2.2.
_END: Final = re.compile(rb"\r?\n\r?\n")
_END_BYTES_MAX: Final = 4
_LINE_END: Final = re.compile(r"\r?\n")


class HeadReader:
    """Cuts bytes into the heads of requests; none of them may have a body."""

    def __init__(self) -> None:
        self._partial = b""

    @property
    def partial_bytes(self) -> int:
        """Return how many bytes of an unfinished head are held."""
        return len(self._partial)

    def receive(self, data: bytes) -> list[bytes]:
        """Take the bytes that arrived; return the heads that are whole now."""
        heads, begin = [], 0
        search_from = max(0, len(self._partial) - _END_BYTES_MAX + 1)  # The rest has no end.
        data = self._partial + data
        while (end := _END.search(data, search_from)) is not None:
            heads.append(data[begin : end.start()])
            begin = search_from = end.end()
        self._partial = data[begin:]
        if any(len(head) > HEAD_BYTES_MAX for head in (*heads, self._partial)):
            raise RemoteProtocolError(f"a head of over {HEAD_BYTES_MAX} bytes")
        return heads


class MetricsTranslator:
    """Answers requests; a `kernel.engine.Translator`. app: encodes metrics, as a WSGI application."""

    def __init__(self, effects: Effects, app: Any) -> None:
        self._effects = effects
        self._app = app

    def receive(self, connection: Connection, requests: Any, start: int) -> int:
        """Answer one request; return the index of the next."""
        self._effects.proceed(connection, self._respond(connection, requests[start]))
        return start + 1

    def _respond(self, connection: Connection, head: bytes) -> Work[None]:
        response, is_last = yield InThread(Thread.COMPUTE, partial(respond, self._app, head))
        self._effects.send(connection, response)
        if is_last:
            self._effects.close(connection, "the client wants no other answer")


def respond(app: Any, head: bytes) -> tuple[bytes, bool]:
    """Return the response to a request, and whether its connection ends with it."""
    line, *fields = _LINE_END.split(head.decode("latin-1"), maxsplit=1)
    parts, headers = line.split(" "), email.parser.HeaderParser().parsestr("".join(fields))
    has_body = headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in headers
    if len(parts) != 3 or has_body:
        return _encoded("400 Bad Request", [], b""), True
    method, target, version = parts
    path, _, query = target.partition("?")
    environment = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "HTTP_ACCEPT": _understood(headers.get("Accept")),
        "HTTP_ACCEPT_ENCODING": headers.get("Accept-Encoding"),
    }
    started: list[Any] = []
    try:
        body = b"".join(app(environment, lambda *answer: started.extend(answer)))
    except Exception as error:  # It parses what a client sent.
        log.warning("metrics could not be encoded", exc_info=error)
        return _encoded("500 Internal Server Error", [], b""), True
    # The answer to HEAD has a body here, which its client does not expect.
    wishes = {wish.strip().lower() for wish in ",".join(headers.get_all("Connection", [])).split(",")}
    is_last = version != "HTTP/1.1" or "close" in wishes or method == "HEAD"
    status, answer_headers = started
    return _encoded(status, answer_headers, body), is_last


def _understood(accept: str | None) -> str | None:
    """Return an Accept header; None if a version in it is no number."""
    try:
        choose_encoder(accept or "")
    except TypeError:
        return None
    return accept


def _encoded(status: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}"]).encode() + b"\r\n\r\n" + body


class MetricsServer:
    """The metrics, and the server from which Prometheus reads them."""

    def __init__(self, host: str, port: int, tls: TlsByFirstByte | None = None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._metrics = Metrics()
        self._server: Server | None = None

    async def start(self, performer: Performer, broker: Broker) -> None:
        """Listen; ConfigError if the port is not available."""
        translator = MetricsTranslator(broker.kernel.effects, make_wsgi_app(self._metrics.registry))
        entrance = performer.entrance(translator)
        limits = ConnectionLimits(connections_max=2 * CONNECTIONS_MAX, unauthenticated_max=CONNECTIONS_MAX)
        self._server = Server(
            entrance,
            broker.kernel.clock.monotonic_ms,
            reader=HeadReader,
            census=Census(limits),
            tls=self._tls,
        )
        try:
            await self._server.listen(self._host, self._port)
        except ConfigError as error:
            raise ConfigError(
                f"cannot serve metrics on {self._host}:{self._port}: {error} "
                "(metricsPromExporterPort, --metrics-port)"
            ) from None

    async def stop(self) -> None:
        """Stop listening, and close every connection."""
        if self._server is not None:
            await self._server.close()

    def record(self, event: RebalanceEvent) -> None:
        """Count a rebalance event."""
        self._metrics.record(event)

    def sample(self, broker: Broker, connection_count: int, refused: Mapping[Limit, int]) -> None:
        """Set the broker's current values. refused: connections, by the limit that they exceeded."""
        store = broker.store.statistics()
        self._metrics.sample(
            Sample(
                messages_in=store.put_message_count,
                messages_out=store.get_message_count,
                bytes_in=store.put_bytes,
                bytes_out=store.get_bytes,
                held_pulls=len(broker.held),
                connections=connection_count,
                refused={str(limit): count for limit, count in refused.items()},
                longest_turn_us=broker.engine.longest_turn.take_us(METRICS),
                diagnoses=broker.members.health.kinds(),
            )
        )

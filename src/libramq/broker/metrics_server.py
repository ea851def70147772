"""The metrics server: metrics over HTTP (metricsPromExporterPort), and whether the broker is ready; how many
connections it accepts, and how long an HTTP request may be.

A thread encodes the metrics, so that no reader delays the broker. The module is imported only by brokers that
serve metrics.
"""

import email.parser
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import choose_encoder

from libramq.broker.broker import Broker
from libramq.broker.groups.group_lag import GroupLags, GroupProgress, Lag
from libramq.broker.metrics import Metrics, TopicLag
from libramq.broker.request_latency import RequestLatency
from libramq.clock import MonotonicMs
from libramq.errors import ConfigError, RemoteProtocolError
from libramq.groups.diagnosis import Kind, no_members
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Effects, Thread
from libramq.kernel.parts import METRICS
from libramq.kernel.work import InThread, Work
from libramq.logs import get_logger
from libramq.message.names import dlq_topic, retry_topic
from libramq.runtime.performer import Performer
from libramq.transport.admission import Census, ConnectionLimits, Limit
from libramq.transport.server import Server
from libramq.transport.tls import TlsByFirstByte

log = get_logger(__name__)

#: Ours: each Prometheus server keeps one connection. There is no authentication here, so the oldest
#: connection of the address with the most is closed; a client that opens all of them only ends its own.
CONNECTIONS_MAX: Final = 128
#: Ours: a scraper sends some 300 bytes.
HEAD_BYTES_MAX: Final = 16 * 1024
#: Ours: how often the lag of all groups is computed; 50,000 queues take 0.2 s of that.
LAG_MS: Final = 5_000
#: Ours: groups named in the log at once; after a start, 4,500 took 0.14 s of one turn.
LOGGED_MAX: Final = 20
#: RFC 9112, 2.2: a line may end without a carriage return.
_END: Final = re.compile(rb"\r?\n\r?\n")
_END_BYTES_MAX: Final = 4
_LINE_END: Final = re.compile(r"\r?\n")


class HeadReader:
    """Cuts bytes into the heads of requests; none of them may have a body."""

    def __init__(self) -> None:
        self._partial = b""

    @property
    def partial_bytes(self) -> int:
        """Return the size of an unfinished head, in bytes."""
        return len(self._partial)

    def receive(self, data: bytes) -> list[bytes]:
        """Take the bytes that arrived; return the heads that are now complete."""
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
    except Exception as error:  # It parses the client's input.
        log.warning("metrics could not be encoded", exc_info=error)
        return _encoded("500 Internal Server Error", [], b""), True
    # The response to HEAD has a body, which its client does not expect.
    wishes = {wish.strip().lower() for wish in ",".join(headers.get_all("Connection", [])).split(",")}
    is_last = version != "HTTP/1.1" or "close" in wishes or method == "HEAD"
    status, answer_headers = started
    return _encoded(status, answer_headers, body), is_last


def _understood(accept: str | None) -> str | None:
    """Return an Accept header; None if a version in it is not a number."""
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
        self._looking_since_ms: MonotonicMs | None = None
        self._is_looking = False
        self._earliest = -1, -1
        #: The commits of groups without members, and those of these groups that have messages waiting.
        self._committed: dict[str, int] = {}
        self._deserted: dict[str, int] = {}
        self.not_ready: str | None = "it has just started"

    @property
    def registry(self) -> CollectorRegistry:
        """Return all time series."""
        return self._metrics.registry

    def observe(self, broker: Broker) -> None:
        """Count a broker's answers and flushes from now on."""
        latency = RequestLatency(broker.kernel.clock)
        broker.responder.observer = latency.answered
        self._metrics.observe(latency)
        broker.durability.observe_flushes(self._metrics.flushed)

    async def start(self, performer: Performer, broker: Broker) -> None:
        """Listen; ConfigError if the port is not available."""
        self.observe(broker)
        translator = MetricsTranslator(broker.kernel.effects, self._application())
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

    def _application(self) -> Any:
        """Return the WSGI application: /live, /ready, and the metrics at /metrics and /."""
        metrics = make_wsgi_app(self.registry)

        def application(environment: Any, start_response: Any) -> Any:
            path = environment["PATH_INFO"]
            if path in ("/metrics", "/"):
                return metrics(environment, start_response)
            if path not in ("/live", "/ready"):  # Otherwise a probe of a mistyped path would succeed forever.
                start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
                return [b"there are /metrics, /live and /ready\n"]
            # The loop has taken the request, so it is alive.
            reason = self.not_ready if path == "/ready" else None
            status = "200 OK" if reason is None else "503 Service Unavailable"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{reason or path.removeprefix('/')}\n".encode()]

        return application

    def sample(
        self, broker: Broker, connection_count: int, refused: Mapping[Limit, int], longest_wait_us: int
    ) -> None:
        """Set the broker's current values; called each second. refused: connections, by limit."""
        store, wall_ms = broker.store.statistics(), int(broker.kernel.clock.wall_ms())
        if self._earliest[0] != store.min_physical_offset or self._earliest[1] <= 0:  # This reads the disk.
            self._earliest = store.min_physical_offset, broker.store.earliest_log_time()
        earliest_ms = self._earliest[1]
        now_ms = broker.kernel.clock.monotonic_ms()
        refusal = None
        if not broker.store.config.is_copy:  # A slave stores whatever its master has accepted.
            refusal = broker.sends.sending.disk_space.refusal(now_ms)
        refusal = refusal or store.failure
        diagnoses = {group: set(kinds) for group, kinds in broker.members.health.kinds().items()}
        for group in self._deserted:
            diagnoses.setdefault(group, set()).add(Kind.NO_MEMBERS.value)
        self._metrics.sample(
            {
                "messages_in": store.put_message_count,
                "messages_out": store.get_message_count,
                "bytes_in": store.put_bytes,
                "bytes_out": store.get_bytes,
                "held_pulls": len(broker.held),
                "connections": connection_count,
                "longest_turn_s": broker.engine.longest_turn.take_us(METRICS) / 1e6,
                "longest_wait_s": longest_wait_us / 1e6,
                "log_bytes": store.max_physical_offset - store.min_physical_offset,
                "unflushed_bytes": store.max_physical_offset - store.flushed_offset,
                "kept_ms": max(0, wall_ms - earliest_ms) if earliest_ms > 0 else 0,
                "disk_used": _disk_used(broker),
                "refuses": refusal is not None,
            },
            refused={str(limit): count for limit, count in refused.items()},
            diagnoses=diagnoses,
        )
        self.not_ready = _not_ready(broker, refusal)
        self._look(broker)

    def _look(self, broker: Broker) -> None:
        """Begin to compute the lag of all groups, if it is time."""
        now_ms = broker.kernel.clock.monotonic_ms()
        since_ms = self._looking_since_ms
        if self._is_looking or (since_ms is not None and now_ms - since_ms < LAG_MS):
            return
        self._is_looking, self._looking_since_ms = True, now_ms
        broker.kernel.work(self._look_at_lags(broker))

    def _look_at_lags(self, broker: Broker) -> Work[None]:
        members, files = broker.members, broker.files
        lags = GroupLags(broker.store, files.tables, broker.offsets, members.consumers, files.pop.in_flight)
        try:
            found = yield from lags.look(sorted(broker.offsets.groups() | set(broker.groups.names())))
        finally:
            self._is_looking = False
        self._took(found, int(broker.kernel.clock.wall_ms()))
        yield from members.retries.look()
        self._metrics.retries(_retries(broker.groups.names(), found, members.retries.waiting()))
        store = broker.store
        self._metrics.dead_letters(
            (group, store.max_offset(dlq_topic(group), 0)) for group in broker.groups.names()
        )

    def _took(self, found: Mapping[str, GroupProgress], wall_ms: int) -> None:
        """Publish the progress of all groups."""
        self._metrics.progress(
            (
                TopicLag(group, topic, lag.messages, _age_ms(lag, wall_ms))
                for group, progress in found.items()
                for topic, lag in progress.lags.items()
            ),
            {group: each.queue_count for group, each in found.items() if not each.has_members},
        )
        # A client that commits without being a member has chosen its queues itself.
        deserted = {
            group: each.messages
            for group, each in found.items()
            if not each.has_members and each.waits and self._committed.get(group) == each.committed
        }
        begun = sorted(deserted.keys() - self._deserted.keys())
        for group in begun[:LOGGED_MAX]:
            log.warning(
                "group", group=group, diagnosis=Kind.NO_MEMBERS, text=no_members(deserted[group]).text
            )
        if len(begun) > LOGGED_MAX:
            log.warning("more groups", diagnosis=Kind.NO_MEMBERS, count=len(begun) - LOGGED_MAX)
        ended = sorted(self._deserted.keys() - deserted.keys())
        for group in ended[:LOGGED_MAX]:
            log.info("group is healthy again", group=group, diagnosis=Kind.NO_MEMBERS)
        if len(ended) > LOGGED_MAX:
            log.info(
                "more groups are healthy again", diagnosis=Kind.NO_MEMBERS, count=len(ended) - LOGGED_MAX
            )
        self._deserted = deserted
        self._committed = {group: each.committed for group, each in found.items() if not each.has_members}


def _age_ms(lag: Lag, wall_ms: int) -> int | None:
    if lag.messages == 0:
        return 0
    return None if lag.oldest_ms is None else max(0, wall_ms - lag.oldest_ms)


def _retries(
    groups: Iterable[str],
    found: Mapping[str, GroupProgress],
    waiting: Mapping[str, Mapping[int, int]] | None,
) -> Iterator[tuple[str, int | None]]:
    """Yield how many messages of each group wait for another attempt: for their delay, then for a handler."""
    for group in groups:
        lag = found[group].lags.get(retry_topic(group)) if group in found else None
        is_known = waiting is not None and (lag is None or lag.messages is not None)
        between = sum((waiting or {}).get(group, {}).values())
        yield group, between + (0 if lag is None else lag.messages or 0) if is_known else None


def _disk_used(broker: Broker) -> float | None:
    """Return the used share of the fullest disk; None if that is unknown."""
    try:
        return max(map(broker.files.filesystem.used_percent, broker.store.config.disks)) / 100
    except OSError:
        return None


def _not_ready(broker: Broker, refusal: str | None) -> str | None:
    """Return why clients cannot use a broker; None if they can. refusal: why no message is stored."""
    if broker.store.lost is not None:
        return f"the store is lost: {broker.store.lost}"
    if refusal is not None:
        return f"no message is stored: {refusal}"
    return None if broker.registration.is_registered else "no name server knows this broker"

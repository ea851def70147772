"""The link: a simulated Kafka client's connection to one broker, with the bytes of the real codec.

ask ─► connect, if need be ─► ApiVersions, as every client's first request ─► the request ─► answered
    └─► refused, broken or without an answer in time: answered(None), and the connection is gone
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from libramq.errors import RemoteError
from libramq.runtime.seams import Link
from libramq.testing.history import Violation
from libramq.testing.machine.network import Network, SimulatedDialer
from libramq.testing.machine.process import Process
from libramq.testing.machine.virtual_time import Event
from libramq.wire.kafka.api import API_VERSIONS, APIS, Api
from libramq.wire.kafka.apis.handshake import ApiVersionsRequest
from libramq.wire.kafka.primitives import Reader, encode_int16, encode_int32
from libramq.wire.kafka.schema import Message, Request, decode, encode

#: The answer, or None.
Answered = Callable[[Any], None]

#: Ours: less than clients wait (request.timeout.ms is 30 s), so that faults take a simulation less time.
ANSWER_MS_MAX: Final = 4_000
#: Clients whose answers come in the order of their requests, and those that find them by their numbers.
JAVA: Final = "apache-kafka-java"
LIBRDKAFKA: Final = "librdkafka"

_APIS: Final = {api.request: api for api in APIS.values()}


class _Pending(NamedTuple):
    kind: type[Message]
    version: int
    is_flexible: bool
    has_tags: bool
    answered: Answered
    timer: Event


class KafkaLink:
    """One connection, made again after its end when something is sent. software: the client's name."""

    def __init__(
        self, network: Network, process: Process, address: str, *, client_id: str, software: str
    ) -> None:
        self.address = address
        self._network = network
        self._process = process
        self._client_id = client_id.encode()
        self._software = software
        self._current: _Current | None = None

    def ask(self, request: Request, answered: Answered) -> None:
        """Send a request in its highest version."""
        if self._current is None:
            self._current = _Current(self._process, self._client_id, self._software, self._ended)
            dialer = SimulatedDialer(self._network, self._process)
            dialer.dial(self.address, self._current)
        self._current.ask(request, answered)

    def close(self) -> None:
        """End the connection, and whatever waits for an answer."""
        if self._current is not None:
            self._current.close()

    def _ended(self, current: "_Current") -> None:
        if self._current is current:
            self._current = None


class _Current:
    """The connection as it is; a `runtime.seams.Dialed`."""

    def __init__(
        self, process: Process, client_id: bytes, software: str, when_ended: Callable[["_Current"], None]
    ) -> None:
        self._process = process
        self._client_id = client_id
        self._software = software
        self._when_ended = when_ended
        self._link: Link | None = None
        self._is_over = False
        self._pending: dict[int, _Pending] = {}
        self._unsent: list[bytes] = []
        self._correlation = 0
        self._data = bytearray()
        self.ask(
            ApiVersionsRequest(client_software_name=software, client_software_version="1"), lambda _: None
        )

    def ask(self, request: Request, answered: Answered) -> None:
        """Send a request once the connection stands."""
        api = _APIS[type(request)]
        self._correlation += 1
        is_flexible = api.is_flexible(api.last)
        timer = self._process.after(ANSWER_MS_MAX, self.close)
        self._pending[self._correlation] = _Pending(
            _response_of(api), api.last, is_flexible, is_flexible and api.key != API_VERSIONS, answered, timer
        )
        body = b"".join((
            encode_int16(api.key), encode_int16(api.last), encode_int32(self._correlation),
            encode_int16(len(self._client_id)), self._client_id, b"\0" if is_flexible else b"",
            encode(request, api.last, is_flexible),
        ))  # fmt: skip
        frame = encode_int32(len(body)) + body
        if self._link is None:
            self._unsent.append(frame)
        else:
            self._link.write(frame)

    def opened(self, link: Link) -> None:
        """Take the connection."""
        self._link = link
        if self._is_over:
            link.close()
            return
        unsent, self._unsent = self._unsent, []
        link.write(b"".join(unsent))

    def refused(self, error: RemoteError) -> None:
        """Handle a connection that could not be made."""
        self._end()

    def ended(self, reason: str) -> None:
        """Handle the end."""
        self._end()

    def close(self) -> None:
        """End it, as a client does whose request has no answer in time."""
        if self._link is not None:
            self._link.close()
        self._end()

    def received(self, data: bytes) -> None:
        """Take bytes."""
        self._data += data
        while not self._is_over and len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4])
            if len(self._data) < end:
                return
            frame = bytes(self._data[4:end])
            del self._data[:end]
            self._answered(frame)

    def _answered(self, frame: bytes) -> None:
        reader = Reader(frame)
        number = reader.int32()
        if self._software == JAVA and number != next(iter(self._pending)):
            raise Violation(
                "Kafka's answers come in order", f"{number} came before {next(iter(self._pending))}"
            )
        pending = self._pending.pop(number)
        pending.timer.cancel()
        if pending.has_tags:
            reader.skip_tags()
        response = decode(pending.kind, pending.version, pending.is_flexible, reader)
        reader.finish()
        pending.answered(response)

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._when_ended(self)
        waiting, self._pending = self._pending, {}
        for pending in waiting.values():
            pending.timer.cancel()
            self._process.after(0, partial(pending.answered, None))


def _response_of(api: Api) -> type[Message]:
    name = api.request.__name__.replace("Request", "Response")
    kind: type[Message] = getattr(sys.modules[api.request.__module__], name)
    return kind

"""Answers: sent in the order of their requests. Limits the waiting requests of a connection, and processes
requests with many elements in steps.

    request 1 ─► Slot (waits)      nothing is sent
    request 2 ─► Slot (ready)      nothing is sent: 1 comes first
    1 is ready                     both are sent

A held heartbeat of librdkafka may be answered after later requests.

An unfinished slot is parked in the purgatory, so it disappears with its connection.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar

from libramq.kernel.connection import Connection, Principal
from libramq.kernel.effect import Effects, Thread
from libramq.kernel.purgatory import Parked, Purgatory
from libramq.kernel.work import InThread, Work
from libramq.logs import get_logger
from libramq.wire.kafka.api import Call
from libramq.wire.kafka.schema import Message, Request

log = get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M", bound=Callable[..., None])
P = ParamSpec("P")

#: Ours: elements of an answer that are encoded on the loop, at a few microseconds each; larger answers are
#: encoded on a thread.
ENCODED_AT_ONCE_MAX: Final = 100
#: Ours: unanswered requests of a connection. Clients have five in flight, librdkafka a few more; a held fetch
#: blocks those behind it, as in Kafka.
WAITING_MAX: Final = 1_000
#: Ours: bytes of a connection's answers that wait for an earlier one.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
#: Ours: memory of a connection's waiting requests: eight fetches of 10,000 partitions. One request may always
#: wait. Record bytes are not counted: librdkafka has an unlimited number in flight.
WAITING_COST_MAX: Final = 32 * 1024 * 1024

#: Clients that match answers to requests by number, in any order (librdkafka's `rd_kafka_waitresp_find`; all
#: of these are built on librdkafka). Java clients close the connection.
UNORDERED: Final = ("librdkafka", "confluent-kafka")
#: Clients whose heartbeats may be held, because they send other requests on the connection meanwhile. Sarama
#: and kafkajs do not: their fetches and commits would have to wait.
PATIENT: Final = (*UNORDERED, "apache-kafka-java", "kgo")


Serve = Callable[[Any, "Slot"], None]


def serves(request: type[Request]) -> Callable[[M], M]:
    """Mark the method of a service that answers a request."""

    def mark(method: M) -> M:
        setattr(method, _REQUEST, request)
        return method

    return mark


_REQUEST: Final = "serves"


def served_by(services: Iterable[object]) -> dict[type[Request], Serve]:
    """Return the services' methods by the type of request that they answer."""
    return {
        request: getattr(service, name)
        for service in services
        for name, method in vars(type(service)).items()
        if (request := getattr(method, _REQUEST, None)) is not None
    }


@dataclass(eq=False, slots=True)
class Slot(Parked):
    """The place of one answer. is_apart: later requests may be answered before it."""

    call: Call | None
    _answers: "Answers"
    data: bytes | None = None
    is_apart: bool = False

    @property
    def principal(self) -> Principal:
        """Return the sender of the request."""
        return self.connection.principal

    @property
    def version(self) -> int:
        """Return the version of the request."""
        assert self.call is not None, "a request has a call"
        return self.call.header.version

    @property
    def is_ordered(self) -> bool:
        """Return whether the client needs its answers in the order of its requests."""
        return self._answers.is_ordered(self.connection)

    @property
    def is_patient(self) -> bool:
        """Return whether the client's heartbeats may be held."""
        return self._answers.is_patient(self.connection)

    def answer(self, response: Message) -> None:
        """Send an answer once all earlier ones have been sent."""
        assert self.call is not None, "an answer in the request's version needs the request"
        self.send(self.call.answer(response))

    def answer_with(self, make: Callable[[], Message], count: int = 0, *, is_large: bool = False) -> None:
        """Send the answer that `make` returns; a large one is made and encoded on a thread.

        count: the number of its elements, which may make it large.
        """
        call = self.call
        assert call is not None, "an answer in the request's version needs the request"
        if is_large or count > ENCODED_AT_ONCE_MAX:
            self.proceed(self._send_encoded(lambda: call.answer(make())))
        else:
            self.send(call.answer(make()))

    def each(
        self,
        items: Sequence[T],
        work: Callable[[T], R],
        done: Callable[[list[R]], None],
        at_once_max: int = 1,
    ) -> None:
        """Do the work for each item, as many in a turn as it has time for; call `done` with the results.

        Other connections are served in between, so `work` checks its preconditions for each item.
        at_once_max: up to this many items are all processed now.
        """
        if len(items) <= at_once_max:
            done([work(item) for item in items])
        else:
            self.proceed(self._steps(items, work, done))

    def begin_each(
        self,
        items: Sequence[T],
        begin: Callable[[T, Callable[[R], None]], None],
        done: Callable[[list[R]], None],
    ) -> None:
        """Begin the work for each item; call `done` with the results, in order, once all have arrived."""
        results: Results[R] = Results(len(items), self.guarded(done))
        self.each(
            list(enumerate(items)),
            lambda each: begin(each[1], partial(results.put, each[0])),
            lambda _: None,
        )

    def answer_each(
        self, items: Sequence[T], work: Callable[[T], R], respond: Callable[[list[R]], Message]
    ) -> None:
        """Do the work for each item, and answer with the results; a large answer is made on a thread."""
        self.each(items, work, lambda results: self.answer_with(lambda: respond(results), len(results)))

    def _steps(
        self, items: Sequence[T], work: Callable[[T], R], done: Callable[[list[R]], None]
    ) -> Work[None]:
        results: list[R] = []
        for item in items:
            results.append(work(item))
            yield None
        done(results)

    def _send_encoded(self, encode: Callable[[], bytes]) -> Work[None]:
        self.send((yield InThread(Thread.COMPUTE, encode)))

    def proceed(self, steps: Work[None]) -> None:
        """Do long-running work for the answer; a failure ends the connection."""
        self._answers.proceed(self.connection, self._guarded(steps))

    def _guarded(self, steps: Work[None]) -> Work[None]:
        try:
            yield from steps
        except Exception as error:
            self.fail(error)

    def send(self, data: bytes) -> None:
        """Send the bytes of an answer; empty if the client expects none."""
        assert self.data is None, "answered twice"
        self.data = data
        self._answers.ready(self)

    def drop(self, reason: str) -> None:
        """End the connection without an answer."""
        self._answers.end(self.connection, reason)

    def fail(self, error: Exception) -> None:
        """End the connection: making the answer failed, which is a bug of ours."""
        log.error("a Kafka request failed", peer=self.connection.address, exc_info=error)
        self.drop("a request failed")

    def step_aside(self) -> None:
        """Allow later requests to be answered first, if the client does not need the order."""
        self._answers.take_apart(self)

    def guarded(self, work: Callable[P, None]) -> Callable[P, None]:
        """Wrap later work for the answer: skip it on a closed connection; a failure ends the connection."""

        def guarded(*arguments: P.args, **options: P.kwargs) -> None:
            if not self.connection.is_open:
                return
            try:
                work(*arguments, **options)
            except Exception as error:
                self.fail(error)

        return guarded


class Answers:
    """The slots of all connections, in order. Connections without waiting answers have no entry."""

    def __init__(self, effects: Effects, purgatory: Purgatory) -> None:
        self._effects = effects
        self._purgatory = purgatory
        self._waiting: dict[Connection, deque[Slot]] = {}
        self._bytes: dict[Connection, int] = {}
        #: The software of patient clients.
        self._software: dict[Connection, str] = {}

    def client_named(self, connection: Connection, software: str) -> None:
        """Note the name of a client's software, which determines the possible orders of its answers."""
        if not software.startswith(PATIENT) or not connection.is_open:
            return
        if connection in self._software:
            self._software[connection] = software
        elif self._purgatory.has_room(connection):
            self._software[connection] = software
            self._purgatory.park(Parked(connection), unlink=self._ended)

    def _ended(self, parked: Parked) -> None:
        self._software.pop(parked.connection, None)

    def is_ordered(self, connection: Connection) -> bool:
        """Return whether a client needs its answers in the order of its requests."""
        return not self._software.get(connection, "").startswith(UNORDERED)

    def is_patient(self, connection: Connection) -> bool:
        """Return whether a client's heartbeats may be held."""
        return connection in self._software

    def take_apart(self, slot: Slot) -> None:
        """Allow later answers to be sent before this one, if the client does not need the order."""
        waiting = self._waiting.get(slot.connection)
        if slot.is_ordered or waiting is None or slot not in waiting:
            return
        slot.is_apart = True
        waiting.remove(slot)
        if not waiting:
            self.forget(slot.connection)

    def proceed(self, connection: Connection, steps: Work[None]) -> None:
        """Do long-running work for an answer."""
        self._effects.proceed(connection, steps)

    def open(self, connection: Connection, call: Call | None) -> Slot:
        """Return the place for the answer to a request."""
        slot = Slot(connection, call, self, cost_bytes=call.cost_bytes if call is not None else 0)
        self._waiting.setdefault(connection, deque()).append(slot)
        return slot

    def park(self, slot: Slot) -> None:
        """Park a slot that its request did not fill at once; end a connection with too many."""
        if slot.data is not None:
            return
        if not slot.connection.is_open:
            self.forget(slot.connection)
            return
        waiting = self._waiting.get(slot.connection, ())
        cost_bytes = sum(each.cost_bytes for each in waiting if each.data is None)
        is_costly = cost_bytes > max(WAITING_COST_MAX, slot.cost_bytes)
        is_full = len(waiting) > WAITING_MAX or is_costly
        if is_full or not self._purgatory.has_room(slot.connection, slot.cost_bytes):
            self._effects.close(slot.connection, f"{len(waiting)} of its requests wait for answers")
        self._purgatory.park(slot, unlink=self._unlink)

    def _unlink(self, slot: Slot) -> None:
        """Drop the connection's slots if it ended before this one was answered."""
        if slot.data is None and not slot.is_apart:
            self.forget(slot.connection)

    def ready(self, slot: Slot) -> None:
        """Send a ready answer, and those that waited for it, unless it must wait itself."""
        self._purgatory.release(slot)
        connection = slot.connection
        if slot.is_apart:
            assert slot.data is not None
            self._effects.send(connection, slot.data)
            return
        waiting = self._waiting.get(connection)
        if waiting is None:  # The connection has ended.
            return
        while waiting and waiting[0].data is not None:
            first = waiting.popleft()
            if first.data:
                self._effects.send(connection, first.data)
        if not waiting:
            self.forget(connection)
        elif slot in waiting:
            assert slot.data is not None
            held = self._bytes[connection] = self._bytes.get(connection, 0) + len(slot.data)
            if held > WAITING_BYTES_MAX:
                self._effects.close(connection, f"{held} bytes of answers wait for an earlier one")
        else:
            self._bytes[connection] = sum(len(each.data) for each in waiting if each.data is not None)

    def end(self, connection: Connection, reason: str) -> None:
        """End a connection; its waiting answers are not sent."""
        self.forget(connection)
        self._effects.close(connection, reason)

    def forget(self, connection: Connection) -> None:
        """Drop the slots of a connection."""
        self._waiting.pop(connection, None)
        self._bytes.pop(connection, None)


class Results(Generic[R]):
    """The results of a request's parts, arriving in any order. done: called with all of them, in order."""

    def __init__(self, count: int, done: Callable[[list[R]], None]) -> None:
        self._count = count
        self._done = done
        self._results: dict[int, R] = {}
        if not count:
            done([])

    def put(self, at: int, result: R) -> None:
        """Take the result of one part."""
        self._results[at] = result
        if len(self._results) == self._count:
            self._done([self._results[each] for each in range(self._count)])

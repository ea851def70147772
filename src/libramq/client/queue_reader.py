"""The queue reader: exact stretches of queues, for synchronous code that keeps its own positions.

It belongs to no consumer group's membership and commits nothing. Stretches are pulled with several
requests in flight, because Apache's brokers give at most 32 messages a pull (8 when they must go to
disk) and the offsets of a queue are dense: the next pull can be sent before the last one is answered.

    ask [0,32) [32,64) [64,96) …  ──►  replies in that order; a short one is topped up before the next

Upstream: store/DefaultMessageStore.getMessage (limits), client/impl/consumer/PullAPIWrapper.java.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeVar

from libramq.clock import SystemClock
from libramq.codes import ResponseCode
from libramq.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    LibraError,
    NameServerUnavailable,
    RemoteError,
    RequestTimeout,
    RouteNotFound,
    SystemBusy,
    TopicNotExist,
)
from libramq.message.queue import MessageQueue
from libramq.remoting.body.route import TopicRouteData
from libramq.remoting.headers import PullMessageHeader
from libramq.rpc.broker_calls import PULL_SUBSCRIPTION, PullReply, max_offset, min_offset, pull_message
from libramq.rpc.call import Call
from libramq.rpc.name_server_calls import topic_route
from libramq.transport.blocking import BlockingRemote

T = TypeVar("T")
Lost = Callable[[MessageQueue, int, int], None]

PERM_READ: Final = 4  # PermName.java.
CHUNK_MAX: Final = 1024  # Messages asked for in one pull; Apache answers 32, ours what fits.
REPLY_BYTES_MAX: Final = 1024 * 1024  # A quarter of the largest body; one message is always given.
DEPTH: Final = 16  # Pulls in flight for one queue.
GROW_AFTER: Final = 64  # Full replies before more is asked for at once.
TRIES: Final = 5
PAUSES_SECONDS: Final = (0.1, 0.5, 1.0, 2.0)  # Between the tries: a broker that restarts is back by then.
PASSING: Final = (ConnectFailed, ConnectionLost, RequestTimeout, SystemBusy)


class MessagesLost(LibraError):
    """Messages that were to be read are no longer, or not, at their broker."""

    def __init__(self, queue: MessageQueue, start: int, end: int) -> None:
        super().__init__(
            f"queue {queue} no longer holds the messages from offset {start} to {end} (deleted by age, "
            "or the topic was created anew)"
        )
        self.queue, self.start, self.end = queue, start, end

    def __reduce__(self) -> tuple[type["MessagesLost"], tuple[MessageQueue, int, int]]:
        return MessagesLost, (self.queue, self.start, self.end)


class Stretch(NamedTuple):
    """The records of one reply, back to back, and which offsets [start, end) they are to cover."""

    queue: MessageQueue
    start: int
    end: int
    body: bytes


def refuse_loss(queue: MessageQueue, start: int, end: int) -> None:
    raise MessagesLost(queue, start, end)


class QueueReader:
    """Blocking and for one thread. Connections are made when needed and kept."""

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        group: str,
        timeout_ms: int = 10_000,
        monotonic_ms: Callable[[], int] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not name_servers:
            raise ConfigError("no name server given")
        self._name_servers = list(name_servers)
        self._group = group
        self._timeout_ms = timeout_ms
        self._monotonic_ms = monotonic_ms or SystemClock().monotonic_ms
        self._sleep = sleep
        self._remotes: dict[str, BlockingRemote] = {}
        self._addresses: dict[str, str] = {}  # Broker name → address.

    def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, as the name server knows them now."""
        route = self._route(topic)
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ and data.broker_name in self._addresses
            for queue_id in range(data.read_queue_nums)
        )

    def max_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The offset that the next message of each queue will get."""
        return self._each(queues, max_offset)

    def min_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The offset of the oldest message of each queue."""
        return self._each(queues, min_offset)

    def reachable_max_offsets(
        self, queues: Iterable[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], list[LibraError]]:
        """As `max_offsets`, without the queues of brokers that do not answer, and why they do not."""
        found: dict[MessageQueue, int] = {}
        failures: list[LibraError] = []
        for broker_name, group in groupby(sorted(queues, key=_broker_name), key=_broker_name):
            try:
                found |= self._ask(list(group), max_offset)
            except PASSING as error:
                self._disconnect(broker_name)
                failures.append(error)
        return found, failures

    def read(
        self, queue: MessageQueue, start: int, end: int, *, lost: Lost = refuse_loss
    ) -> Iterator[Stretch]:
        """The records with offsets [start, end), in order, a reply at a time.

        `lost` is called with each stretch that the broker does not have; when it returns, reading goes
        on behind the stretch.
        """
        position = start
        failures = 0
        while position < end:
            try:
                for stretch in self._read_once(queue, position, end, lost):
                    position, failures = stretch.end, 0
                    if stretch.body:
                        yield stretch
            except PASSING:
                failures += 1
                if failures == TRIES:
                    raise
                self._disconnect(queue.broker_name)
                self._sleep(PAUSES_SECONDS[failures - 1])

    def close(self) -> None:
        for remote in self._remotes.values():
            remote.close()
        self._remotes.clear()

    def _read_once(self, queue: MessageQueue, start: int, end: int, lost: Lost) -> Iterator[Stretch]:
        """Over one connection. The first pull goes alone and tells what a reply holds."""
        remote = self._broker(queue)
        in_flight: deque[_Asked] = deque()
        chunk, depth, full_replies = CHUNK_MAX, 1, 0
        asked = start
        try:
            while asked < end or in_flight:
                while asked < end and len(in_flight) < depth:
                    stop = min(asked + chunk, end)
                    in_flight.append(self._ask_for(remote, queue, asked, stop))
                    asked = stop
                depth = DEPTH
                call, number, position, stop = in_flight[0]
                reply = self._answer(remote, call, number)
                in_flight.popleft()
                reached = _reached(queue, position, stop, reply, lost)
                yield Stretch(
                    queue, position, reached, reply.body if reply.code == ResponseCode.SUCCESS else b""
                )
                if reached == stop:
                    full_replies += 1
                    if full_replies >= GROW_AFTER:
                        chunk, full_replies = min(2 * chunk, CHUNK_MAX), 0
                    continue
                chunk, full_replies = max(1, reached - position), 0
                if in_flight:  # The rest of this stretch comes before those already asked for.
                    in_flight.appendleft(self._ask_for(remote, queue, reached, stop))
                else:
                    asked = reached
        finally:
            if in_flight:  # Left in the middle: nobody will take the answers that are still to come.
                self._disconnect(queue.broker_name)

    def _ask_for(self, remote: BlockingRemote, queue: MessageQueue, start: int, stop: int) -> "_Asked":
        call = self._pull(queue, start, stop - start)
        return _Asked(call, remote.start(call.command(), timeout_ms=self._timeout_ms), start, stop)

    def _answer(self, remote: BlockingRemote, call: Call[T], number: int) -> T:
        return call.result(remote.finish(number, timeout_ms=self._timeout_ms), where=remote.address)

    def _pull(self, queue: MessageQueue, offset: int, count: int) -> Call[PullReply]:
        return pull_message(
            PullMessageHeader(
                consumer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                max_msg_nums=count,
                sys_flag=PULL_SUBSCRIPTION,
                subscription="*",
                expression_type="TAG",
                max_msg_bytes=REPLY_BYTES_MAX,
            )
        )

    def _each(
        self, queues: Iterable[MessageQueue], call_of: Callable[[MessageQueue], Call[T]]
    ) -> dict[MessageQueue, T]:
        """One question about each queue; asked again after a lost connection."""
        queues = list(queues)
        for pause in PAUSES_SECONDS:
            try:
                return self._ask(queues, call_of)
            except PASSING:
                for name in {queue.broker_name for queue in queues}:
                    self._disconnect(name)
                self._sleep(pause)
        return self._ask(queues, call_of)

    def _ask(
        self, queues: Sequence[MessageQueue], call_of: Callable[[MessageQueue], Call[T]]
    ) -> dict[MessageQueue, T]:
        """All questions in flight at once. A failure leaves answers behind: the caller disconnects."""
        started = []
        for queue in queues:
            remote, call = self._broker(queue), call_of(queue)
            started.append((queue, remote, call, remote.start(call.command(), timeout_ms=self._timeout_ms)))
        return {queue: self._answer(remote, call, number) for queue, remote, call, number in started}

    def _route(self, topic: str) -> TopicRouteData:
        failures = []
        for address in list(self._name_servers):
            call = topic_route(topic)
            try:
                reply = self._remote(address).call(call.command(), timeout_ms=self._timeout_ms)
                route = call.result(reply, where=f"name server {address}")
            except TopicNotExist:
                raise RouteNotFound(
                    f"name server {address} knows no topic {topic}; create it "
                    f"(libra admin updateTopic -n {address} -c CLUSTER -t {topic}) or check its name"
                ) from None
            except RemoteError as error:
                self._forget(address)
                self._name_servers.remove(address)  # Ask it last the next time.
                self._name_servers.append(address)
                failures.append(str(error))
                continue
            for broker in route.broker_datas:
                broker_address = broker.master_address or broker.any_address
                if broker_address is not None:
                    self._addresses[broker.broker_name] = broker_address
            return route
        raise NameServerUnavailable(f"no name server answered: {'; '.join(failures)}")

    def _broker(self, queue: MessageQueue) -> BlockingRemote:
        if queue.broker_name not in self._addresses:
            self._route(queue.topic)
        address = self._addresses.get(queue.broker_name)
        if address is None:
            raise ConnectFailed(f"no broker {queue.broker_name} is registered for topic {queue.topic}")
        return self._remote(address)

    def _remote(self, address: str) -> BlockingRemote:
        remote = self._remotes.get(address)
        if remote is None:
            remote = self._remotes[address] = BlockingRemote(address, self._monotonic_ms)
        return remote

    def _disconnect(self, broker_name: str) -> None:
        """Forget the connection, and the address too: the broker may come back elsewhere."""
        address = self._addresses.pop(broker_name, None)
        if address is not None:
            self._forget(address)

    def _forget(self, address: str) -> None:
        remote = self._remotes.pop(address, None)
        if remote is not None:
            remote.close()


class _Asked(NamedTuple):
    call: Call[PullReply]
    number: int
    start: int
    stop: int


def _broker_name(queue: MessageQueue) -> str:
    return queue.broker_name


def _reached(queue: MessageQueue, position: int, stop: int, reply: PullReply, lost: Lost) -> int:
    """How far a reply brings us, at most to `stop`; what it skips is reported as lost."""
    if reply.code == ResponseCode.SUCCESS and reply.body:
        return max(position + 1, min(reply.next_offset, stop))
    if position < reply.min_offset:
        reached = min(reply.min_offset, stop)
    elif position >= reply.max_offset or reply.next_offset <= position:
        reached = stop  # Beyond what the broker has: its end was cut.
    else:
        reached = min(reply.next_offset, stop)
    lost(queue, position, reached)
    return reached

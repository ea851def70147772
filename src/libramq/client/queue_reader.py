"""The queue reader: exact ranges of queues for synchronous code that keeps its own positions (Spark): how
many pulls are in flight, how large they are, which filters and answers it does not trust (such as a slave's
without the topic), and how it handles lost messages.

It joins no consumer group and commits nothing. Ranges are pulled with several requests in flight, because
Apache's brokers return at most 32 messages per pull (8 if they must read the disk) and the offsets of a queue
are dense: the next pull can be sent before the last one is answered.

        ask [0,32) [32,64) [64,96) …  ──►  replies in that order; a short one is completed before the next

LibraMQ's brokers return as many messages as fit in REPLY_BYTES_MAX. With a filter the end of a reply is
unpredictable, so only one pull is in flight.

Upstream: store/DefaultMessageStore.getMessage (limits), client/impl/consumer/PullAPIWrapper.java.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from libramq.client.blocking_cluster import AWAY, PASSING, USUAL, BlockingCluster, Timeouts
from libramq.client.identity import local_address, new_client_id
from libramq.clock import SystemClock
from libramq.codes import ResponseCode
from libramq.errors import (
    ConnectionLost,
    LibraError,
    RequestCodeNotSupported,
    RouteNotFound,
    TopicNotExist,
)
from libramq.filter.subscription import Sql, SubscriptionData, kind_of, selector
from libramq.message.inner_batch import decode_pulled
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.remoting.headers import PullMessageHeader
from libramq.rpc.broker_calls import (
    PULL_SUBSCRIPTION,
    PullReply,
    QueueEnd,
    check_subscription,
    min_offset,
    pull_message,
    queue_end,
    search_offset,
)
from libramq.rpc.call import Call
from libramq.transport.access import OPEN, Access
from libramq.transport.blocking import BlockingRemote

OnLost = Callable[[MessageQueue, int, int], None]

CHUNK_MAX: Final = 8192  # Messages requested by one pull; Apache returns 32, LibraMQ what fits.
#: An eighth of the largest frame, and more than Apache's clients request, which makes LibraMQ's brokers
#: answer in bulk. With half as much a Spark task takes a fifth longer per row; twice as much gains little.
REPLY_BYTES_MAX: Final = 2 * 1024 * 1024
DEPTH: Final = 16  # Pulls in flight for one queue.
IN_FLIGHT_BYTES: Final = 4 * REPLY_BYTES_MAX  # Limits DEPTH if replies are large: more would gain nothing.
SAMPLE: Final = 32  # Messages that are pulled to measure the size of messages.
SAMPLE_BYTES: Final = 128 * 1024  # The most bytes of such a sample.
#: Ours: a reply that exceeds the requested count by more than an eighth of it consists of large batches.
OVERSHOT: Final = 8
GROW_AFTER: Final = 64  # Full replies before larger pulls are tried.


class PullFilter(NamedTuple):
    """A filter that brokers apply. kind: TAG or SQL92, as in ExpressionType.java; `of` takes both forms."""

    expression: str = "*"
    kind: str = "TAG"

    @classmethod
    def of(cls, expression: str | Sql) -> "PullFilter":
        """Return the filter of a text with tags, or of an Sql."""
        selected = selector(expression)
        return cls(selected.expression, kind_of(selected))

    @property
    def is_everything(self) -> bool:
        """Return whether the filter passes every message."""
        return self.expression == "*"


EVERYTHING: Final = PullFilter()


class MessagesLost(LibraError):
    """Messages to be read are missing at their broker."""

    def __init__(self, queue: MessageQueue, start: int, end: int) -> None:
        super().__init__(
            f"queue {queue} no longer holds the messages from offset {start} to {end} (deleted by age, "
            "or the topic was created again)"
        )
        self.queue, self.start, self.end = queue, start, end

    def __reduce__(self) -> tuple[type["MessagesLost"], tuple[MessageQueue, int, int]]:
        return MessagesLost, (self.queue, self.start, self.end)


class Stretch(NamedTuple):
    """The records of one reply, back to back, and the offsets [start, end) that they cover.

    Inner batches are whole (`message.inner_batch`): they may begin before `start`, and end after `end`.
    """

    queue: MessageQueue
    start: int
    end: int
    body: bytes

    def messages(self) -> Iterator[MessageExt]:
        """Yield the messages of these offsets; raises RemoteProtocolError for a truncated body."""
        pulled = decode_pulled(self.body, self.start, check_crc=False, broker_name=self.queue.broker_name)
        return (message for message in pulled if self.start <= message.queue_offset < self.end)


def refuse_loss(queue: MessageQueue, start: int, end: int) -> None:
    raise MessagesLost(queue, start, end)


class QueueReader(BlockingCluster):
    """A cluster whose queues are read in ranges. Blocking, for one thread.

    group: the consumer group in the pull requests. pull_filter: applied by the brokers.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        group: str,
        pull_filter: PullFilter = EVERYTHING,
        timeouts: Timeouts = USUAL,
        access: Access = OPEN,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(name_servers, timeouts=timeouts, access=access, sleep=sleep)
        self._group = group
        self._filter = pull_filter
        self._since: dict[tuple[str, str], int] = {}

    def absent_brokers(
        self, topics: Collection[str], required: Collection[str] = (), *, waits: bool = False
    ) -> dict[str, list[str]]:
        """Return the brokers that are away, and which of these topics they had at the last look-up of queues.

        LibraMQ's name servers know which brokers had a topic. required: brokers that must be registered.
        waits: wait until they are back, or the retry timeout is over.
        """
        absent = self._absent_now(topics, required)
        for pause_ms in self.pauses_ms() if waits else ():
            if not absent:
                break
            self.pause(pause_ms)
            with contextlib.suppress(*AWAY):
                for topic in topics:
                    self.queues(topic)
            absent = self._absent_now(topics, required)
        return absent

    def _absent_now(self, topics: Collection[str], required: Collection[str]) -> dict[str, list[str]]:
        absent: dict[str, list[str]] = {}
        for topic in topics:
            for name in self._absent.get(topic, []):
                absent.setdefault(name, []).append(topic)
        unregistered = set(required) - self.patiently(self.broker_names) if required else set()
        return {name: list[str]() for name in sorted(unregistered)} | absent

    def max_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset that the next message of each queue will get."""
        return self._ends(self.ask_patiently(queues, queue_end))

    def min_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset of the oldest message of each queue."""
        return self.ask_patiently(queues, min_offset)

    def offsets_at(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the offset of each queue's first message stored at its time or later, else the end."""
        return self.ask_patiently(times_ms, lambda queue: search_offset(queue, times_ms[queue]))

    def reachable_max_offsets(
        self, queues: Iterable[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], list[LibraError]]:
        """Return `max_offsets` without the queues of silent brokers, and the errors of those brokers."""
        found, failures = self.ask_reachable(queues, queue_end)
        return self._ends(found), failures

    def sizes(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        """Return the mean bytes of stored messages, from a sample at a position of each queue.

        Queues with an empty sample are left out. With a filter, messages that it rejects count as 0 bytes.
        """
        calls = {queue: self._pull(queue, at, SAMPLE, SAMPLE_BYTES) for queue, at in positions.items()}
        replies, _ = self.ask_reachable(positions, calls.__getitem__)
        return {
            queue: len(reply.body) / max(1, reply.next_offset - positions[queue])
            for queue, reply in replies.items()
            if reply.body
        }

    def _ends(self, found: Mapping[MessageQueue, QueueEnd]) -> dict[MessageQueue, int]:
        for queue, end in found.items():
            if end.since is not None:
                self._since[queue.topic, queue.broker_name] = end.since
        return {queue: end.offset for queue, end in found.items()}

    def topics_since(self) -> dict[tuple[str, str], int]:
        """Return where in a broker's log a former topic of a name was deleted, by topic and broker name.

        As known at the last look-up of the ends of queues; Apache's brokers do not report it.
        """
        return dict(self._since)

    def probe(self, queue: MessageQueue) -> None:
        """Check that the broker accepts the filter and the group; raises BrokerError.

        Apache's pulls ignore an expression that cannot be parsed, and return every message.
        """
        remote = self.broker(queue)
        subscription = SubscriptionData(
            topic=queue.topic, sub_string=self._filter.expression, expression_type=self._filter.kind
        )
        client_id = new_client_id(local_address(remote.address), SystemClock())
        check = check_subscription(client_id, self._group, subscription)
        with contextlib.suppress(RequestCodeNotSupported):
            self.finish(remote, check, self.start(remote, check))
        pull = self._pull(queue, 0, 1)
        self.finish(remote, pull, self.start(remote, pull))

    def read(
        self, queue: MessageQueue, start: int, end: int, *, lost: OnLost = refuse_loss
    ) -> Iterator[Stretch]:
        """Yield the records with offsets [start, end), in order, one reply at a time.

        `lost` is called with each range that the broker does not have; when it returns, reading continues
        after the range.
        """
        position, is_first = start, True
        pauses_ms = self.pauses_ms()
        while position < end:
            try:
                for stretch in self._read_once(queue, position, end, lost):
                    position, pauses_ms, is_first = stretch.end, self.pauses_ms(), True
                    if stretch.body:
                        yield stretch
            except (*PASSING, RouteNotFound, TopicNotExist) as error:
                # Name servers forget a topic with its only broker; Apache's slaves learn of topics in 10 s.
                if isinstance(error, TopicNotExist) and not self.is_slave(queue.broker_name):
                    raise
                self.disconnect(queue.broker_name)
                pause_ms = next(pauses_ms, None)
                if pause_ms is None:
                    raise
                self.pause(pause_ms, why=error if is_first else None)
                is_first = False

    def messages(self, queue: MessageQueue, start: int, end: int) -> Iterator[MessageExt]:
        """Yield the messages with offsets [start, end) that the broker still has, in order."""
        for stretch in self.read(queue, start, end, lost=lambda *_: None):
            yield from stretch.messages()

    def _read_once(self, queue: MessageQueue, start: int, end: int, lost: OnLost) -> Iterator[Stretch]:
        """Read over one connection. The first pull goes alone and shows how much a reply holds."""
        remote = self.broker(queue)
        in_flight: deque[_Requested] = deque()
        chunk, depth, full_replies = CHUNK_MAX, 1, 0
        # Whether the requested count predicts where a reply ends. Otherwise each pull waits for the last one.
        is_sized = self._filter.is_everything
        requested = start
        try:
            while requested < end or in_flight:
                while requested < end and len(in_flight) < depth:
                    stop = min(requested + chunk, end) if is_sized else end
                    in_flight.append(self._ask_for(remote, queue, requested, stop))
                    requested = stop
                call, number, position, stop = in_flight[0]
                reply = self.finish(remote, call, number)
                in_flight.popleft()
                reached = self._reached(queue, position, stop, reply, lost)
                yield Stretch(
                    queue, position, reached, reply.body if reply.code == ResponseCode.SUCCESS else b""
                )
                # Large batches are sent whole, again for each pull that begins or ends within one.
                past = reply.next_offset - stop if reply.code == ResponseCode.SUCCESS else 0
                if past > (stop - position) // OVERSHOT:
                    is_sized, depth = False, 1
                if not is_sized:
                    if not in_flight:
                        requested = reached
                    elif reached < stop:
                        in_flight.appendleft(self._ask_for(remote, queue, reached, stop))
                    continue
                depth = max(2, min(DEPTH, IN_FLIGHT_BYTES // max(1, len(reply.body))))
                if reached == stop:
                    full_replies += 1
                    if full_replies >= GROW_AFTER:
                        chunk, full_replies = min(2 * chunk, CHUNK_MAX), 0
                    continue
                # Request as many next; a little fewer if bytes limited the reply, as messages vary in size.
                is_full = len(reply.body) > REPLY_BYTES_MAX // 2
                chunk = max(1, (reached - position) * 7 // 8 if is_full else reached - position)
                full_replies = 0
                if in_flight:  # The rest of this range precedes the ones already requested.
                    in_flight.appendleft(self._ask_for(remote, queue, reached, stop))
                else:
                    requested = reached
        finally:
            if in_flight:  # Abandoned in the middle: the outstanding replies will not be read.
                self.disconnect(queue.broker_name)

    def _ask_for(self, remote: BlockingRemote, queue: MessageQueue, start: int, stop: int) -> "_Requested":
        call = self._pull(queue, start, min(stop - start, CHUNK_MAX))
        return _Requested(call, self.start(remote, call), start, stop)

    def _pull(
        self, queue: MessageQueue, offset: int, count: int, size: int = REPLY_BYTES_MAX
    ) -> Call[PullReply]:
        return pull_message(
            PullMessageHeader(
                consumer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                max_msg_nums=count,
                sys_flag=PULL_SUBSCRIPTION,
                subscription=self._filter.expression,
                expression_type=self._filter.kind,
                max_msg_bytes=size,
                lb_takes_batches=True,
            )
        )

    def _reached(self, queue: MessageQueue, position: int, stop: int, reply: PullReply, lost: OnLost) -> int:
        """Return the offset that a reply reaches, at most `stop`; offsets it skips are reported as lost."""
        if reply.code == ResponseCode.SUCCESS and reply.body:
            return max(position + 1, min(reply.next_offset, stop))
        if position < reply.min_offset:
            reached = min(reply.min_offset, stop)
        elif position >= reply.max_offset and self.is_slave(queue.broker_name):
            raise ConnectionLost(f"the slave of {queue.broker_name} does not have its master's messages yet")
        elif position >= reply.max_offset or reply.next_offset <= position:
            reached = stop  # Beyond the broker's end: its log was truncated.
        else:
            reached = min(reply.next_offset, stop)
            if not self._filter.is_everything and reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                return reached  # No message passed the filter.
        lost(queue, position, reached)
        return reached


class _Requested(NamedTuple):
    call: Call[PullReply]
    number: int
    start: int
    stop: int

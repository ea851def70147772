"""Acknowledging: how acknowledgements and changes of the invisible time affect popped messages. If one comes
too late, it changes nothing.

    acknowledge      journalled, then answered; if the message is no longer in flight, only answered
    change           a new check point of one message, and the end of the old one, by one append

Upstream: AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from libramq.broker.files.pop_journal import PopJournal
from libramq.broker.pop.ordering import Ordering
from libramq.broker.pop.popping import INVISIBLE_MS_MAX
from libramq.catalog.topic_table import TopicTable
from libramq.clock import Now
from libramq.codes import ResponseCode
from libramq.errors import LibraError, broker_error
from libramq.pop import CheckPoint, InFlight
from libramq.pop.check_point import AckSet
from libramq.pop.handle import ORDERED, Handle, decode_handle
from libramq.pop.positions import QueueOfGroup
from libramq.store.message_store import MessageStore


class Popped(NamedTuple):
    """A message as a consumer names it. topic: the topic it was popped from, possibly a retry topic.

    handle: the text that the consumer got with the message (`pop.handle`).
    """

    topic: str
    group: str
    queue_id: int
    offset: int
    handle: str


class Acknowledged(NamedTuple):
    """The outcome of acknowledgements. end: the log's end with them; 0: nothing was written.

    refused: the errors of refused acknowledgements, by position; the others count.
    """

    end: int
    refused: Mapping[int, LibraError]


class Changed(NamedTuple):
    """A message's new pop time and invisible time. end: the log's end with them; 0: not in the log."""

    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    end: int


class Acknowledging:
    """Takes acknowledgements. ordering: takes those of ordered pops, which have no check points."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        journal: PopJournal,
        in_flight: InFlight,
        ordering: Ordering,
    ) -> None:
        self._store = store
        self._topics = topics
        self._journal = journal
        self._in_flight = in_flight
        self._ordering = ordering

    def _handle(self, popped: Popped) -> Handle:
        """Decode the handle of a message; raises LibraError if it cannot be the handle of one.

        The queue may have been popped from before the topic's read queues were reduced.
        """
        topic, queue_id, offset = popped.topic, popped.queue_id, popped.offset
        config = self._topics.require(topic)
        if not 0 <= queue_id < config.read_queue_nums and not self._store.max_offset(topic, queue_id):
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic}]"
                f" topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )
        first, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        if not first <= offset <= end:
            raise broker_error(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{first}~{end}",
            )
        return decode_handle(popped.handle)

    def acknowledge(self, popped: Sequence[Popped], now: Now) -> Acknowledged:
        """Journal messages as done, by one append; raises BrokerError if the store refuses.

        Messages no longer in flight are already done, or visible again; they count as acknowledged.
        """
        done: dict[CheckPoint, int] = {}
        refused: dict[int, LibraError] = {}
        for position, message in enumerate(popped):
            try:
                handle = self._handle(message)
                if handle.revive_queue == ORDERED:
                    self._ordering.acknowledge(_queue(message), handle.pop_time_ms, message.offset)
                    continue
            except LibraError as error:
                # The traceback would form a cycle with this frame.
                refused[position] = error.with_traceback(None)
                continue
            found = self._find(message, handle)
            if found is not None:
                check_point, bit = found
                done[check_point] = done.get(check_point, 0) | bit
        end = self._journal.write((), list(done.items()), wall_ms=now.wall_ms) if done else 0
        return Acknowledged(end, refused)

    def acknowledge_sets(self, popped: Iterable[AckSet], now: Now, *, ordered: Iterable[AckSet] = ()) -> int:
        """Journal messages of check points as done; return the log's end, or 0 if nothing was written to it.

        ordered: sets of messages popped in order.
        """
        for (topic, group, queue_id, start, pop_time_ms), bit_set in ordered:
            queue = group, topic, queue_id
            for offset in self._ordering.in_flight(queue, pop_time_ms):
                if _has(bit_set, offset - start):
                    self._ordering.acknowledge(queue, pop_time_ms, offset)
        done: dict[CheckPoint, int] = {}
        for key, bit_set in popped:
            check_point = self._in_flight.find(key)
            bits = check_point.open_bits_in(bit_set) if check_point is not None else 0
            if check_point is not None and bits:
                done[check_point] = done.get(check_point, 0) | bits
        return self._journal.write((), list(done.items()), wall_ms=now.wall_ms) if done else 0

    def change(self, popped: Popped, invisible_ms: int, now: Now, *, is_unseen: bool = False) -> Changed:
        """Make a message invisible for `invisible_ms` from now on; raises BrokerError if it is visible again.

        is_unseen: no program has seen it, so its next delivery does not count as another attempt.
        """
        handle = self._handle(popped)
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {invisible_ms}; 0 to {INVISIBLE_MS_MAX} ms are allowed",
            )
        if handle.revive_queue == ORDERED:
            return self._change_ordered(popped, handle.pop_time_ms, invisible_ms)
        found = self._find(popped, handle)
        if found is None:
            raise broker_error(
                ResponseCode.NO_MESSAGE,
                f"message {popped.offset} of {popped.topic}@{popped.queue_id} was acknowledged, "
                "or is visible again",
            )
        old, bit = found
        # After a reset of its group, a message may be in flight twice, and both changed in one millisecond.
        untimed_key = (old.topic, old.group, old.queue_id, popped.offset)
        pop_time_ms = self._in_flight.unused_time([untimed_key], max(int(now.wall_ms), old.pop_time_ms + 1))
        new = CheckPoint(
            topic=old.topic,
            group=old.group,
            queue_id=old.queue_id,
            start_offset=popped.offset,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            diffs=(0,),
            broker_name=old.broker_name,
            revive_queue=old.revive_queue,
            due_ms=now.monotonic_ms + invisible_ms,
            is_unseen=is_unseen,
            is_changed=True,
            failures=old.failures,
        )
        end = self._journal.write((new,), [(old, bit)], wall_ms=now.wall_ms)
        return Changed(new.pop_time_ms, invisible_ms, new.revive_queue, end)

    def _change_ordered(self, popped: Popped, pop_time_ms: int, invisible_ms: int) -> Changed:
        left_ms = self._ordering.change(_queue(popped), pop_time_ms, popped.offset, invisible_ms)
        if left_ms is None:
            raise broker_error(
                ResponseCode.NO_MESSAGE, f"message {popped.offset} was acknowledged, or popped again"
            )
        return Changed(pop_time_ms, left_ms, ORDERED, 0)

    def _find(self, popped: Popped, handle: Handle) -> tuple[CheckPoint, int] | None:
        """Return the check point that holds the message, and the message's bit."""
        key = popped.topic, popped.group, popped.queue_id, handle.start_offset, handle.pop_time_ms
        check_point = self._in_flight.find(key)
        bit = check_point.bit_of(popped.offset) if check_point is not None else 0
        return (check_point, bit) if check_point is not None and bit else None


def _queue(popped: Popped) -> QueueOfGroup:
    return popped.group, popped.topic, popped.queue_id


def _has(bits: bytes, index: int) -> bool:
    """Return whether a BitSet of Java's has a bit."""
    return index >> 3 < len(bits) and bool(bits[index >> 3] >> (index & 7) & 1)

"""Acknowledging: messages that were popped are done, or are to be invisible for longer.

    acknowledge      journalled, then answered; what is not in flight any more is answered, and forgotten
    change           a new check point of one message, and the end of the old one, by one append

Upstream: AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from libramq.broker.pop.journal import PopJournal
from libramq.broker.pop.popping import INVISIBLE_MS_MAX
from libramq.catalog import TopicTable
from libramq.clock import Now
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.pop import CheckPoint, InFlight
from libramq.pop.check_point import Key
from libramq.store.message_store import MessageStore


class Popped(NamedTuple):
    """A message as a consumer names it. topic: where it was popped from, so maybe a retry topic."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    offset: int


class Changed(NamedTuple):
    """A message's new place in time. end: the log's end with it."""

    pop_time_ms: int
    revive_queue: int
    end: int


class Acknowledging:
    """Takes acknowledgements."""

    def __init__(
        self, store: MessageStore, topics: TopicTable, journal: PopJournal, in_flight: InFlight
    ) -> None:
        self._store = store
        self._topics = topics
        self._journal = journal
        self._in_flight = in_flight

    def check(self, topic: str, queue_id: int, offset: int) -> None:
        """Raise BrokerError if a topic has no such queue, or the queue no such message.

        A queue that is no longer read from was popped from before.
        """
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

    def check_invisible_time(self, invisible_ms: int) -> None:
        """Raise BrokerError for an invalid invisible time."""
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {invisible_ms}; 0 to {INVISIBLE_MS_MAX} ms are allowed",
            )

    def acknowledge(self, popped: Sequence[Popped], now: Now) -> int:
        """Journal messages as done, by one append; return the log's end with that, 0: there is nothing new.

        Messages that are not in flight are done already, or visible again: nothing is left to say. Raises
        BrokerError if the store refuses.
        """
        done: dict[CheckPoint, int] = {}
        for message in popped:
            found = self._find(message)
            if found is not None:
                check_point, bit = found
                done[check_point] = done.get(check_point, 0) | bit
        return self._journal.write((), list(done.items()), wall_ms=now.wall_ms) if done else 0

    def acknowledge_sets(self, popped: Iterable[tuple[Key, bytes]], now: Now) -> int:
        """As `acknowledge`, for messages of check points; which of each one's is a BitSet of Java's."""
        done: dict[CheckPoint, int] = {}
        for key, bit_set in popped:
            check_point = self._in_flight.find(key)
            bits = check_point.open_bits_in(bit_set) if check_point is not None else 0
            if check_point is not None and bits:
                done[check_point] = done.get(check_point, 0) | bits
        return self._journal.write((), list(done.items()), wall_ms=now.wall_ms) if done else 0

    def change(self, popped: Popped, invisible_ms: int, now: Now, *, is_unseen: bool = False) -> Changed:
        """Have a message invisible until a time from now on; raises BrokerError if it is visible again.

        is_unseen: no program has seen it, so its next delivery is no further attempt.
        """
        self.check_invisible_time(invisible_ms)
        found = self._find(popped)
        if found is None:
            raise broker_error(
                ResponseCode.NO_MESSAGE,
                f"message {popped.offset} of {popped.topic}@{popped.queue_id} was acknowledged, "
                "or is visible again",
            )
        old, bit = found
        new = CheckPoint(
            topic=old.topic,
            group=old.group,
            queue_id=old.queue_id,
            start_offset=popped.offset,
            # Another name than the old one's, which may begin with the same message in the same millisecond.
            pop_time_ms=max(int(now.wall_ms), old.pop_time_ms + 1),
            invisible_ms=invisible_ms,
            diffs=(0,),
            broker_name=old.broker_name,
            revive_queue=old.revive_queue,
            due_ms=now.monotonic_ms + invisible_ms,
            is_unseen=is_unseen,
            is_changed=True,
        )
        end = self._journal.write((new,), [(old, bit)], wall_ms=now.wall_ms)
        return Changed(new.pop_time_ms, new.revive_queue, end)

    def _find(self, popped: Popped) -> tuple[CheckPoint, int] | None:
        """Return the check point that has the message in flight, and the message's bit."""
        key = (popped.topic, popped.group, popped.queue_id, popped.start_offset, popped.pop_time_ms)
        check_point = self._in_flight.find(key)
        bit = check_point.bit_of(popped.offset) if check_point is not None else 0
        return (check_point, bit) if check_point is not None and bit else None

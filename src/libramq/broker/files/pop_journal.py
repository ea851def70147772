"""POP's journal: how check points and acknowledgements are written to the log, as messages that Apache's
broker reads as well, and when they are compacted.

Each is a timer message of Apache's: it waits in `rmq_sys_wheel_timer`, and Apache's broker moves it to the
revive topic when it is due. Ours acts on its own table (`InFlight`) and never moves one; at a start it reads
the topic again, from the first unsettled check point.

Related entries are one append, so a kill leaves all or nothing: the copies of a check point's messages with
their acknowledgement; a new check point with the acknowledgement of the old one. After a power cut, a prefix
may remain. So acknowledgements come last: a message may become visible twice, but none is lost.
Upstream: PopMessageProcessor.buildCkMsg, AckMessageProcessor.appendAck, HookUtils.transformTimerMessage.
"""

from collections.abc import Sequence
from typing import Final

from libramq.broker.files.message_log import MessageLog
from libramq.clock import WallMs
from libramq.kernel.work import PORTION
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.ids import encode_host
from libramq.message.tags import tag_code
from libramq.pop import CheckPoint, InFlight
from libramq.pop.entries import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECK_POINT_TAG,
    CheckPointEntry,
    Entry,
    encode_entry,
    tag_of,
    unique_key,
)
from libramq.pop.unwritten import Unwritten
from libramq.store.log.append import AppendResult, StoreMessage
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: PopAckConstants.ackTimeInterval: a check point is delivered before its acknowledgements.
CHECK_POINT_AHEAD_MS: Final = 1_000
#: MessageStoreConfig.timerPrecisionMs.
TIMER_PRECISION_MS: Final = 1_000
#: Ours: entries of settled check points between those in flight, before the journal is compacted. A start
#: reads them all, at some 40,000 a second.
SETTLED_MAX: Final = 20_000

_TAG_CODES: Final = {tag: tag_code(tag) for tag in (CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG)}
#: An entry, the queue of the revive topic to which Apache's broker moves it, and the time.
_Line = tuple[Entry, int, int]

#: A check point, and the bits of its messages that are done.
Ack = tuple[CheckPoint, int]


class PopJournal:
    """Writes POP's entries. revive_topic: the cluster's, as Apache names it."""

    def __init__(
        self, store: MessageStore, log: MessageLog, in_flight: InFlight, *, revive_topic: str
    ) -> None:
        self._log = log
        self._in_flight = in_flight
        self._revive_topic = revive_topic
        self._host = encode_host(store.config.store_host)
        #: The offset of the next entry.
        self.end = store.max_offset(names.TIMER_TOPIC, 0)
        #: Runs of adjacent entries: first offset → offset behind the last.
        self._runs: dict[int, int] = {}
        self._run_start = 0

    @property
    def must_wait(self) -> bool:
        """Return whether acknowledgements wait until entries are on the disk, or at slaves."""
        return self._log.must_wait

    def write(
        self,
        check_points: Sequence[CheckPoint] = (),
        acks: Sequence[Ack] = (),
        *,
        copies: Sequence[StoreMessage] = (),
        wall_ms: WallMs,
    ) -> int:
        """Write new check points and acknowledgements by one append, and apply them; return the log's end.

        copies: messages that become visible again. Raises BrokerError, and changes nothing, if the store
        refuses.
        """
        lines = [_of_check_point(each) for each in check_points]
        lines += [(each.ack(bits), each.revive_queue, each.visible_ms) for each, bits in acks]
        results = self._log.append([*copies, *self._messages(lines, wall_ms)])
        entries = results[len(copies) :]
        self._require(entries)
        for copy, result in zip(copies, results, strict=False):
            if not result.is_ok:  # It will never be accepted: no log file can hold it.
                log.error("unacknowledged message dropped", topic=copy.topic, reason=result.status.name)
        for check_point, result in zip(check_points, entries, strict=False):
            check_point.place = check_point.origin = result.queue_offset
            self._in_flight.add(check_point)
        for check_point, bits in acks:
            self._in_flight.acknowledge(check_point, bits)
        return results[-1].end if results else 0

    def mark(self, topic: str, group: str, queue_id: int, offset: int, wall_ms: WallMs) -> None:
        """Note that a group continues in a queue at a reset offset, regardless of earlier pops."""
        entry = CheckPointEntry(
            broker_name="",
            group=group,
            invisible_ms=0,
            pop_time_ms=int(wall_ms),
            queue_id=queue_id,
            start_offset=offset,
            topic=topic,
        )
        self._require(self._log.append(self._messages([(entry, 0, int(wall_ms))], wall_ms)))

    def compact(self, wall_ms: WallMs) -> None:
        """Rewrite the oldest check points if most of the journal behind them is settled."""
        if not self._in_flight.reaches_back(self.end - SETTLED_MAX):
            return
        oldest = self._in_flight.oldest_place
        if oldest is not None and self.end - oldest > SETTLED_MAX + 4 * len(self._in_flight):
            self.write_again(self._in_flight.oldest(PORTION), wall_ms)

    def write_again(self, check_points: Sequence[CheckPoint], wall_ms: WallMs) -> None:
        """Write check points again, in their present state, at the journal's end."""
        lines = [_of_check_point(each, is_again=True) for each in check_points]
        results = self._log.append(self._messages(lines, wall_ms))
        self._require(results)
        for check_point, result in zip(check_points, results, strict=True):
            check_point.place = result.queue_offset
            self._in_flight.placed(check_point)

    def _require(self, results: Sequence[AppendResult]) -> None:
        """Raise BrokerError if the store refused entries."""
        for result in results:
            if not result.is_ok:
                raise self._log.refused(result)
        if results:
            start = results[0].queue_offset
            if self._runs.get(self._run_start) != start:
                self._run_start = start
            self._runs[self._run_start] = self.end = results[-1].queue_offset + 1

    def skip(self, offset: int) -> int:
        """Return the offset behind entries written at an offset; forget earlier entries."""
        runs = self._runs
        while (start := next(iter(runs), offset + 1)) <= offset:
            offset = max(offset, runs.pop(start))
        return offset

    def _messages(self, lines: Sequence[_Line], wall_ms: WallMs) -> list[StoreMessage]:
        """Return entries as messages. Within one pop, the properties differ only in their keys."""
        endings: dict[tuple[str, int, int], str] = {}
        messages = []
        for entry, queue_id, deliver_ms in lines:
            tag = tag_of(entry)
            ending = endings.get((tag, queue_id, deliver_ms))
            if ending is None:
                ending = endings[tag, queue_id, deliver_ms] = self._ending(tag, queue_id, deliver_ms)
            message = StoreMessage(
                names.TIMER_TOPIC,
                0,
                encode_entry(entry),
                f"{p.UNIQ_KEY}\x01{unique_key(entry)}{ending}".encode(),
                _TAG_CODES[tag],
                born_timestamp_ms=int(wall_ms),
                born_host=self._host,
            )
            messages.append(message)
        return messages

    def _ending(self, tag: str, queue_id: int, deliver_ms: int) -> str:
        """Return the part of an entry's properties after the key."""
        out_ms = (deliver_ms - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS
        return (
            f"\x02{p.TAGS}\x01{tag}\x02"
            f"{p.TIMER_DELIVER_MS}\x01{deliver_ms}\x02{p.TIMER_OUT_MS}\x01{out_ms}\x02"
            f"{p.REAL_TOPIC}\x01{self._revive_topic}\x02{p.REAL_QUEUE_ID}\x01{queue_id}\x02"
        )


def _of_check_point(check_point: CheckPoint, *, is_again: bool = False) -> _Line:
    deliver_ms = check_point.visible_ms - CHECK_POINT_AHEAD_MS
    return check_point.entry(is_again=is_again), check_point.revive_queue, deliver_ms


class UnwrittenJournal(PopJournal):
    """The journal of an acting slave, which writes none: its check points are only in memory.

    unwritten: is notified of done messages.
    """

    def __init__(
        self,
        unwritten: Unwritten,
        store: MessageStore,
        log: MessageLog,
        in_flight: InFlight,
        *,
        revive_topic: str,
    ) -> None:
        super().__init__(store, log, in_flight, revive_topic=revive_topic)
        self._unwritten = unwritten

    @property
    def must_wait(self) -> bool:
        """Return False: nothing needs to reach a disk."""
        return False

    def write(
        self,
        check_points: Sequence[CheckPoint] = (),
        acks: Sequence[Ack] = (),
        *,
        copies: Sequence[StoreMessage] = (),
        wall_ms: WallMs,
    ) -> int:
        """Apply new check points and acknowledgements; return 0, as nothing is appended.

        A new check point with an acknowledgement takes over the message, which is thus not done.
        """
        assert not copies
        for check_point in check_points:
            self._in_flight.add(check_point)
        for check_point, bits in acks:
            if not check_points:
                queue = check_point.group, check_point.topic, check_point.queue_id
                self._unwritten.done(queue, check_point.offsets_of(bits))
            self._in_flight.acknowledge(check_point, bits)
        return 0

    def mark(self, topic: str, group: str, queue_id: int, offset: int, wall_ms: WallMs) -> None:
        """Do nothing: no start would read this."""

    def compact(self, wall_ms: WallMs) -> None:
        """Do nothing: nothing is written."""

"""Reviving: a popped message that was not acknowledged in time goes to the retry topic, or after too many
attempts to the dead letters.

When a check point is due, its unacknowledged messages are copied to the group's retry topic and marked as
done by one append. After as many attempts as the group allows, a message becomes a dead letter instead
(Apache's broker leaves that to its clients, which drop it).
Upstream: PopReviveService.java.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.messages.redelivery import Redelivery
from libramq.clock import MonotonicMs, WallMs
from libramq.errors import BrokerError
from libramq.formats.tables import PERM_READ, PERM_WRITE, SubscriptionGroupConfig
from libramq.kernel.parts import Kernel, Phase
from libramq.kernel.work import portions
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.pop import CheckPoint
from libramq.store.log.append import StoreMessage, stored_again, undamaged
from libramq.store.rounds import Rounds

log = get_logger(__name__)

#: Ours: the delay before reviving is tried again after the store has refused messages.
AGAIN_MS: Final = 100
#: Ours: bytes of message bodies per append.
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024


class Reviving:
    """Settles due check points; `rounds` are held while slaves are asked."""

    def __init__(
        self, config: BrokerConfig, files: BrokerFiles, redelivery: Redelivery, kernel: Kernel
    ) -> None:
        store, in_flight = files.store, files.pop.in_flight
        self._store, self._topics, self._groups = store, files.tables.topics, files.tables.groups
        self._redelivery = redelivery
        self._journal, self._in_flight, self._positions = files.pop.journal, in_flight, files.pop.positions
        self._clock = kernel.clock
        self._new_names = config.enable_retry_topic_v2
        is_held = config.asks_slaves or store.config.is_copy
        self.rounds = Rounds(store, kernel, self._revive, again_ms=AGAIN_MS, is_held=is_held)
        #: Whether the store refused: nothing is tried before the next round.
        self._is_refused = self._is_logged = False
        self._soon = partial(kernel.soon, Phase.TIMERS, self._look)
        if not store.config.is_copy:
            in_flight.changed = self._soon
            self._soon()

    def _look(self) -> None:
        """Set the deadline for the next check point that falls due, and keep the journal short.

        A slave leaves both to its master.
        """
        if not self._in_flight or self.rounds.is_held:
            return
        due_ms = self._in_flight.next_due_ms
        if due_ms is not None and not (self.rounds.is_running or self._is_refused):
            self.rounds.by(due_ms)
        if not self._is_refused:
            try:
                self._journal.compact(self._clock.wall_ms())
            except BrokerError as error:
                self._refused(error)

    def topic_deleted(self, topic: str) -> None:
        """Drop the check points of a topic: its offsets may soon mean other messages.

        They are journalled as done for Apache's broker only; at a start of ours, the deletion itself drops
        them.
        """
        self._positions.forget(lambda queue: queue[1] == topic)
        gone = [(each, each.open_bits) for each in self._in_flight if each.topic == topic]
        try:
            for acks in portions(gone):
                self._journal.write((), acks, wall_ms=self._clock.wall_ms())
        except BrokerError as error:
            log.warning(
                "pops of a deleted topic are not journalled for Apache's broker",
                topic=topic,
                reason=error.remark,
            )
            for check_point, bits in gone:
                self._in_flight.acknowledge(check_point, bits)

    def _revive(self, now_ms: MonotonicMs) -> bool:
        """Settle the next due check point; return whether there was one."""
        self._is_refused = False
        self._soon()
        try:
            check_point = self._in_flight.next_due(now_ms)
            if check_point is not None:
                self._settle(check_point)
                self._is_logged = False
        except BrokerError as error:
            self._refused(error)
            return False
        return check_point is not None

    def _settle(self, check_point: CheckPoint) -> None:
        """Make the unacknowledged messages of a check point visible."""
        wall_ms = self._clock.wall_ms()
        for batch in _batches(self._messages(check_point)):
            group = self._groups.get(check_point.group)
            copies = (
                []
                if group is None
                else [
                    self._copy(message, check_point, group, wall_ms)
                    for _, message in batch
                    if message is not None
                ]
            )
            bits = check_point.bits_of([offset for offset, _ in batch])
            self._journal.write((), [(check_point, bits)], copies=copies, wall_ms=wall_ms)

    def _messages(self, check_point: CheckPoint) -> Iterator[tuple[int, MessageExt | None]]:
        """Yield the unacknowledged messages by offset; None for a lost one, whose topic may be lost too."""
        for offset in check_point.open_offsets():
            read = self._store.read(check_point.topic, check_point.queue_id, offset, 1)
            found = undamaged(read.data)
            message = found[0] if found and found[0].queue_offset == offset else None
            if message is None:
                log.warning(
                    "a popped message is gone, and not delivered again",
                    topic=check_point.topic,
                    queue_id=check_point.queue_id,
                    offset=offset,
                )
            yield offset, message

    def _copy(
        self,
        message: MessageExt,
        check_point: CheckPoint,
        group: SubscriptionGroupConfig,
        wall_ms: WallMs,
    ) -> StoreMessage:
        """Return the message for its group's next attempt, or as a dead letter."""
        properties = dict(message.properties)
        if message.reconsume_times == 0 or p.FIRST_POP_TIME not in properties:
            properties[p.FIRST_POP_TIME] = str(check_point.pop_time_ms)
        topic, queue_id = self._target(message, check_point, group, wall_ms)
        expendable: tuple[str, ...] = (p.FIRST_POP_TIME,)
        if topic == names.dlq_topic(check_point.group):
            properties.setdefault(p.RETRY_TOPIC, names.popped_topic(check_point.topic, check_point.group))
            properties.setdefault(p.ORIGIN_MESSAGE_ID, message.offset_id)
            expendable = (p.FIRST_POP_TIME, p.RETRY_TOPIC, p.ORIGIN_MESSAGE_ID)
        return stored_again(
            message,
            topic,
            queue_id,
            properties,
            expendable=expendable,
            reconsume_times=message.reconsume_times + (not check_point.is_unseen),
        )

    def _target(
        self, message: MessageExt, check_point: CheckPoint, group: SubscriptionGroupConfig, wall_ms: WallMs
    ) -> tuple[str, int]:
        if message.reconsume_times >= group.retry_max_times and not check_point.is_unseen:
            target = self._redelivery.dead_letters(group.group_name, wall_ms)
            return target.config.topic_name, target.queue_id
        topic = check_point.topic
        if not topic.startswith(names.RETRY_PREFIX):
            topic = names.pop_retry_topic(topic, group.group_name, is_new=self._new_names)
        return self._topics.for_group(topic, 1, PERM_READ | PERM_WRITE, wall_ms).topic_name, 0

    def _refused(self, error: BrokerError) -> None:
        """Try again soon; log only the first of several refusals."""
        if not self._is_logged:
            log.warning("unacknowledged messages wait: the store accepts no messages", reason=error.remark)
        self._is_refused = self._is_logged = True
        self.rounds.by(self._clock.monotonic_ms() + AGAIN_MS)


def _batches(
    messages: Iterable[tuple[int, MessageExt | None]],
) -> Iterator[list[tuple[int, MessageExt | None]]]:
    """Group messages into batches for one append each."""
    batch: list[tuple[int, MessageExt | None]] = []
    size = 0
    for each in messages:
        batch.append(each)
        size += len(each[1].body) if each[1] is not None else 0
        if size >= BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

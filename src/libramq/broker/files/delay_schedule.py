"""The delay schedule: which queue of SCHEDULE_TOPIC_XXXX a delayed message waits in, when it is due, even if
clocks are changed, and how far each level has been delivered (config/delayOffset.json), even after a kill.

A message with the property DELAY is stored in its level's queue; when it is due it is stored again in its own
queue. Upstream: ScheduleMessageService.java, HookUtils.transformDelayLevelMessage,
DelayOffsetSerializeWrapper.java.

A delay is a duration: while this process runs, it is measured by the monotonic clock, so setting the wall
clock has no effect (upstream delivers at once if the clock is set back, and early if it is set forward).
After the machine has slept, the delays continue. Messages stored by an earlier process are due by the wall
clock, because only that clock kept running.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from libramq.catalog.destinations import Destinations
from libramq.clock import Clock, MonotonicMs, Now, read_clock
from libramq.formats.document import Document, Int, Long
from libramq.formats.tables import DataVersion
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.pop.passed_on import PassedOn
from libramq.store.log.append import AppendStatus, StoreMessage, stored_again, undamaged
from libramq.store.message_store import MessageStore
from libramq.store.reading.read import ReadStatus
from libramq.timers.delivered_copies import DeliveredCopies

log = get_logger(__name__)

#: Ours: undelivered messages of a level that later ones may overtake; beyond this, later ones wait, too.
WAITING_MAX: Final = 4_096
#: Ours: clock synchronisation moves the clock by less (ntpd steps from 128 ms on); a delay may be wrong by
#: this much.
UNNOTICED_MS: Final = 100
#: Ours: changes of the clock that are remembered; more are unlikely while messages wait. The oldest are
#: forgotten.
SETTINGS_MAX: Final = 1_000
#: Ours: due messages per append, which takes 0.5 ms.
APPENDED_MAX: Final = 32


class LevelAccount(Document, frozen=True, kw_only=True):
    """A level's account: an acting slave has delivered everything before `until` except `waiting`.

        level      ✓ ✓ ○ ✓ ✓ ○ ✓ │ …
        offset ────────┘         └── until          waiting: both ○, in ascending order

    Apache's broker knows only the offset, and delivers again everything from there on.
    """

    until: int = 0
    waiting: tuple[int, ...] = ()

    def first_undelivered(self, offset: int) -> int:
        """Return the first undelivered offset from `offset` on."""
        if offset >= self.until:
            return offset
        place = bisect_left(self.waiting, offset)
        return self.waiting[place] if place < len(self.waiting) else self.until

    def is_ahead_of(self, other: "LevelAccount") -> bool:
        """Return whether this account records more deliveries than another one."""
        if self.until == other.until:
            return len(self.waiting) < len(other.waiting)
        return self.until > other.until

    def bounded(self, end: int) -> "LevelAccount":
        """Return the account up to an offset, in order; another version may have written it."""
        until = max(0, min(self.until, end))
        waiting = sorted({each for each in self.waiting if 0 <= each < until})
        if len(waiting) > WAITING_MAX:
            until = waiting[WAITING_MAX]
        return LevelAccount(until=until, waiting=tuple(waiting[:WAITING_MAX]))


class ScheduleFile(Document, frozen=True, kw_only=True):
    """The offset of the next message to deliver, by level.

    level_accounts: deliveries of acting slaves beyond that offset; ours, and ignored by Apache's broker.
    """

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, int] = {}
    level_accounts: dict[int, LevelAccount] = {}


class DelayAnswer(ScheduleFile, frozen=True, kw_only=True):
    """The answer to GET_ALL_DELAY_OFFSET and SLAVE_PROGRESS; the members of this class are ours.

    passed_on: POP's; None in an answer of Apache's broker. The others are a slave's. half_offset: the first
    half message that it has not passed on. timers: an offset and a time; timer messages before both are sent.
    committed: some commits of groups that the master may lack. last_record: position and size of its log's
    last record; a broker with the same record there has everything that this answer refers to.
    """

    passed_on: PassedOn | None = None
    half_offset: Long | None = None
    timers: tuple[Long, ...] | None = None
    committed: dict[str, dict[Int, Long]] = {}
    last_record: tuple[Long, Long] | None = None


class Due(NamedTuple):
    """Due messages of a level, the offset after them, and when the level's next message is due, if any."""

    messages: list[MessageExt]
    next_offset: int
    head_due_ms: MonotonicMs | None


class DelaySchedule:
    """The delivered offset of each level, and the due messages. clock: the store's."""

    def __init__(
        self,
        store: MessageStore,
        delays_ms: Sequence[int],
        offsets: dict[int, int],
        accounts: dict[int, LevelAccount],
        destinations: Destinations,
        *,
        clock: Clock,
    ) -> None:
        self._store = store
        self._destinations = destinations
        self._delays_ms = delays_ms
        self.offsets = dict(offsets)
        #: Of levels with deliveries beyond their offsets.
        ends = {level: store.max_offset(names.SCHEDULE_TOPIC, level - 1) for level in {*offsets, *accounts}}
        self.accounts = _checked({level: each.bounded(ends[level]) for level, each in accounts.items()})
        #: Counts changes of offsets and accounts.
        self.version = 0
        #: Called after a delivery with its level, start, end, and the messages read there.
        self.delivered: Callable[[int, int, int, Sequence[MessageExt]], None] = lambda *_: None
        self._begin_again({level: ends[level] for level, offset in offsets.items() if offset > ends[level]})
        self._clock = clock
        self.copies = DeliveredCopies(store, destinations)
        self.copies.begin()
        self._moments = StoredMoments(read_clock(clock))
        #: Whether the store refused the last due messages; that is logged once.
        self._is_refused = False
        #: None: the level has grown since the last look, or has not been looked at. Empty levels are not in
        #: it.
        self._head_due_ms: dict[int, MonotonicMs | None] = {
            level: None
            for level in self.levels
            if self.next_offset(level) < store.max_offset(names.SCHEDULE_TOPIC, level - 1)
        }

    def _begin_again(self, ends: dict[int, int]) -> None:
        """Restart levels with offsets beyond their ends: delivered copies may be lost as well."""
        for level, end in ends.items():
            log.warning(
                "a delay level's offset lies beyond its queue; messages without a copy are delivered again",
                level=level,
                offset=self.offsets[level],
                ends_at=end,
            )
            self.offsets[level] = 0
            self.accounts.pop(level, None)
            self.version += 1

    def content(self) -> ScheduleFile:
        """Return the content of config/delayOffset.json."""
        return ScheduleFile(offset_table=dict(self.offsets), level_accounts=dict(self.accounts))

    @property
    def levels(self) -> range:
        """Return the numbers of the levels."""
        return range(1, len(self._delays_ms) + 1)

    def level_grew(self, queue_id: int) -> None:
        """Note a level's new message; a level that was empty becomes due."""
        level = queue_id + 1
        if level not in self._head_due_ms and 1 <= level <= len(self._delays_ms):
            self._head_due_ms[level] = None

    def copy_offsets(self, offsets: dict[int, int], accounts: dict[int, LevelAccount]) -> None:
        """Take over the master's progress, including deliveries by its slaves."""
        accounts = _checked(accounts)
        if offsets != self.offsets or accounts != self.accounts:
            self.offsets, self.accounts = dict(offsets), accounts
            self.version += 1

    def next_due_ms(self, now_ms: MonotonicMs) -> MonotonicMs | None:
        """Return when the next level is due, or copies are to be forgotten; None: all levels are empty."""
        dues = [now_ms if due_ms is None else due_ms for due_ms in self._head_due_ms.values()]
        if self.copies.is_looking:
            dues.append(now_ms + max(0, self.copies.passed_in_ms(self._clock.wall_ms())))
        return min(dues, default=None)

    def delay(self, message: StoreMessage, level_text: str) -> None:
        """Redirect a message about to be stored to its level; do nothing without a level.

        The clock is the store's, because a request may have waited for the disk while the clock was set.
        """
        level = p.whole_number(level_text)
        if not level:
            return
        now = read_clock(self._clock)
        if self._moments.is_set(now):
            self._moments.note(self._store.end, now)
        level = min(level, len(self._delays_ms))
        message.properties_text = b"".join(
            (
                message.properties_text,
                f"{p.REAL_TOPIC}\x01{message.topic}\x02{p.REAL_QUEUE_ID}\x01{message.queue_id}\x02".encode(),
            )
        )
        message.topic = names.SCHEDULE_TOPIC
        message.queue_id = level - 1
        # Upstream's tools show this time; the store time is the one that counts.
        message.tag_code = int(now.wall_ms) + self._delays_ms[level - 1]

    def deliver(self, now_ms: MonotonicMs) -> bool:
        """Store due messages of the longest-waiting level again; return whether to continue at once."""
        dues = self._head_due_ms
        level = min(dues, key=lambda each: dues[each] or 0, default=None)
        if level is not None and (dues[level] or now_ms) <= now_ms:
            return self._deliver_level(level, now_ms)
        if self.copies.is_looking:  # Every level has passed the messages due then.
            self.copies.passed(self._clock.wall_ms())
        return False

    def _deliver_level(self, level: int, now_ms: MonotonicMs) -> bool:
        """Deliver the due messages of one read of a level; return whether the store accepts them."""
        offset = self._first_undelivered(level, self.next_offset(level))
        due, next_offset, head_due_ms = self._read(level - 1, offset, self._delays_ms[level - 1], now_ms)
        known = self._undelivered(due, level)
        is_refused = False
        if known is not None:
            stored = self._store_again(known, level)
            is_refused = stored < len(known)
            waiting = known[stored].queue_offset if is_refused else next_offset
            self._count_dropped(each for each in due if each.queue_offset < waiting)
            self.reached(level, waiting)
            self.delivered(level, offset, waiting, due)
        del self._head_due_ms[level]
        if known is None or is_refused or (head_due_ms is None and (due or next_offset != offset)):
            # There are more, or they wait for the store; other levels come first.
            self._head_due_ms[level] = now_ms
        elif head_due_ms is not None:
            self._head_due_ms[level] = head_due_ms
        return not is_refused

    def _first_undelivered(self, level: int, offset: int) -> int:
        account = self.accounts.get(level)
        return offset if account is None else account.first_undelivered(offset)

    def next_offset(self, level: int) -> int:
        """Return where a level continues: at most its end, which a crash may lower (correctDelayOffset)."""
        topic, queue_id = names.SCHEDULE_TOPIC, level - 1
        offset = min(self.offsets.get(level, 0), self._store.max_offset(topic, queue_id))
        return max(offset, self._store.min_offset(topic, queue_id))

    def _undelivered(self, due: Sequence[MessageExt], level: int) -> list[MessageExt] | None:
        """Return the due messages that are not delivered yet; None: unknown as yet."""
        undelivered = []
        delay_ms = self._delays_ms[level - 1]
        for message in due:
            if self._first_undelivered(level, message.queue_offset) != message.queue_offset:
                continue
            if self.is_dropped(message):
                continue
            has_copy = self.copies.has(message, message.store_timestamp_ms + delay_ms)
            if has_copy is None:
                return None
            if not has_copy:
                undelivered.append(message)
        return undelivered

    def is_dropped(self, message: MessageExt) -> bool:
        """Return whether a message is for a topic that was deleted after it was stored."""
        topic = message.properties.get(p.REAL_TOPIC, names.SCHEDULE_TOPIC)
        return message.physical_offset < self._destinations.deleted_end(topic)

    def _count_dropped(self, passed: Iterable[MessageExt]) -> None:
        dropped = Counter(each.properties[p.REAL_TOPIC] for each in passed if self.is_dropped(each))
        if dropped:
            self._destinations.drop(dropped)

    def due(self, level: int, now_ms: MonotonicMs) -> Due | None:
        """Return the next due messages behind a level's account; None: call again; there is more to read."""
        delay_ms = self._delays_ms[level - 1]
        end = self._store.max_offset(names.SCHEDULE_TOPIC, level - 1)
        offset = max(self.next_offset(level), min(self.account_of(level).until, end))
        due, next_offset, head_due_ms = self._read(level - 1, offset, delay_ms, now_ms)
        undelivered = self._undelivered(due, level)
        if undelivered is None:
            return None
        self._count_dropped(due)
        return Due(undelivered, next_offset, head_due_ms)

    def messages_at(self, level: int, offsets: Sequence[int]) -> list[MessageExt]:
        """Return the messages at these offsets that still exist and may be delivered. May raise ColdRead."""
        found: list[MessageExt] = []
        for offset in offsets:
            read = self._store.read(names.SCHEDULE_TOPIC, level - 1, offset, 1)
            found += [each for each in undamaged(read.data) if each.queue_offset == offset]
        self._count_dropped(found)
        return [message for message in found if not self.is_dropped(message)]

    def account_of(self, level: int) -> LevelAccount:
        """Return a level's account of deliveries."""
        return self.accounts.get(level) or LevelAccount(until=self.offsets.get(level, 0))

    def passed_on(self, level: int, account: LevelAccount) -> None:
        """Note deliveries of an acting slave, in addition to earlier ones."""
        offset = account.first_undelivered(self.offsets.get(level, 0))
        if account.waiting and offset < account.until:
            self.accounts[level] = account
        else:
            self.accounts.pop(level, None)
        self.offsets[level] = offset
        self.version += 1

    def reached(self, level: int, offset: int) -> None:
        """Note that all messages of a level before an offset are delivered."""
        if offset != self.offsets.get(level, 0):
            self.offsets[level] = offset
            self.version += 1
            if level in self.accounts and offset >= self.accounts[level].until:
                del self.accounts[level]

    def _store_again(self, due: Sequence[MessageExt], level: int) -> int:
        """Store due messages again; return how many are done."""
        if not due:
            return 0
        messages = [self._restored(message) for message in due]
        for position, result in enumerate(self._store.append_batch(messages)):
            if result.status in (AppendStatus.MESSAGE_ILLEGAL, AppendStatus.PROPERTIES_SIZE_EXCEEDED):
                # It will never be accepted; later messages must not wait for it.
                log.error(
                    "due message dropped", level=level, reason=result.status.name, id=due[position].offset_id
                )
            elif not result.is_ok:
                if not self._is_refused:  # They are tried again every 100 ms.
                    log.warning(
                        "due messages wait: the store accepts none", level=level, why=result.status.name
                    )
                self._is_refused = True
                return position
        self._is_refused = False
        return len(due)

    def _read(
        self, queue_id: int, offset: int, delay_ms: int, now_ms: MonotonicMs
    ) -> tuple[list[MessageExt], int, MonotonicMs | None]:
        """Return the due messages from an offset on, the offset after them, and when the next one is due."""
        result = self._store.read(names.SCHEDULE_TOPIC, queue_id, offset, APPENDED_MAX)
        if result.status is not ReadStatus.FOUND:
            return [], max(offset, result.next_offset) if result.max_offset > offset else offset, None
        due: list[MessageExt] = []
        # A later due time means that an earlier process stored the message in the future, before the clock
        # was set back. How long ago is unknown, so the message is delivered now rather than late
        # (correctDeliverTimestamp). The clock is read again: a message may have been stored after the round
        # began, and by a clock that moved unnoticed.
        latest_ms = self._clock.monotonic_ms() + delay_ms + UNNOTICED_MS
        for message in undamaged(result.data):
            due_ms = self._moments.moment_of(message.physical_offset, message.store_timestamp_ms) + delay_ms
            if now_ms < due_ms <= latest_ms:
                return due, message.queue_offset, due_ms
            due.append(message)
        return due, result.next_offset, None

    def _restored(self, message: MessageExt) -> StoreMessage:
        """Return the message for its own queue, with DELAY, REAL_TOPIC and REAL_QID as upstream."""
        properties = dict(message.properties)
        properties[p.WAIT] = "false"
        topic = properties.get(p.REAL_TOPIC, names.SCHEDULE_TOPIC)
        queue_id = p.whole_number(properties.get(p.REAL_QUEUE_ID, ""), digits_max=9) or 0
        queue_id = self._destinations.queue_for(topic, queue_id)
        # WAIT has no effect here, and may be dropped.
        return stored_again(message, topic, queue_id, properties, expendable=(p.WAIT,))


class StoredMoments:
    """The monotonic times at which messages were stored, regardless of changes of the wall clock.

    A record's store time is that of the wall clock. Whenever the difference between wall clock and monotonic
    clock changes, it is remembered together with the log's end:

        log      0 ────────────────── 81 920 ─────────────────► end
        ahead    as at the start      3 600 000 ms less: the clock was set back by an hour

    Messages of an earlier process count as stored by the current wall clock, because only that clock kept
    running. `now`: when the store was opened. Ours; upstream adds the delay to the store time and compares
    with the current wall clock.
    """

    def __init__(self, now: Now) -> None:
        self._starts = [0]
        self._ahead_ms = [now.wall_ahead_ms]

    def is_set(self, now: Now) -> bool:
        """Return whether the wall clock was set since the last call."""
        return abs(now.wall_ahead_ms - self._ahead_ms[-1]) > UNNOTICED_MS

    def note(self, log_end: int, now: Now) -> None:
        """Note that messages from here on take their store time from the present clock."""
        self._starts.append(log_end)
        self._ahead_ms.append(now.wall_ahead_ms)
        if len(self._starts) > SETTINGS_MAX:
            del self._starts[1], self._ahead_ms[1]

    def moment_of(self, physical_offset: int, store_timestamp_ms: int) -> MonotonicMs:
        """Return when a record was stored."""
        position = bisect_right(self._starts, physical_offset) - 1
        return MonotonicMs(store_timestamp_ms - self._ahead_ms[position])


def _checked(accounts: dict[int, LevelAccount]) -> dict[int, LevelAccount]:
    return {level: each.bounded(each.until) for level, each in accounts.items() if each.waiting}

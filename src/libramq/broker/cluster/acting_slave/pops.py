"""Pops at an acting slave that writes no journal: sends popped messages whose invisible time is over to the
retry topic at other masters, and accepts acknowledgements of them.

    journal, from its master's place on ─► check points in flight, by when their messages are visible again
        ─► due ─► the messages of some, 32 at once ─► sent to their group's retry topic at other masters
        ─► the mark (`pop/passed_on.py`): passed on up to here, except those that wait

The journal does not grow while the master is gone, so it is read once. Acknowledgements received here are in
the account as well, which the master asks for. If no other master hosts its topic, a check point waits and
later ones overtake it. The same applies while this slave lacks the group or the messages, because its master
may still have them. A check point is passed on once all of its messages were accepted; a slave killed before
that sends all of them again. A returning master waits for check points sent in part, and acknowledges those
passed on (`returning_master.py`).

A slave of Apache's master passes nothing on, because that master asks nobody when it returns. Apache's slave
sends check points, and other masters ask it for their messages (PopReviveService.java, EscapeBridge.java).
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

import msgspec

from libramq.broker.cluster.acting_slave.other_masters import (
    WINDOW_BYTES_MAX,
    OtherMasters,
    Outgoing,
    Retry,
    Window,
)
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.files.pop_loading import JournalReader
from libramq.clock import Clock, MonotonicMs, read_clock
from libramq.kernel.work import PORTION
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.pop import CheckPoint, InFlight
from libramq.pop.check_point import AckSet, Key
from libramq.store.log.append import undamaged
from libramq.store.log.segments import ColdRead
from libramq.store.reading.read import ReadStatus

#: Ours: at most this many messages are sent at once, not counting those of the last check point.
WINDOW_MAX: Final = 32
#: Ours: at most this many journal entries are taken by one read.
READ_MAX: Final = 128
#: Ours: check points that later ones may overtake; when there are more, those behind wait too.
WAITING_MAX: Final = 4_096
#: Ours: the interval of checks whether another master hosts the topics of waiting check points.
LOOK_AGAIN_MS: Final = 1_000

#: Properties of requests already carried out, which would otherwise be repeated.
_DROPPED: Final = (p.DELAY, p.TRANSACTION_PREPARED, *p.TIMER_REQUESTS)


class EscapingPops:
    """Passes check points on in the order of their visibility. ready: called when a window is done."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        masters: OtherMasters,
        clock: Clock,
        ready: Callable[[], None],
    ) -> None:
        self._revive_topic = names.REVIVE_TOPIC_PREFIX + config.cluster_name
        self._new_names = config.enable_retry_topic_v2
        self._store = files.store
        self._groups = files.tables.groups
        self._query = files.ledger.offsets.query
        self._file = files.passed_on
        self._unwritten = files.pop.unwritten
        self._save_soon = files.save_progress_soon
        self._masters = masters
        self._clock = clock
        self._ready = ready
        #: Whether to reread the journal once the window is done.
        self._begins_later = False
        self._reader: JournalReader | None = None
        self._in_flight: InFlight | None = None
        self._until = 0
        self._forget()

    @property
    def is_midway(self) -> bool:
        """Return whether check points have been sent in part, or another master has yet to answer."""
        return self._window is not None and (self._is_begun or bool(self._window.awaited))

    @property
    def knows_popped(self) -> bool:
        """Return whether the journal was read; that of Apache's master never is, and counts as read."""
        return self._in_flight is not None or self._file.content.place < 0

    def begin(self) -> None:
        """Read the journal as it is now, after finishing what was sent in part."""
        self._begins_later = self.is_midway
        if self._begins_later or self._file.content.place < 0:
            return
        self._forget()
        self._reader = JournalReader(
            self._store,
            self._file.content.place,
            revive_topic=self._revive_topic,
            now=read_clock(self._clock),
            read_max=READ_MAX,
        )

    def acknowledge(self, done: Iterable[AckSet]) -> bool:
        """Note acknowledged messages; each check point's are given as a Java BitSet.

        Return False while the journal is read, or for an unknown check point, whose messages this slave will
        hand out itself. Messages already passed on are ignored.
        """
        in_flight = self._in_flight
        if in_flight is None:
            return False
        done = list(done)
        if any(in_flight.find(key) is None and self._is_behind(key) for key, _ in done):
            return False
        for key, bit_set in done:
            check_point = in_flight.find(key)
            if check_point is not None:
                bits = check_point.open_bits_in(bit_set)
                in_flight.acknowledge(check_point, bits)
                if bits and check_point.origin >= 0:
                    self._file.acknowledge(check_point.origin, bits)
        return True

    def _is_behind(self, key: Key) -> bool:
        """Return whether a check point begins at or behind this slave's own position in the queue."""
        topic, group, queue_id, start_offset, _ = key
        queue = group, topic, queue_id
        position = self._unwritten.starts.get(queue, 0) if self._unwritten is not None else 0
        committed = self._query(group, topic, queue_id) or 0
        return start_offset >= max(position, committed)

    def end(self) -> None:
        """Forget everything in flight: the master is back, or the log is about to be truncated."""
        self._begins_later = False
        self._forget()

    def _forget(self) -> None:
        self._reader = None
        #: The check points in flight when the master was lost; None until the journal is read.
        self._in_flight = None
        self._unsorted: Iterator[CheckPoint] | None = None
        #: The origins of the check points sorted so far; emptied when all are.
        self._origins: set[int] = set()
        #: A heap by the time of visibility, then by place in the journal, which is unique.
        self._due: list[tuple[int, int, CheckPoint]] = []
        #: Due check points whose topics no other master has.
        self._parked: list[CheckPoint] = []
        self._look_again_ms = self._clock.monotonic_ms()
        self._end_window()

    def _end_window(self) -> None:
        self._window: Window | None = None
        #: The window's check points, whether some of their messages were accepted, and the origins of those
        #: that must wait.
        self._taken: list[CheckPoint] = []
        self._is_begun = False
        self._left: set[int] = set()
        #: The check point of each message by the message's `id()`; the window keeps the messages alive.
        self._owners: dict[int, CheckPoint] = {}

    def act(self, *, is_ending: bool = False) -> bool:
        """Read or send on; return whether to call again soon. May raise ColdRead.

        is_ending: only finish what was sent in part.
        """
        if is_ending and not self.is_midway:
            return False
        if self._reader is not None:
            self._read(self._reader)
            return True
        if self._unsorted is not None:
            self._sort(self._unsorted)
            return True
        if self._window is None:
            window = self._fill(self._clock.monotonic_ms())
            if not self._taken:
                return False
            self._window = window
            if window.is_done:  # None of its messages can be sent, or none needs to be.
                self._finish()
                return True
        window = self._window
        self._masters.send(window, self._outgoing, lambda: self._accepted(window))
        return False

    # Check points in flight.

    def _read(self, reader: JournalReader) -> None:
        if reader.step():
            return
        loaded = reader.loaded
        loaded.finish()
        self._reader, self._until = None, reader.end
        self._in_flight = loaded.in_flight
        if self._unwritten is not None:
            self._unwritten.starts = loaded.positions
        self._unsorted = iter(list(loaded.in_flight))

    def _sort(self, unsorted: Iterator[CheckPoint]) -> None:
        """Sort a portion of the check points in flight; skip those passed on before a restart."""
        assert self._in_flight is not None
        some = list(islice(unsorted, PORTION))
        passed_on = {each.origin for each in self._file.content.of(some)}
        for check_point in some:
            self._in_flight.acknowledge(check_point, self._file.acknowledged(check_point.origin))
            self._origins.add(check_point.origin)
            if check_point.origin >= 0 and check_point.origin not in passed_on:
                self._add(check_point)
        if len(some) < PORTION:
            self._unsorted = None
            self._file.keep(self._origins)
            self._origins = set()
            content = self._file.content
            # The mark stays, as the master may not have asked yet: check points before it count as waiting.
            waiting = tuple(each.origin for *_, each in self._due if content.reaches(each))
            self._file.content = msgspec.structs.replace(content, until=self._until, waiting=waiting)

    def _add(self, check_point: CheckPoint) -> None:
        heappush(self._due, (check_point.visible_ms, check_point.origin, check_point))

    # Sending.

    def _fill(self, now_ms: MonotonicMs) -> Window:
        """Take check points that are due, and return a window with their messages."""
        self._look_again(now_ms)
        messages: list[MessageExt] = []
        owners: dict[int, CheckPoint] = {}
        taken: list[CheckPoint] = []
        left: set[int] = set()
        size = 0
        try:
            while self._due and max(len(messages), len(left)) < WINDOW_MAX and size < WINDOW_BYTES_MAX:
                check_point = self._due[0][2]
                if check_point.due_ms > now_ms:
                    break
                has_masters = self._masters.has(names.popped_topic(check_point.topic, check_point.group))
                found = self._messages(check_point) if has_masters else None
                is_held_up = found is None and len(self._file.content.waiting) + len(left) >= WAITING_MAX
                if has_masters is None or is_held_up:
                    break
                heappop(self._due)
                taken.append(check_point)
                if not has_masters:
                    self._parked.append(check_point)
                if found is None:
                    left.add(check_point.origin)
                    continue
                messages += found
                owners |= {id(each): check_point for each in found}
                size += sum(each.store_size for each in found)
        except ColdRead:
            for each in taken:
                self._add(each)
            self._parked = [each for each in self._parked if each not in taken]
            raise
        self._taken, self._owners, self._left = taken, owners, left
        return Window(messages, self._until)

    def _look_again(self, now_ms: MonotonicMs) -> None:
        """Requeue check points whose topics another master has by now."""
        if now_ms < self._look_again_ms or not self._parked:
            return
        self._look_again_ms = now_ms + LOOK_AGAIN_MS
        parked, self._parked = self._parked, []
        for each in parked:
            if self._masters.has(names.popped_topic(each.topic, each.group)):
                self._add(each)
            else:
                self._parked.append(each)

    def _messages(self, check_point: CheckPoint) -> list[MessageExt] | None:
        """Return the unacknowledged messages; None if the group or one of the messages is missing here."""
        if check_point.group not in self._groups:
            return None
        found: list[MessageExt] = []
        for offset in check_point.open_offsets():
            read = self._store.read(check_point.topic, check_point.queue_id, offset, 1)
            messages = undamaged(read.data) if read.status is ReadStatus.FOUND else []
            if not messages or messages[0].queue_offset != offset:
                return None
            found.append(messages[0])
        return found

    def _outgoing(self, message: MessageExt) -> Outgoing:
        """Return a message's next attempt, as `Reviving` stores it at a master."""
        check_point = self._owners[id(message)]
        group = self._groups.get(check_point.group)
        properties = {name: value for name, value in message.properties.items() if name not in _DROPPED}
        if message.reconsume_times == 0 or p.FIRST_POP_TIME not in properties:
            properties[p.FIRST_POP_TIME] = str(check_point.pop_time_ms)
        topic = check_point.topic
        if not topic.startswith(names.RETRY_PREFIX):
            topic = names.pop_retry_topic(topic, check_point.group, is_new=self._new_names)
        of_topic = names.popped_topic(check_point.topic, check_point.group)
        times_max = group.retry_max_times if group is not None else None
        retry = Retry(of_topic, message.reconsume_times + 1, times_max)
        return Outgoing(topic, properties, retry=retry)

    def _accepted(self, window: Window) -> None:
        if self._window is not window:
            return
        self._is_begun = True
        if window.is_done:
            self._finish()
            self._ready()

    def _finish(self) -> None:
        """Note that the window's check points were passed on, except for those that must wait."""
        content = self._file.content
        done = {each.origin for each in self._taken} - self._left
        waiting = {*content.waiting, *self._left} - done
        mark = max((each.visible_ms, each.origin) for each in self._taken)
        visible_ms, origin = max(mark, (content.visible_ms, content.origin))
        self._file.content = msgspec.structs.replace(
            content, visible_ms=visible_ms, origin=origin, waiting=tuple(sorted(waiting))
        )
        self._save_soon()
        self._end_window()
        if self._begins_later:
            self.begin()

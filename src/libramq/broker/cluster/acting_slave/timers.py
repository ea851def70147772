"""Timer messages at an acting slave: sends due ones to other masters, slot by slot, and records in the timer
checkpoint up to which time.

    timers' topic ─► pending messages, by slot (8 bytes each) ─► an elapsed slot, 32 at once
                  ─► sent (`other_masters.py`) ─► the timer checkpoint: slots before this time are delivered

A slave has no wheel, and its master's log does not grow while the master is gone, so the topic is read
once, up to its end. Messages delivered according to the copied checkpoint or to copies in the log, recalled
messages and POP's entries are skipped. A slot counts as delivered once all of it was accepted; a slave killed
before that sends the whole slot again. A returning master waits for a slot sent in part, and adopts the
checkpoint (`returning_master.py`).

Upstream: TimerMessageStore.isShouldRunningDequeue, EscapeBridge.putMessage.
"""

from array import array
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from libramq.broker.cluster.acting_slave.other_masters import WINDOW_BYTES_MAX, OtherMasters, Outgoing, Window
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles, timer_options
from libramq.clock import Clock
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.store.log.append import undamaged
from libramq.timers.delivered_copies import DeliveredCopies
from libramq.timers.due_message import rolled_key

#: Ours: at most this many messages are sent at once.
WINDOW_MAX: Final = 32
#: Ours: at most this many entries of the timers' topic are taken by one read.
READ_MAX: Final = 128

_DROPPED: Final = (
    p.REAL_TOPIC, p.REAL_QUEUE_ID, p.DELAY, p.TRANSACTION_PREPARED, *p.TIMER_REQUESTS, p.TIMER_OUT_MS,
    p.TIMER_ENQUEUE_MS, p.TIMER_DEQUEUE_MS, p.TIMER_ROLL_TIMES,
)  # fmt: skip


class EscapingTimers:
    """Sends the messages of elapsed slots, oldest slot first. ready: called when the next can be sent."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        masters: OtherMasters,
        clock: Clock,
        ready: Callable[[], None],
    ) -> None:
        options = timer_options(config)
        self._precision_ms, self._roll_window_ms = options.precision_ms, options.roll_window_ms
        self._store = files.store
        self._timers = files.timers.timers
        self._destinations = files.destinations
        self._save_soon = files.save_progress_soon
        self._masters = masters
        self._clock = clock
        self._ready = ready
        self._copies = DeliveredCopies(files.store, files.destinations)
        #: Pending messages: offsets in the timers' topic, by tick; up to 259,200 slots, one a second for
        #: three days (timerMaxDelaySec). `_ticks` is a heap of the keys.
        self._slots: dict[int, array[int]] = {}
        self._ticks: list[int] = []
        #: The keys of recalled messages, by tick.
        self._recalled: dict[int, set[str]] = {}
        self._next_offset = self._end = 0
        self._forget_first()
        #: Whether to reread the topic once the first slot is delivered.
        self._begins_later = False

    @property
    def is_midway(self) -> bool:
        """Return whether a slot has been sent in part, or another master has yet to answer."""
        return self._is_begun or (self._window is not None and bool(self._window.awaited))

    def begin(self) -> None:
        """Read the topic as it is now, after finishing a slot sent in part; waits for the disk."""
        self._begins_later = self.is_midway
        if self._begins_later:
            return
        self._forget()
        self._next_offset = self._store.min_offset(names.TIMER_TOPIC, 0)
        self._end = self._store.max_offset(names.TIMER_TOPIC, 0)
        self._copies.begin()

    def end(self) -> None:
        """Forget pending messages: the master is back."""
        self._forget()
        self._copies.end()

    def _forget(self) -> None:
        self._slots.clear()
        self._ticks.clear()
        self._recalled.clear()
        self._begins_later = False
        self._forget_first()

    def _forget_first(self) -> None:
        """Reset the state of the first slot: none of it was sent."""
        self._window: Window | None = None
        #: Whether some of the first slot was accepted, and not all.
        self._is_begun = False
        #: The slot's first unread place, and the keys of rolled messages found, which may come twice.
        self._next_place = 0
        self._rolled: set[str] = set()

    def act(self, *, is_ending: bool = False) -> bool:
        """Read or send on; return whether to call again soon. May raise ColdRead.

        is_ending: only finish a slot sent in part.
        """
        if is_ending and not self.is_midway:
            return False
        if self._next_offset < self._end:
            self._collect()
            return True
        if self._window is None:
            if not self._ticks or self._ticks[0] >= int(self._clock.wall_ms()) // self._precision_ms:
                return False
            messages = self._find(self._ticks[0])
            if messages is None:
                return True
            if not messages:
                self._finish()
                return True
            self._window = Window(messages, self._end)
        window = self._window
        self._masters.send(window, self._outgoing, lambda: self._accepted(window))
        return False

    def _collect(self) -> None:
        """Sort the topic's next messages into slots."""
        read = self._store.read(names.TIMER_TOPIC, 0, self._next_offset, READ_MAX)
        for message in undamaged(read.data):
            out_ms = p.whole_number(message.properties.get(p.TIMER_OUT_MS, ""))
            topic = message.properties.get(p.REAL_TOPIC)
            if message.queue_offset >= self._end or out_ms is None or topic is None:
                continue
            if topic.startswith(names.REVIVE_TOPIC_PREFIX) or self._timers.was_delivered(message):
                continue
            tick = out_ms // self._precision_ms
            if p.TIMER_DEL_UNIQKEY in message.properties:
                self._recalled.setdefault(tick, set()).add(message.properties[p.TIMER_DEL_UNIQKEY])
                continue
            if tick not in self._slots:
                self._slots[tick] = array("q")
                heappush(self._ticks, tick)
            self._slots[tick].append(message.queue_offset)
        self._next_offset = max(read.next_offset, self._next_offset + 1)

    def _find(self, tick: int) -> list[MessageExt] | None:
        """Return the next undelivered messages of a slot; None: call again."""
        found: dict[object, MessageExt] = {}
        offsets, place, size = self._slots[tick], self._next_place, 0
        dropped = Counter[str]()
        until = min(place + WINDOW_MAX, len(offsets))
        while place < until and size < WINDOW_BYTES_MAX:
            read = self._store.read(names.TIMER_TOPIC, 0, offsets[place], 1)
            for message in undamaged(read.data):
                topic = message.properties[p.REAL_TOPIC]
                if message.physical_offset < self._destinations.deleted_end(topic):
                    dropped[topic] += 1
                    continue
                was_delivered = self._copies.has(message, (tick + 1) * self._precision_ms)
                if was_delivered is None:
                    return None
                if not was_delivered and not self._is_left_out(message, tick):
                    key = rolled_key(message, self._roll_window_ms)
                    found.setdefault(key or message.queue_offset, message)
                    size += message.store_size
            place += 1
        self._next_place = place
        self._destinations.drop(dropped)
        self._rolled.update(key for key in found if isinstance(key, str))
        return list(found.values()) if found or place == len(offsets) else None

    def _is_left_out(self, message: MessageExt, tick: int) -> bool:
        """Return whether a message was recalled, or is a second copy of one already sent."""
        properties = message.properties
        if f"{properties[p.REAL_TOPIC]}+{properties.get(p.UNIQ_KEY)}" in self._recalled.get(tick, ()):
            return True
        return rolled_key(message, self._roll_window_ms) in self._rolled

    def _outgoing(self, message: MessageExt) -> Outgoing:
        properties = {name: value for name, value in message.properties.items() if name not in _DROPPED}
        return Outgoing(message.properties[p.REAL_TOPIC], properties)

    def _accepted(self, window: Window) -> None:
        if self._window is not window:
            return
        self._is_begun = True
        if window.is_done:
            self._window = None
            if self._next_place == len(self._slots[self._ticks[0]]):
                self._finish()
            self._ready()

    def _finish(self) -> None:
        """Note that the first slot was delivered, like all slots before it."""
        tick = heappop(self._ticks)
        del self._slots[tick]
        self._recalled.pop(tick, None)
        self._forget_first()
        from_ms = (tick + 1) * self._precision_ms
        self._timers.copy(self._timers.again.renewed(self._end, from_ms))
        self._save_soon()
        if self._begins_later:
            self.begin()

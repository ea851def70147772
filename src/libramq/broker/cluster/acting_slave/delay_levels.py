"""Delay levels at an acting slave: sends messages whose delay is over to other masters. A message refused
three times no longer holds up later ones; it is retried every 30 s.

    due messages of a level, 32 at once ─► sent (`other_masters.py`)
        accepted: the level advances past them
        refused, or no other master has their topic: later messages overtake them (`LevelAccount`), and they
        are retried every 30 s

A send without an answer is repeated, and holds up those behind it: the other master may have stored it.
"""

from collections.abc import Callable, Set
from functools import partial
from typing import Final

import msgspec

from libramq.broker.cluster.acting_slave.other_masters import OtherMasters, Outgoing, Window
from libramq.broker.files.delay_schedule import WAITING_MAX, DelaySchedule, LevelAccount
from libramq.clock import MonotonicMs
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt

#: Ours: the delay before a level with more due messages is read again.
SOON_MS: Final = 10
#: Ours: after this many refusals by other masters, later messages overtake a message.
REFUSALS_MAX: Final = 3
#: Ours: the interval at which refused messages are retried.
WAITING_AGAIN_MS: Final = 30_000
#: Ours: at most this many of a level's refused messages are retried at once.
WAITING_SENT_MAX: Final = 32

_DROPPED: Final = (p.DELAY, p.REAL_TOPIC, p.REAL_QUEUE_ID, p.TRANSACTION_PREPARED, *p.TIMER_REQUESTS)


class EscapingLevels:
    """Sends due messages. moved: called when a level has advanced; ready: when one can continue."""

    def __init__(
        self,
        schedule: DelaySchedule,
        masters: OtherMasters,
        *,
        moved: Callable[[], None],
        ready: Callable[[], None],
    ) -> None:
        self._schedule = schedule
        self._masters = masters
        self._moved = moved
        self._ready = ready
        self._windows: dict[int, Window] = {}
        #: Refused messages being retried, by level; when each level is retried next, and after which offset.
        self._again: dict[int, Window] = {}
        self._again_ms: dict[int, MonotonicMs] = {}
        self._again_behind: dict[int, int] = {}

    @property
    def is_awaiting(self) -> bool:
        """Return whether another master has yet to answer."""
        return any(each.awaited for each in (*self._windows.values(), *self._again.values()))

    def begin(self) -> None:
        """Reset for a new absence of the master."""
        for of_level in (self._windows, self._again, self._again_ms, self._again_behind):
            of_level.clear()

    def end(self) -> None:
        """Forget every window without a pending request."""
        self._windows = {level: each for level, each in self._windows.items() if each.awaited}
        self._again = {level: each for level, each in self._again.items() if each.awaited}

    def act(self, now_ms: MonotonicMs) -> MonotonicMs | None:
        """Send what is due; return when to call again, or None to wait for an answer."""
        times_ms = [self._act_on(level, now_ms) for level in self._schedule.levels]
        return min([each for each in times_ms if each is not None], default=None)

    def _act_on(self, level: int, now_ms: MonotonicMs) -> MonotonicMs | None:
        window, next_ms = self._windows.get(level), None
        if window is None:
            window, next_ms = self._open(level, now_ms)
        if window is not None:
            if self._is_abandoned(window, REFUSALS_MAX) and self._pass_by(level, window):
                next_ms = now_ms + SOON_MS
            else:
                self._masters.send(window, self._outgoing, partial(self._accepted, level, window))
        self._send_again(level, now_ms)
        return next_ms

    def _open(self, level: int, now_ms: MonotonicMs) -> tuple[Window | None, MonotonicMs | None]:
        """Read the next due messages of a level; return when there are more."""
        due = self._schedule.due(level, now_ms)
        if due is None:
            return None, now_ms + SOON_MS
        next_ms = None if due.head_due_ms is None else max(due.head_due_ms, now_ms + SOON_MS)
        if not due.messages:
            account = self._schedule.account_of(level)
            if due.next_offset > account.until:  # The master delivered all of them.
                self._schedule.passed_on(level, msgspec.structs.replace(account, until=due.next_offset))
                self._moved()
            return None, next_ms
        window = self._windows[level] = Window(due.messages, due.next_offset)
        return window, next_ms

    def _outgoing(self, message: MessageExt) -> Outgoing:
        properties = {name: value for name, value in message.properties.items() if name not in _DROPPED}
        return Outgoing(_topic(message), properties)

    def _accepted(self, level: int, window: Window) -> None:
        if self._windows.get(level) is not window:
            return
        account = self._schedule.account_of(level)
        accepted = window.offsets - window.left
        until = window.end_offset if window.is_done else max(accepted) + 1
        waiting = {*account.waiting} - accepted | {each for each in window.left if each < until}
        self._schedule.passed_on(level, LevelAccount(until=until, waiting=tuple(sorted(waiting))))
        self._moved()
        if window.is_done:
            del self._windows[level]
            self._ready()

    # Overtaken messages.

    def _is_abandoned(self, window: Window, refusals_max: int) -> bool:
        """Return whether other masters refuse, or cannot take, every message left in a window."""
        return not window.awaited and all(
            window.refusals.get(place, 0) >= refusals_max or self._masters.has(_topic(message)) is False
            for place, message in enumerate(window.messages)
            if message is not None
        )

    def _pass_by(self, level: int, window: Window) -> bool:
        """Advance past a window if the account has room for its remaining messages."""
        waiting = sorted({*self._schedule.account_of(level).waiting, *window.left})
        if len(waiting) > WAITING_MAX:
            return False
        self._schedule.passed_on(level, LevelAccount(until=window.end_offset, waiting=tuple(waiting)))
        self._moved()
        del self._windows[level]
        return True

    def _send_again(self, level: int, now_ms: MonotonicMs) -> None:
        """Retry some of the refused messages once their retry is due."""
        window = self._again.get(level)
        if window is None:
            under_way = self._windows[level].left if level in self._windows else ()
            waiting = [each for each in self._schedule.account_of(level).waiting if each not in under_way]
            if not waiting or now_ms < self._again_ms.setdefault(level, now_ms + WAITING_AGAIN_MS):
                return
            behind = self._again_behind.get(level, -1)
            some = [each for each in waiting if each > behind][:WAITING_SENT_MAX]
            messages = self._schedule.messages_at(level, some)  # May raise ColdRead; then it is called again.
            self._again_behind[level] = some[-1] if some else -1
            gone = {*some} - {each.queue_offset for each in messages}
            self._remove_waiting(level, gone)
            if not some:
                self._again_ms[level] = now_ms + WAITING_AGAIN_MS
            if not messages:
                return
            window = self._again[level] = Window(messages, 0)
            window.refusals = dict.fromkeys(range(len(messages)), REFUSALS_MAX)  # Already logged.
        if self._is_abandoned(window, REFUSALS_MAX + 1):
            del self._again[level]
            self._ready()
        else:
            self._masters.send(window, self._outgoing, partial(self._accepted_again, level, window))

    def _accepted_again(self, level: int, window: Window) -> None:
        if self._again.get(level) is window:
            self._remove_waiting(level, window.offsets - window.left)
            if window.is_done:
                self._ready()

    def _remove_waiting(self, level: int, delivered: Set[int]) -> None:
        """Remove offsets from the waiting ones: another master has the message, or it no longer exists."""
        account = self._schedule.account_of(level)
        waiting = tuple(each for each in account.waiting if each not in delivered)
        if waiting != account.waiting:
            self._schedule.passed_on(level, msgspec.structs.replace(account, waiting=waiting))
            self._moved()


def _topic(message: MessageExt) -> str:
    return message.properties.get(p.REAL_TOPIC, names.SCHEDULE_TOPIC)

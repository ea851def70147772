"""Popping: the checks of a pop, how long it is held, what it reads when a message wakes it, the limits of
invisible time and of messages in flight, and the order of journal, answer and commit.

    Pop ─► checks ─► take ─┬─► check points journalled ─► answered ─► offsets committed
                           ├─► held ─► a message came | expired            nothing to take
                           └─► a thread reads cold messages, then again

Check points are journalled before a message leaves; the offset is committed once they are on the disk. The
order of the checks and their codes are upstream's: PopMessageProcessor.java, PopLongPollingService.java.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.pull import PullFilters
from libramq.broker.pop.ordering import Ordering
from libramq.broker.pop.taking import MESSAGES_OF_A_POP_MAX, PopSelection, Share, Taken, Taking
from libramq.catalog.requirements import require_not_own
from libramq.clock import MonotonicMs, WallMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.formats.tables import PERM_READ
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel, Phase
from libramq.kernel.purgatory import Waiter
from libramq.kernel.work import Each, InThread, Work
from libramq.logs import get_logger
from libramq.message import names
from libramq.pop import CheckPoint
from libramq.pop.check_point import diffs_of
from libramq.pop.entries import MESSAGES_MAX
from libramq.pop.handle import ORDERED
from libramq.pop.ordered import OrderedPop
from libramq.pop.positions import QueueOfGroup
from libramq.store.log.segments import Cold
from libramq.store.message_store import WARMINGS_MAX
from libramq.waits.held_pops import ANY_QUEUE, HeldPop, HeldPops
from libramq.waits.held_pulls import SUSPEND_MS_MAX

log = get_logger(__name__)

#: MessageStoreConfig.timerMaxDelaySec: the longest time a message can be invisible.
INVISIBLE_MS_MAX: Final = 3 * 24 * 3600 * 1000
#: BrokerConfig.reviveQueueNum.
REVIVE_QUEUES: Final = 8
#: PopMessageRequestHeader.isTimeoutTooMuch: such a pop was queued for too long, and its client has given up.
LATE_MS_MAX: Final = 500
#: PopLongPollingService.wakeUp: the answer leaves before the client gives up.
EARLY_MS: Final = 50
#: Ours: Apache's proxy sends UUIDs.
ATTEMPT_ID_CHARACTERS_MAX: Final = 128
TOO_MANY_WAIT: Final = "too many pops wait for messages"


class PopResult(NamedTuple):
    """The result of a pop. shares: the messages by queue; empty: there was nothing to take.

    end: the log's end with the check points. ordered: the shares' pops in order.
    full: why the group may not pop, or wait, now; empty if it may.
    popped_ms: the pop's time, on this machine.
    """

    pop_time_ms: int
    revive_queue: int
    shares: Sequence[Share] = ()
    rest: int = 0
    end: int = 0
    full: str = ""
    ordered: Sequence[OrderedPop] = ()
    popped_ms: MonotonicMs = MonotonicMs(0)


class Pop(msgspec.Struct, eq=False, kw_only=True):
    """A group's request for messages. remaining_ms: the client's remaining wait; below 0: since it gave up.

    wide_max: the most messages if it may get several check points of a queue; not in order.
    is_notification: the client only asks whether there are messages, and fetches them by another pop.
    warmings: how many times a thread has read for it.
    users_version: of the users table that permitted it; None: the present one.
    """

    waiter: Waiter[PopResult]
    wanted: PopSelection
    invisible_ms: int = 0
    remaining_ms: int = 0
    wide_max: int = 0
    expression: str | None = None
    expression_type: str | None = None
    is_notification: bool = False
    warmings: int = 0
    users_version: int | None = None


class Popping:
    """Serves pops, including held ones; an `arrivals.Listener`."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        kernel: Kernel,
        taking: Taking,
        ordering: Ordering,
        filters: PullFilters,
    ) -> None:
        self._store, tables = files.store, files.tables
        self._journal, self._in_flight = files.pop.journal, files.pop.in_flight
        self._topics, self._groups, self._fences = tables.topics, tables.groups, tables.fences
        self._modes = tables.request_modes
        self._taking, self._ordering, self._filters = taking, ordering, filters
        ordering.visible = self.visible
        self._held: HeldPops[Pop] = HeldPops(kernel.purgatory)
        self._waking = Each(kernel.work, self._wake)
        self._clock = kernel.clock
        self._effects, self._soon = kernel.effects, kernel.soon
        self._broker_name = config.broker_name
        self._readable = bool(config.broker_permission & PERM_READ)
        self._pops = 0
        #: Groups for which the limit of pops in flight was logged.
        self._full_groups: set[str] = set()
        #: Counts changes of users: a pop permitted under an earlier version gets no messages.
        self.users_version = 0
        #: Topics and groups of queues that were reset in this turn.
        self._reset: set[tuple[str, str]] = set()

    def pop(self, pop: Pop, *, wall_ms: WallMs, now_ms: MonotonicMs) -> None:
        """Answer a pop through its waiter, now or later; raises BrokerError for an immediate refusal."""
        if pop.users_version is None:
            pop.users_version = self.users_version
        if pop.remaining_ms < -LATE_MS_MAX and not pop.is_notification:
            remark = f"the broker[{self._broker_name}] pop message is timeout too much"
            raise broker_error(ResponseCode.POLLING_TIMEOUT, remark)
        attempt = len(pop.wanted.attempt_id or "")
        if attempt > ATTEMPT_ID_CHARACTERS_MAX:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"an attemptId of {attempt} characters; {ATTEMPT_ID_CHARACTERS_MAX} are allowed",
            )
        self.check(pop.wanted, wall_ms)
        _require_count(pop.wanted.count_max)
        if pop.wide_max > pop.wanted.count_max and not pop.wanted.in_order:
            pop.wanted.count_max = min(pop.wide_max, MESSAGES_OF_A_POP_MAX)
        if not 0 <= pop.invisible_ms <= INVISIBLE_MS_MAX:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {pop.invisible_ms}; 0 to {INVISIBLE_MS_MAX} ms are allowed",
            )
        if pop.expression:
            own = self._filters.own(pop.expression, pop.expression_type)
            pop.wanted.tag_codes, pop.wanted.message_filter = own
        self._modes.popped(pop.wanted.topic, pop.wanted.group)
        pop.expression = None  # The text may be long, and its parsed form is enough.
        hold_ms = min(max(pop.remaining_ms - EARLY_MS, 0), SUSPEND_MS_MAX)
        self._run(pop, now_ms + hold_ms if hold_ms else None)

    def check(self, wanted: PopSelection, wall_ms: WallMs) -> None:
        """Raise BrokerError if a group may not read a topic."""
        topic, group = wanted.topic, wanted.group
        if not self._readable:
            raise broker_error(ResponseCode.NO_PERMISSION, "the broker's brokerPermission forbids popping")
        config = self._topics.require(topic)
        if not config.readable:
            raise broker_error(ResponseCode.NO_PERMISSION, f"the topic[{topic}] popping message is forbidden")
        if wanted.queue_id >= config.read_queue_nums:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{wanted.queue_id}] is illegal, topic:[{topic}]"
                f" topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )
        require_not_own(group)
        if not self._groups.require(group, wall_ms).consume_enable:
            raise broker_error(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        if self._fences.goes_by_epochs(group):
            raise broker_error(
                ResponseCode.NO_PERMISSION,
                f"group {group} has members whose queues its coordinator assigns; pop as another group",
            )

    def peek(self, wanted: PopSelection) -> Work[Taken]:
        """Return the next messages of a group without making them invisible."""
        _require_count(wanted.count_max)
        taken = self._taking.take(wanted, may_wait=False)
        for warmings in range(1, WARMINGS_MAX + 1):
            if not taken.cold:
                break
            yield InThread(Thread.READ, partial(self._store.warm, taken.cold))
            taken = self._taking.take(wanted, may_wait=warmings >= WARMINGS_MAX)
        return taken

    # Messages arrive.

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Let held pops take the new messages of a queue."""
        groups = self._held.groups(topic)
        if groups:
            self._waking.add((topic, group, queue_id) for group in groups)

    def visible(self, topic: str, group: str) -> None:
        """Let held pops take messages that became visible again."""
        self._waking.add([(topic, group, ANY_QUEUE)])

    def reset(self, queue: QueueOfGroup) -> None:
        """Pop a queue from an offset that an operator sets; wake held pops once the offset is set."""
        self._ordering.forget(queue)
        group, topic, _ = queue
        self._reset.add((topic, group))
        self._soon(Phase.JOURNAL, self._show_reset)

    def _show_reset(self) -> None:
        reset, self._reset = self._reset, set()
        for topic, group in sorted(reset):
            self.visible(topic, group)

    def topic_deleted(self, topic: str) -> None:
        """Refuse the held pops of a topic that was deleted."""
        gone = broker_error(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] was deleted")
        for held in self._held.take_all(topic):
            held.request.waiter.refuse(gone)

    def end_held(self) -> None:
        """Answer all held pops as expired: permissions have changed, and clients pop again."""
        self.users_version += 1
        for topic in self._held.topics():
            for held in self._held.take_all(topic):
                self._expired(held)

    def refuse_held(self, error: BrokerError) -> None:
        """Refuse all held pops."""
        for topic in self._held.topics():
            for held in self._held.take_all(topic):
                held.request.waiter.refuse(error)

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many pops of a group are held for a queue."""
        return self._held.count(topic, group, queue_id)

    def _wake(self, which: tuple[str, str, int]) -> None:
        """Run a held pop of a group for a queue's messages; if it took any, schedule the next one."""
        topic, group, queue_id = which
        held = self._held.take(topic, group, queue_id)
        if held is None:
            return
        only = (topic, queue_id) if queue_id != ANY_QUEUE else None
        if self._run_held(held.request, held.until_ms, only):
            self._waking.add([which])

    def _expired(self, held: HeldPop[Pop]) -> None:
        """Answer an expired pop without messages: a message for it would have woken it."""
        held.request.waiter.answer(PopResult(0, 0))

    def _run_held(self, pop: Pop, until_ms: MonotonicMs | None, only: tuple[str, int] | None = None) -> bool:
        try:
            return self._run(pop, until_ms, only)
        except Exception as error:  # A failing pop gets the error; the others and the sender continue.
            pop.waiter.refuse(error)
            return False

    def _run(self, pop: Pop, until_ms: MonotonicMs | None, only: tuple[str, int] | None = None) -> bool:
        """Answer or hold a pop; return whether it took messages, so that some may be left for the next pop.

        only: the queue that a held pop was woken for. The pop found the other queues empty; a group with a
        thousand queues must not search them again for every message.
        """
        if not pop.waiter.connection.is_open:  # It closed while a thread was reading.
            return True
        if pop.users_version != self.users_version:
            pop.waiter.answer(PopResult(0, 0))
            return True
        if pop.is_notification:
            return self._notify(pop, until_ms, only)
        taken = (
            Taken()
            if self._is_full(pop)
            else self._taking.take(pop.wanted, only, may_wait=pop.warmings >= WARMINGS_MAX)
        )
        if taken.cold:
            self._effects.proceed(pop.waiter.connection, self._run_warmed(pop, until_ms, taken.cold))
            return False
        if taken.messages:
            make = self._block if pop.wanted.in_order else self._make_invisible
            pop.waiter.answer(make(pop, taken))
            return taken.rest > 0
        for share in taken.shares:  # All messages were filtered out.
            self._taking.move_on(pop.wanted.group, share, 0)
        # If more messages remain, the client pops on; a held pop would wait for a new one.
        self._hold_or_answer(pop, None if taken.shares and taken.rest else until_ms)
        return False

    def _notify(self, pop: Pop, until_ms: MonotonicMs | None, only: tuple[str, int] | None) -> bool:
        if self._taking.has_any(pop.wanted, only):
            pop.waiter.answer(PopResult(0, 0, rest=1))
            return True
        self._hold_or_answer(pop, until_ms)
        return False

    def _run_warmed(self, pop: Pop, until_ms: MonotonicMs | None, cold: tuple[Cold, ...]) -> Work[None]:
        yield InThread(Thread.READ, partial(self._store.warm, cold))
        pop.warmings += 1
        if self._run_held(pop, until_ms):
            self.visible(pop.wanted.topic, pop.wanted.group)

    def _make_invisible(self, pop: Pop, taken: Taken) -> PopResult:
        """Journal the check points, and move past the messages."""
        wanted, now_ms = pop.wanted, self._clock.monotonic_ms()
        wall_ms = self._clock.wall_ms()
        shares = [share for share in taken.shares if share.offsets]
        parts = [(share, start, offsets) for share in shares for start, offsets in share.parts()]
        untimed_keys = [(share.topic, wanted.group, share.queue_id, start) for share, start, _ in parts]
        pop_time_ms = self._in_flight.unused_time(untimed_keys, int(wall_ms))
        self._pops += 1
        revive_queue = self._pops % REVIVE_QUEUES
        check_points = [
            CheckPoint(
                topic=share.topic,
                group=wanted.group,
                queue_id=share.queue_id,
                start_offset=start,
                pop_time_ms=pop_time_ms,
                invisible_ms=pop.invisible_ms,
                diffs=diffs_of(start, offsets),
                broker_name=self._broker_name,
                revive_queue=revive_queue,
                due_ms=now_ms + pop.invisible_ms,
                failures=share.failures,
            )
            for share, start, offsets in parts
        ]
        end = self._journal.write(check_points, wall_ms=wall_ms)
        self._full_groups.discard(wanted.group)
        for share in taken.shares:
            self._taking.move_on(wanted.group, share, end)
        return PopResult(pop_time_ms, revive_queue, shares, taken.rest, end, popped_ms=now_ms)

    def _block(self, pop: Pop, taken: Taken) -> PopResult:
        """Block the queues whose messages are handed out in order."""
        wanted = pop.wanted
        shares = [share for share in taken.shares if share.offsets]
        queues = [(wanted.group, share.topic, share.queue_id) for share in shares]
        pop_time_ms = self._ordering.pop_time(queues)
        ordered = [
            self._ordering.popped(
                queue,
                share.start,
                share.offsets,
                pop_time_ms=pop_time_ms,
                invisible_ms=pop.invisible_ms,
                attempt_id=wanted.attempt_id,
            )
            for queue, share in zip(queues, shares, strict=True)
        ]
        self._taking.note_turn(wanted.group, shares[-1])
        now_ms = self._clock.monotonic_ms()
        return PopResult(pop_time_ms, ORDERED, shares, taken.rest, ordered=ordered, popped_ms=now_ms)

    def _is_full(self, pop: Pop) -> bool:
        """Return whether a pop needs a check point but its group has reached its limit."""
        needs_check_point = not (pop.is_notification or pop.wanted.in_order)
        return needs_check_point and self._in_flight.is_full_for(pop.wanted.group)

    def _unacknowledged(self, group: str) -> str:
        """Return why a group may pop no more; log the reason the first time."""
        reason = (
            f"group {group} has {self._in_flight.count_of(group)} pops that are not acknowledged, of"
            f" {len(self._in_flight)} of all groups; acknowledge messages, or pop more of them at once"
        )
        if group not in self._full_groups:
            self._full_groups.add(group)
            log.warning("a group pops nothing more", reason=reason)
        return reason

    def _hold_or_answer(self, pop: Pop, until_ms: MonotonicMs | None) -> None:
        wanted, connection = pop.wanted, pop.waiter.connection
        if self._is_full(pop):
            pop.waiter.answer(PopResult(0, 0, full=self._unacknowledged(wanted.group)))
        elif until_ms is None:
            pop.waiter.answer(PopResult(0, 0))
        elif not self._held.may_hold(connection, wanted.topic, wanted.group, wanted.queue_id):
            pop.waiter.answer(PopResult(0, 0, full=TOO_MANY_WAIT))
        else:
            pop.warmings = 0
            topics = (
                wanted.topic,
                names.pop_retry_topic(wanted.topic, wanted.group),
                names.pop_retry_topic(wanted.topic, wanted.group, is_new=True),
            )
            held = HeldPop(connection, topics, wanted.group, max(wanted.queue_id, -1), until_ms, pop)
            self._held.hold(held, self._expired)


def _require_count(count_max: int) -> None:
    if not 0 < count_max <= MESSAGES_MAX:
        raise broker_error(
            ResponseCode.INVALID_PARAMETER, f"{count_max} messages; 1 to {MESSAGES_MAX} are allowed"
        )

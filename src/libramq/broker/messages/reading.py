"""Reading: a pull is checked, read, and answered at once, or held until messages arrive or it expires; how
long it is held, whether it may commit, and what a slave withholds (a former topic's messages, a move to
another offset).

    Pull ─► checks ─► read ─┬─► answered                    found, or it does not wait
                            ├─► held ─► arrived | expired   no message yet
                            └─► a thread reads cold messages, then again

The order of the checks and their codes are upstream's: PullMessageProcessor.java,
PullRequestHoldService.java.
"""

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Final

import msgspec

from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.groups.pull import Pull, PullFilters, PullResult, PullStatus
from libramq.broker.messages.throughput import Throughput
from libramq.clock import MonotonicMs, WallMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.filter.subscription import MessageFilter
from libramq.formats.tables import PERM_READ
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.kernel.work import Each, InThread, Work
from libramq.store.log.segments import Cold, ColdRead
from libramq.store.message_store import WARMINGS_MAX, MessageStore
from libramq.store.reading.filtered_read import FilteredRead
from libramq.store.reading.read import NO_QUEUE, ReadResult, ReadStatus
from libramq.waits.held_pulls import SUSPEND_MS_MAX, HeldPull, HeldPulls

#: PullRequestHoldService.run: how long a client does not learn of messages that its held pull has passed
#: over. Only then can it commit past them; until it has, they count as lag.
PASSED_OVER_MS: Final = 5_000
_STATUSES: Final = {
    ReadStatus.FOUND: PullStatus.FOUND,
    ReadStatus.NO_MATCHED_MESSAGE: PullStatus.NOTHING_MATCHED,
    ReadStatus.MESSAGE_WAS_REMOVING: PullStatus.NOTHING_MATCHED,
    ReadStatus.OFFSET_FOUND_NULL: PullStatus.NOTHING_YET,
    ReadStatus.OFFSET_OVERFLOW_ONE: PullStatus.NOTHING_YET,
    ReadStatus.OFFSET_OVERFLOW_BADLY: PullStatus.OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: PullStatus.OFFSET_MOVED,
}


class _Cause(Enum):
    """The cause of running a pull."""

    REQUESTED = auto()
    WOKEN = auto()
    EXPIRED = auto()


class Reading:
    """Serves pulls, including held ones."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        consumers: ConsumerClients,
        *,
        filters: PullFilters,
        offsets: OffsetCommits,
        held: HeldPulls[Pull],
        kernel: Kernel,
        throughput: Throughput,
    ) -> None:
        self._reads_committed, self._rebalances = consumers.reads_committed, consumers.rebalances
        self._store, self._fences = files.store, files.tables.fences
        self._requirements = files.tables.requirements
        self._filters = filters
        self._offsets = offsets
        self._held = held
        self._waking = Each(kernel.work, self._wake)
        self._ending = Each(kernel.work, self._end)
        #: Pulls with filters, which may take milliseconds each; the others take turns with them.
        self._filtering = Each(kernel.work, self._wake)
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._readable = bool(config.broker_permission & PERM_READ)
        self.poll(long=config.long_polling_enable, short_ms=config.short_polling_time_ms)
        self._throughput = throughput
        #: Counts changes of users: a pull permitted under an earlier version gets no messages.
        self.users_version = 0

    def poll(self, *, long: bool, short_ms: int) -> None:
        """Set whether pulls that find nothing are held for the time they request, or for a fixed time."""
        self._long_polling, self._short_polling_ms = long, short_ms

    def pull(self, pull: Pull, *, wall_ms: WallMs, now_ms: MonotonicMs) -> None:
        """Answer a pull through its waiter, now or later; raises BrokerError for an immediate refusal."""
        if pull.users_version is None:
            pull.users_version = self.users_version
        self._check(pull, wall_ms)
        self._check_fence(pull)
        self._rebalances.pulled(  # Before a commit, which would look as if the queue had been read.
            pull.waiter.connection,
            pull.group,
            pull.topic,
            pull.queue_id,
            pull.offset,
            is_opened=pull.member is not None,
            now_ms=now_ms,
        )
        if pull.commit_offset is not None and self._may_commit(pull):
            self._offsets.commit(pull.group, pull.topic, pull.queue_id, pull.commit_offset)
        place = pull.group, pull.topic, pull.queue_id
        if self._offsets.query(*place) is None and (
            pull.member is not None or self._reads_committed(pull.waiter.connection, pull.group)
        ):
            self._offsets.note_pull(*place, pull.offset)
        reset = self._reset_to_follow(pull)
        if reset is not None:
            pull.waiter.answer(self._moved(pull, reset))
            return
        hold_ms = 0
        if pull.hold_ms is not None:
            hold_ms = pull.hold_ms if self._long_polling else self._short_polling_ms
            hold_ms = min(max(hold_ms, 0), SUSPEND_MS_MAX)
        self._read(pull, now_ms + hold_ms if hold_ms else None, now_ms, _Cause.REQUESTED)

    def reset(self, topic: str, queue_id: int, is_to_move: Callable[[Pull], bool]) -> None:
        """Answer some held pulls of a queue with the offset set by an operator."""
        for held in self._held.take(topic, queue_id, is_to_move):
            pull = held.request
            reset = self._reset_to_follow(pull)
            if reset is not None:
                pull.waiter.answer(self._moved(pull, reset))

    def refuse(
        self, topic: str, queue_id: int, is_to_refuse: Callable[[Pull], bool], error: BrokerError
    ) -> None:
        """Refuse some held pulls of a queue."""
        for held in self._held.take(topic, queue_id, is_to_refuse):
            held.request.waiter.refuse(error)

    def end_held(self) -> None:
        """Answer all held pulls without messages: permissions have changed, and are checked again."""
        self.users_version += 1
        self._ending.add(self._held.every())

    def _end(self, held: HeldPull[Pull]) -> None:
        if held.is_parked:
            self._held.release(held)
            held.request.offset = held.offset
            self._answer_nothing(held.request, _Cause.EXPIRED, self._clock.monotonic_ms())

    def _answer_nothing(self, pull: Pull, cause: _Cause, now_ms: MonotonicMs) -> None:
        """Answer a pull that was permitted under an earlier version of the users; its client pulls again."""
        # A client that does not wait could conclude that it has read the queue to its end.
        is_first = cause is _Cause.REQUESTED
        status = PullStatus.NOTHING_MATCHED if is_first else PullStatus.NOTHING_YET
        found = ReadStatus.NO_MATCHED_MESSAGE if is_first else ReadStatus.OFFSET_OVERFLOW_ONE
        group, topic, queue_id = pull.group, pull.topic, pull.queue_id
        ends = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        self._rebalances.answered(pull.waiter.connection, group, topic, queue_id, None, now_ms=now_ms)
        pull.waiter.answer(PullResult(status, ReadResult(found, pull.offset, *ends)))

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Run the held pulls of a queue again, because it has new messages up to an offset."""
        if (topic, queue_id) not in self._held:  # The usual case.
            return
        new_codes = partial(self._store.tag_codes, topic, queue_id, end=end)
        new_properties = partial(self._store.properties, topic, queue_id, end=end)
        by_ms = self._clock.monotonic_ms() + PASSED_OVER_MS
        woken = self._held.matching(topic, queue_id, end, new_codes, new_properties, by_ms=by_ms)
        filtered = [held for held in woken if held.passes is not None]
        if filtered:
            self._filtering.add(filtered)
            woken = [held for held in woken if held.passes is None]
        self._waking.add(woken)

    def _wake(self, held: HeldPull[Pull]) -> None:
        """Run a held pull, unless it was answered or has ended before its turn."""
        if not held.is_parked:
            return
        if held.passes is not None and held.is_passed_over():
            self._held.expire_by(held, self._clock.monotonic_ms() + PASSED_OVER_MS)
            return
        self._held.release(held)
        held.request.offset = held.offset
        self._run_again(held.request, held.until_ms, _Cause.WOKEN)  # It is held again if no message matches.

    def _expired(self, held: HeldPull[Pull]) -> None:
        held.request.offset = held.offset
        self._run_again(held.request, None, _Cause.EXPIRED)

    def _run_again(self, pull: Pull, hold_until_ms: MonotonicMs | None, cause: _Cause) -> None:
        try:
            self._check_fence(pull)
            self._read(pull, hold_until_ms, self._clock.monotonic_ms(), cause)
        except Exception as error:  # A failing pull gets the error; the others and the sender continue.
            pull.waiter.refuse(error)

    def _check(self, pull: Pull, wall_ms: WallMs) -> None:
        if not self._readable:
            raise broker_error(ResponseCode.NO_PERMISSION, "the broker's brokerPermission forbids pulling")
        group = self._requirements.consuming_group(pull.group, wall_ms)
        self._requirements.queue_to_read(pull.topic, pull.queue_id, pull.waiter.connection.address)
        self._requirements.topic_allowed(pull.group, pull.topic)
        if pull.expression is not None:
            if not group.consume_broadcast_enable:
                self._filters.check_is_shared(pull.group)
            wanted = self._filters.own(pull.expression, pull.expression_type)
        else:
            wanted = self._filters.subscribed(
                pull.group,
                pull.topic,
                pull.subscription_version,
                may_broadcast=group.consume_broadcast_enable,
            )
        pull.tag_codes, pull.message_filter = wanted

    def _check_fence(self, pull: Pull) -> None:
        # A slave does not know the openings: its master granted them, and grants no others while it is gone.
        if pull.member is not None and not self._store.config.is_copy:
            self._fences.check(pull.group, pull.topic, pull.queue_id, pull.member, pull.epoch)

    def _reset_to_follow(self, pull: Pull) -> int | None:
        """Return the offset to which the consumer must be moved; None at a slave: its master does that.

        With its next copy of the offsets, the slave would get the reset again, and move the consumer again.
        """
        group, topic, queue_id = pull.group, pull.topic, pull.queue_id
        pending = self._offsets.pending_reset(group, topic, queue_id)
        if pending is None or self._store.config.is_copy:
            return None
        connection = pull.waiter.connection
        if self._offsets.follows_reset(group, topic, queue_id, pull.offset, connection.number):
            return None
        if not self._reads_committed(connection, group):
            return None  # The consumer chooses its offsets itself.
        self._offsets.note_reset_sent(group, topic, queue_id, connection.number)
        return pending

    def _may_commit(self, pull: Pull) -> bool:
        """Return whether a pull may commit. Without a member it may, unless the group requires epochs."""
        if self._store.config.is_copy:  # As in Apache's: the master's offsets would replace the commit.
            return False
        return pull.member is not None or not self._fences.goes_by_epochs(pull.group)

    def _read(
        self, pull: Pull, hold_until_ms: MonotonicMs | None, now_ms: MonotonicMs, cause: _Cause
    ) -> None:
        """Read, and answer or hold."""
        may_wait = pull.warmings >= WARMINGS_MAX
        if pull.topic_start and self._store.config.is_copy:
            nothing = _nothing_of_former_topic(
                self._store, pull.topic, pull.queue_id, pull.offset, pull.topic_start, may_wait=may_wait
            )
            if nothing is not None:
                self._finish(pull, hold_until_ms, now_ms, cause, nothing)
                return
        if pull.message_filter is None:
            result = self._store.read(
                pull.topic,
                pull.queue_id,
                pull.offset,
                pull.count_max,
                pull.bytes_max,
                pull.tag_codes,
                may_wait=may_wait,
                may_be_wrapped=pull.takes_batches,
            )
            self._finish(pull, hold_until_ms, now_ms, cause, result)
        else:
            finish = partial(self._finish, pull, hold_until_ms, now_ms, cause)
            self._read_filtered(pull, pull.message_filter, finish, may_wait=may_wait)

    def _read_filtered(
        self,
        pull: Pull,
        message_filter: MessageFilter,
        finish: Callable[[ReadResult], None],
        *,
        may_wait: bool,
    ) -> None:
        """Read through a filter: at once if one step is enough, otherwise in turns with other reads."""
        read = self._store.filtered_read(
            pull.topic,
            pull.queue_id,
            pull.offset,
            pull.count_max,
            pull.bytes_max,
            message_filter,
            may_wait=may_wait,
        )
        result = read.step() if read is not None else self._store.no_queue(pull.topic)
        if result is not None:
            self._store.count_read(result)
            finish(result)
        elif read is not None:
            self._effects.proceed(pull.waiter.connection, self._steps(pull, read, finish))

    def _steps(self, pull: Pull, read: FilteredRead, finish: Callable[[ReadResult], None]) -> Work[None]:
        try:
            while True:
                yield None
                result = read.step()
                if result is not None:
                    self._check_fence(pull)
                    self._store.count_read(result)
                    finish(result)
                    return
        except Exception as error:  # As in `_run_again`.
            pull.waiter.refuse(error)

    def _read_warmed(
        self, pull: Pull, hold_until_ms: MonotonicMs | None, cause: _Cause, cold: tuple[Cold, ...]
    ) -> Work[None]:
        yield InThread(Thread.READ, partial(self._store.warm, cold))
        pull.warmings += 1
        self._run_again(pull, hold_until_ms, cause)

    def _finish(
        self,
        pull: Pull,
        hold_until_ms: MonotonicMs | None,
        now_ms: MonotonicMs,
        cause: _Cause,
        result: ReadResult,
    ) -> None:
        if pull.users_version != self.users_version:
            self._answer_nothing(pull, cause, now_ms)
            return
        if result.status is ReadStatus.WOULD_WAIT:
            work = self._read_warmed(pull, hold_until_ms, cause, result.cold)
            self._effects.proceed(pull.waiter.connection, work)
            return
        status = _status(pull, result)
        if status is PullStatus.OFFSET_MOVED and self._store.config.is_copy:
            # The master may have the missing messages: the consumer waits for it, and is not moved.
            status, result = PullStatus.NOTHING_YET, msgspec.structs.replace(result, next_offset=pull.offset)
        if (
            status is not PullStatus.FOUND
            and hold_until_ms is not None
            and self._held.may_hold(pull.waiter.connection, pull.topic, pull.queue_id)
        ):
            if status is PullStatus.NOTHING_YET:
                self._hold(pull, hold_until_ms)
                return
            if (
                cause is _Cause.WOKEN
                and status is PullStatus.NOTHING_MATCHED
                and result.next_offset >= result.max_offset
            ):
                # All new messages were filtered out: wait behind them rather than answer without messages.
                pull.offset = result.next_offset
                self._hold(pull, min(hold_until_ms, now_ms + PASSED_OVER_MS))
                return
        if cause is _Cause.EXPIRED and status is PullStatus.NOTHING_MATCHED:
            status = PullStatus.NOTHING_YET
        if result.count:
            self._throughput.got(pull.group, pull.topic, result.count)
        self._offsets.pull_offsets.set(pull.group, pull.topic, pull.queue_id, result.next_offset)
        next_offset = result.next_offset if result.count else None
        self._rebalances.answered(
            pull.waiter.connection, pull.group, pull.topic, pull.queue_id, next_offset, now_ms=now_ms
        )
        pull.waiter.answer(PullResult(status, result))

    def _moved(self, pull: Pull, offset: int) -> PullResult:
        """Return the reply that moves a consumer to the offset set by an operator."""
        min_offset = self._store.min_offset(pull.topic, pull.queue_id)
        max_offset = self._store.max_offset(pull.topic, pull.queue_id)
        read = ReadResult(ReadStatus.OFFSET_RESET, offset, min_offset, max_offset)
        return PullResult(PullStatus.OFFSET_MOVED, read)

    def _hold(self, pull: Pull, until_ms: MonotonicMs) -> None:
        connection = pull.waiter.connection
        if not connection.is_open:  # It closed while a thread was reading; nothing would remove the pull.
            return
        pull.expression, pull.warmings = None, 0  # The text may be long, and `tag_codes` is enough.
        held = HeldPull(
            connection,
            pull.topic,
            pull.queue_id,
            pull.offset,
            until_ms,
            pull,
            pull.tag_codes,
            pull.message_filter,
        )
        self._held.hold(held, self._expired)


def _nothing_of_former_topic(
    store: MessageStore, topic: str, queue_id: int, offset: int, topic_start: int, *, may_wait: bool
) -> ReadResult | None:
    """Return an empty result if the offset holds a message of the former topic; None if it does not.

    A slave must not serve messages left over from a former topic, which was deleted and created again:

        member ─► master: OPEN_QUEUE      the answer names where in the log the topic begins (`lbTopicStart`)
        member ─► slave:  PULL_MESSAGE    names it; a message before it belongs to the former topic

    The log does not record deletions. Until the new topic's first message arrives, a slave has the former
    topic's messages, under the offsets that the new ones will get. A member that read them would skip the new
    ones.

    A queue's messages are in order in the log, so all messages after one of the new topic belong to it, too.
    With may_wait=False the result may be WOULD_WAIT.
    """
    try:
        if may_wait:
            units = store.queue_units(topic, queue_id, offset, 1)
        else:
            with store.without_waiting():
                units = store.queue_units(topic, queue_id, offset, 1)
    except ColdRead as cold:
        return msgspec.structs.replace(NO_QUEUE, status=ReadStatus.WOULD_WAIT, cold=(cold.stretch,))
    if not units or units[0][0] >= topic_start:
        return None
    return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, 0, offset)


def _status(pull: Pull, result: ReadResult) -> PullStatus:
    if result.status is ReadStatus.FOUND:  # Enumerations are slow as keys: 0.4 µs.
        return PullStatus.FOUND
    if result.status is ReadStatus.OFFSET_OVERFLOW_ONE:
        return PullStatus.NOTHING_YET
    if result.status in (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE):
        return PullStatus.OFFSET_MOVED if pull.offset else PullStatus.NOTHING_YET
    return _STATUSES[result.status]

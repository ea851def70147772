"""The offset actions: where a queue is read from when it is taken (committed offset, first, last, a time),
and where it continues when the broker refuses an offset.

The committed offset decides where a newly assigned queue begins:

    consume from     committed           none                                   unknown
    LAST_OFFSET      that                retry topic: 0 · else the end          try again later
    FIRST_OFFSET     that                0                                      try again later
    TIMESTAMP        that                retry topic: the end · else by time    try again later

If the time at which the group began to read the topic is known (`client.beginning`), all queues without a
committed offset, even young ones, begin at that time.

Upstream: RebalancePushImpl.java, DefaultMQPushConsumerImpl.pullMessage.
"""

from functools import partial
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import OFFSET_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.queues.owned_queue import POSITIONED, OwnedQueue, QueueState
from libramq.client.options import ConsumeFrom
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import LibraError, NoPermission
from libramq.logs import get_logger
from libramq.message.names import retry_topic
from libramq.message.queue import MessageQueue
from libramq.rpc.broker_calls import PullReply, max_offset, query_consumer_offset, search_offset
from libramq.rpc.call import Call
from libramq.rpc.group_calls import open_queue

log = get_logger(__name__)

#: Ours: the pause of a queue whose offset is refused again within twice this time, so that it is not retried
#: in a loop.
ILLEGAL_OFFSET_PAUSE_MS: Final = 1_000
#: Ours: the first delay before a failed opening is retried; it doubles each time. A grant takes about a
#: millisecond from the coordinator to the queue's broker.
OPEN_AGAIN_MS: Final = 10
#: Ours: the longest delay before a failed opening is retried.
OPEN_AGAIN_MS_MAX: Final = 200
NO_MASTER: Final = "its broker has no master now"


def where_to_pull_from(
    settings: ConsumerSettings, queue: MessageQueue, committed: int | None, since_ms: int = 0
) -> int | Call[int]:
    """Return the offset to begin at, or the request that finds it.

    committed: None if nothing is committed. since_ms: the time from which the group reads the topic; 0:
    unknown.
    """
    is_retry_topic, consume_from = queue.topic == retry_topic(settings.group), settings.consume_from
    if committed is not None:
        return committed
    # If the queue begins later, the broker moves the first pull.
    if consume_from is ConsumeFrom.FIRST_OFFSET or (
        is_retry_topic and consume_from is ConsumeFrom.LAST_OFFSET
    ):
        return 0
    if since_ms:
        return search_offset(queue, since_ms)
    if is_retry_topic or consume_from is ConsumeFrom.LAST_OFFSET:
        return max_offset(queue)
    return search_offset(queue, settings.consume_timestamp_ms)


def load(own: Ownership, owned: OwnedQueue, event: ev.Event, now_ms: MonotonicMs) -> None:
    """Query the committed offset; a granted queue is opened instead."""
    if owned.state not in POSITIONED:  # Otherwise it stays readable, as far as its state allows.
        owned.state = QueueState.OPENING
    address = own.master(owned)
    granted = owned.claim.granted
    if address is None:
        cannot_load(own, owned, NO_MASTER, now_ms)
    elif granted is not None:
        call = open_queue(own.settings.group, owned.queue, granted.member, granted.epoch)
        own.kernel.ask(address, call, partial(own.on_opened, owned, granted), OFFSET_TIMEOUT_MS)
    elif own.settings.broadcasting:
        answered = partial(own.answered, owned, ev.OffsetAnswered)
        own.kernel.effects.add(fx.ReadOffset(owned.queue, answered))
    else:
        # Unless it is known when the group began to read the topic, a young queue is read from its start, as
        # upstream's brokers decide: messages that arrived before its first reader would be lost otherwise.
        may_be_young = not own.since_ms.get(owned.queue.topic)
        query = query_consumer_offset(own.settings.group, owned.queue, zero_if_not_found=may_be_young)
        own.ask(owned, address, query, ev.OffsetAnswered)


def open_if_newer(own: Ownership, owned: OwnedQueue, event: ev.OffsetDue, now_ms: MonotonicMs) -> None:
    """Reopen a queue that is read under an earlier grant."""
    if not owned.claim.is_current:
        load(own, owned, event, now_ms)


def load_later(own: Ownership, owned: OwnedQueue, now_ms: MonotonicMs) -> None:
    """Reopen a queue after a delay."""
    delay_ms = min(OPEN_AGAIN_MS << min(owned.claim.tries, 8), OPEN_AGAIN_MS_MAX)
    owned.claim.tries += 1
    own.load_at(owned, now_ms + delay_ms)


def cannot_load(own: Ownership, owned: OwnedQueue, reason: str, now_ms: MonotonicMs) -> None:
    """Retry later, or leave the queue to the next round."""
    if not owned.claim.tries:  # Once, not on every retry while a master is away.
        log.warning("queue not opened yet", queue=str(owned.queue), reason=reason)
    if own.master(owned) is None:
        own.known_brokers.look_soon(now_ms)
    if owned.claim.granted is not None:
        load_later(own, owned, now_ms)
        return
    own.remove(owned)
    own.repeat_round(now_ms)
    own.unlock(owned)
    own.kernel.effects.add(fx.Revoked((owned.queue,)))


def begin(own: Ownership, owned: OwnedQueue, event: ev.OffsetAnswered, now_ms: MonotonicMs) -> None:
    """Begin at the committed offset, or query where to begin."""
    if not owned.claim.is_current:
        return  # Asked before the coordination mode changed.
    if isinstance(event.outcome, LibraError):
        cannot_load(own, owned, str(event.outcome), now_ms)
    else:
        begin_at_committed(own, owned, event.outcome, now_ms)


def begin_at_committed(own: Ownership, owned: OwnedQueue, committed: int | None, now_ms: MonotonicMs) -> None:
    """Begin at the committed offset; None if nothing is committed."""
    queue = owned.queue
    start = where_to_pull_from(own.settings, queue, committed, own.since_ms.get(queue.topic, 0))
    if isinstance(start, int):
        if committed is not None:
            own.offsets.loaded(queue, committed)
        if committed:  # Brokers also answer 0 for a new queue without an offset.
            own.commits.firsts.known(queue)
        own.read(owned)
        own.pulling.start(owned, start, now_ms, was_committed=committed is not None)
        return
    address = own.master(owned)
    if address is None:
        cannot_load(own, owned, NO_MASTER, now_ms)
    else:
        own.ask(owned, address, start, ev.StartAnswered)


def begin_at_start(own: Ownership, owned: OwnedQueue, event: ev.StartAnswered, now_ms: MonotonicMs) -> None:
    """Begin a queue without a committed offset."""
    topic = owned.queue.topic
    if not owned.claim.is_current:
        return
    if isinstance(event.outcome, NoPermission) and own.since_ms.get(topic):
        # Apache's access control denies searches to members; Apache's rule needs none in a young queue.
        own.since_ms = {**own.since_ms, topic: 0}
        load(own, owned, event, now_ms)
    elif isinstance(event.outcome, LibraError):
        cannot_load(own, owned, str(event.outcome), now_ms)
    else:
        own.read(owned)
        own.pulling.start(owned, event.outcome, now_ms, was_committed=False)


# Answers to pulls.


def pulled(own: Ownership, owned: OwnedQueue, event: ev.Pulled, now_ms: MonotonicMs) -> None:
    """Take the result of a pull, or find the offset to continue at."""
    reply = event.outcome
    if isinstance(reply, PullReply) and owned.cursor.was_missing:
        take_anew(own, owned, now_ms)  # The topic was deleted and created again under the same name.
    elif isinstance(reply, PullReply) and reply.code == ResponseCode.PULL_OFFSET_MOVED:
        _offset_refused(own, owned, reply, now_ms)
    else:
        own.pulling.pulled(owned, reply, event.messages, now_ms)


def keep_pulled(own: Ownership, owned: OwnedQueue, event: ev.Pulled, now_ms: MonotonicMs) -> None:
    """Keep the result of a pull for later; a refused offset is refused again later."""
    reply = event.outcome
    is_refused = isinstance(reply, PullReply) and reply.code == ResponseCode.PULL_OFFSET_MOVED
    if is_refused or owned.cursor.was_missing:
        owned.cursor.is_under_way = False
    else:
        own.pulling.pulled(owned, reply, event.messages, now_ms)


def _offset_refused(own: Ownership, owned: OwnedQueue, reply: PullReply, now_ms: MonotonicMs) -> None:
    """Handle an offset that the broker lacks: continue at its correction, or at the committed offset.

    The latter if we have read beyond the queue's end: the end was lost in a power cut, or the topic was
    recreated. Continuing at the present end would skip unhandled messages. No broker lowers the offset in a
    local file: one beyond the end leads to the queue's beginning.
    """
    cursor, next_offset = owned.cursor, reply.next_offset
    queue = str(owned.queue)
    log.warning("offset refused", queue=queue, offset=cursor.next_offset, next_offset=next_offset)
    if next_offset < cursor.next_offset:
        if cursor.has_advanced:
            take_anew(own, owned, now_ms)
            return
        if cursor.last_stored_ms and owned.claim.granted is None:
            _look_for_newer(own, owned, next_offset, now_ms)
            return
        if own.settings.broadcasting:
            next_offset = reply.min_offset
    _move(own, owned, next_offset, now_ms)


def _look_for_newer(own: Ownership, owned: OwnedQueue, next_offset: int, now_ms: MonotonicMs) -> None:
    """Find messages stored since our last one: the committed offset is also beyond the queue's end.

    Apache's brokers leave it there when a topic is deleted, or the queue has lost its end.
    """
    address = own.master(owned)
    if address is None:
        cannot_load(own, owned, NO_MASTER, now_ms)
        return
    owned.state = QueueState.SEARCHING
    owned.corrected_offset = next_offset
    call = search_offset(owned.queue, owned.cursor.last_stored_ms + 1)
    own.ask(owned, address, call, ev.StartAnswered)


def move_to_newer(own: Ownership, owned: OwnedQueue, event: ev.StartAnswered, now_ms: MonotonicMs) -> None:
    """Continue with messages stored since our last one."""
    if isinstance(event.outcome, LibraError):
        cannot_load(own, owned, str(event.outcome), now_ms)
    else:
        _move(own, owned, min(event.outcome, owned.corrected_offset), now_ms)


# Offsets that are set elsewhere.


def move(own: Ownership, owned: OwnedQueue, event: ev.OffsetSet, now_ms: MonotonicMs) -> None:
    """Commit the offset that an operator has set, and continue there.

    For a granted queue the broker has set the offset itself, and has us reopen the queue.
    """
    if owned.claim.granted is None:
        log.warning("offset set by an operator", queue=str(owned.queue), offset=event.offset)
        _move(own, owned, event.offset, now_ms)


def begin_anew(own: Ownership, owned: OwnedQueue, event: ev.Event, now_ms: MonotonicMs) -> None:
    """Take a queue again once the broker has acknowledged its new offset."""
    if not own.commits.commit_last(owned):
        take_anew(own, owned, now_ms)


def take_anew(own: Ownership, owned: OwnedQueue, now_ms: MonotonicMs) -> None:
    """Drop our state of a queue, and begin it again at the committed offset."""
    queue = owned.queue
    own.remove(owned)
    refused_ms = own.refused_at_ms.get(queue)
    own.refused_at_ms[queue] = now_ms
    is_repeated = refused_ms is not None and now_ms - refused_ms < 2 * ILLEGAL_OFFSET_PAUSE_MS
    delay_ms = ILLEGAL_OFFSET_PAUSE_MS if is_repeated else 0
    own.repeat_round(now_ms)
    own.take(queue, now_ms, delay_ms=delay_ms, is_announced=True, claim=owned.claim.granted)
    again = own.table.get(queue)
    if again is not None:
        again.cursor.last_stored_ms = owned.cursor.last_stored_ms


def _move(own: Ownership, owned: OwnedQueue, next_offset: int, now_ms: MonotonicMs) -> None:
    owned.state = QueueState.MOVING
    own.offsets.freeze(owned.queue, next_offset)
    if own.settings.broadcasting:
        own.commits.commit([owned])
        take_anew(own, owned, now_ms)
    elif not own.commits.commit_last(owned):
        take_anew(own, owned, now_ms)


def pause(own: Ownership, owned: OwnedQueue, event: ev.Paused, now_ms: MonotonicMs) -> None:
    """Start no more handlers and pulls, if the user has paused this queue."""
    own.read(owned)


def resume(own: Ownership, owned: OwnedQueue, event: ev.Resumed, now_ms: MonotonicMs) -> None:
    """Continue, if no other pause is left."""
    own.read(owned)
    if owned.state is QueueState.READING:
        owned.cursor.last_ms = now_ms
        own.pulling.go_on(owned, now_ms)


def go_on(own: Ownership, owned: OwnedQueue, event: ev.Continued, now_ms: MonotonicMs) -> None:
    """Start held handlers, and pull."""
    own.pulling.go_on(owned, now_ms)


def seek_later(own: Ownership, owned: OwnedQueue, event: ev.Sought, now_ms: MonotonicMs) -> None:
    """Note the offset that the program wants, at which the queue begins regardless of the committed one."""
    owned.cursor.sought_offset = event.offset


def seek(own: Ownership, owned: OwnedQueue, event: ev.Sought, now_ms: MonotonicMs) -> None:
    """Drop pulled messages, and continue at another offset."""
    owned.drop_pulled()
    owned.work.finished = event.offset
    own.offsets.sought(owned.queue, event.offset)
    own.pulling.move(owned, event.offset)
    own.pulling.pull(owned, now_ms)


def seek_at_once(own: Ownership, owned: OwnedQueue, event: ev.Sought, now_ms: MonotonicMs) -> None:
    """End the search, and continue at the program's offset."""
    own.read(owned)
    seek(own, owned, event, now_ms)

"""Opening (OPEN_QUEUE): whether a member of a coordinated group may start reading a queue; the former reader
is fenced, and its held pulls end.

        open ─► fence ─► journal ─┬─► answered, once the opening is as durable as the disk's mode promises
                                  └─► held pulls of former owners are refused

A member opens a queue by OPEN_QUEUE. If its coordinator is the queue's broker, the answer with new grants
also opens them. Ours; the contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.observed_rebalances import ObservedRebalances
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.groups.pull import Pull
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, Journalling, broker_error
from libramq.fencing import Claim, Claims, OpenedQueue
from libramq.kernel.connection import Connection
from libramq.kernel.purgatory import Waiter
from libramq.message.queue import MessageQueue
from libramq.offsets.fence import NOBODY
from libramq.store.log.segments import ColdRead
from libramq.waits.held_pulls import HeldPulls

#: Ours: opening this many takes some 5 ms, with a line of the journal each; the member opens the others
#: itself.
OPENED_WITH_AN_ANSWER_MAX: Final = 64

#: The fences' answers for opened queues.
Openings = Mapping[MessageQueue, OpenedQueue]


class QueueToOpen(NamedTuple):
    """The queue to open, and the claim by which it was granted to the member."""

    group: str
    topic: str
    queue_id: int
    claim: Claim


class QueueOpening:
    """Opens queues."""

    def __init__(
        self,
        files: BrokerFiles,
        offsets: OffsetCommits,
        held: HeldPulls[Pull],
        rebalances: ObservedRebalances,
    ) -> None:
        self._store, tables = files.store, files.tables
        self._fences, self._journals = tables.fences, tables.journals
        self._offsets = offsets
        self._requirements = tables.requirements
        self._held = held
        self._rebalances = rebalances

    def open(self, queue: QueueToOpen, waiter: Waiter[OpenedQueue]) -> None:
        """Open a queue; the waiter gets the starting offset once the opening is durable.

        Raises BrokerError for an immediate refusal.
        """
        # The member's heartbeat, before or after this, names its client.
        opened = self._open(queue, waiter.connection, None)
        if self._journals.is_synced:
            waiter.answer(opened)
        else:
            self._journals.when_synced(lambda is_synced: _answer(waiter, opened, is_synced=is_synced))

    def open_granted(
        self, group: str, claims: Claims, connection: Connection, *, client_id: str | None
    ) -> Openings:
        """Open the local ones of a member's new queues; the member may be answered once they are durable.

        client_id: the member's, if known. Queues that cannot be opened now are left out: the member opens
        them itself, and then gets the reason.
        """
        openings: dict[MessageQueue, OpenedQueue] = {}
        here = [queue for queue in claims if queue.broker_name == self._rebalances.broker_name]
        for queue in here[:OPENED_WITH_AN_ANSWER_MAX]:
            to_open = QueueToOpen(group, queue.topic, queue.queue_id, claims[queue])
            try:
                with self._store.without_waiting():
                    openings[queue] = self._open(to_open, connection, client_id)
            except (BrokerError, ColdRead):
                continue
        return openings

    def when_durable(self, openings: Openings, then: Callable[[Openings], None]) -> None:
        """Continue with these openings once they are durable, or without them if the disk fails."""
        if self._journals.is_synced or not openings:
            then(openings)
        else:
            self._journals.when_synced(lambda is_synced: then(openings if is_synced else {}))

    def _open(self, queue: QueueToOpen, connection: Connection, client_id: str | None) -> OpenedQueue:
        group, topic, queue_id, claim = queue
        self._requirements.queue_to_open(topic, queue_id)
        # Before any change, because it may raise ColdRead.
        offset = self._offsets.first_to_read(group, topic, queue_id)
        is_initial = offset is not None and self._offsets.query(group, topic, queue_id) is None
        with Journalling("opening"):
            former = self._fences.open(group, topic, queue_id, claim)
        if self._offsets.take_reset(group, topic, queue_id) is not None:
            self._fences.forget_attempts(group, topic, queue_id)
        former_epoch = claim.epoch  # The member repeats its opening.
        if former is not None:
            was_open = former != NOBODY
            if not was_open:  # Its group may have been deleted and created again.
                former = self._fences.removed.take(group, (topic, queue_id))
            self._rebalances.opened(connection, group, topic, queue_id, client_id, was_open=was_open)
            if former != NOBODY:
                self._end_pulls(queue)
            former_epoch = former.epoch if former.member == claim.member else 0
        recovered_end = self._fences.recovered_end(group, topic, queue_id)
        # Records before this offset of the log belong to a deleted topic of the same name.
        topic_start = self._store.deletions.end_of(topic)
        attempts = self._fences.attempts(group, topic, queue_id, offset)
        return OpenedQueue(offset, former_epoch, recovered_end, topic_start, attempts, is_initial)

    def _end_pulls(self, queue: QueueToOpen) -> None:
        group, topic, queue_id, owner = queue

        def is_former(pull: Pull) -> bool:
            return pull.group == group and pull.member is not None and (pull.member, pull.epoch) != owner

        for held in self._held.take(topic, queue_id, is_former):
            remark = f"{topic}-{queue_id} of group {group} was opened under epoch {owner.epoch}"
            held.request.waiter.refuse(broker_error(ResponseCode.FENCED, remark))


def _answer(waiter: Waiter[OpenedQueue], opened: OpenedQueue, *, is_synced: bool) -> None:
    if is_synced:
        waiter.answer(opened)
        return
    remark = "the opening is not on the disk, which is broken; restart the broker"
    waiter.refuse(broker_error(ResponseCode.SYSTEM_ERROR, remark))

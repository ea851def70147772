"""Opening: a member of a coordinated group starts reading a queue, and fences the former reader.

        open ─► fence ─► journal ─┬─► answered, once the opening is as durable as the disk's mode promises
                                  └─► held pulls of former owners are refused

Ours; the contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Callable
from typing import NamedTuple

from libramq.broker.groups.observed_rebalances import ObservedRebalances
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.reading import Pull
from libramq.catalog.journal_sync import JournalSync
from libramq.catalog.requirements import Requirements
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.fencing import Opened
from libramq.kernel.waiter import Waiter
from libramq.offsets import Claim, Fences
from libramq.offsets.group_fence import NOBODY
from libramq.waits import HeldPulls


class QueueToOpen(NamedTuple):
    """The queue to open, and the claim by which the member was granted it."""

    group: str
    topic: str
    queue_id: int
    claim: Claim


class QueueOpening:
    """Opens queues.

    journals: those of the fences and others. topic_start: returns the offset in the log before which records
    are of a deleted topic of the same name.
    """

    def __init__(
        self,
        *,
        fences: Fences,
        journals: JournalSync,
        offsets: OffsetCommits,
        requirements: Requirements,
        held: HeldPulls[Pull],
        rebalances: ObservedRebalances,
        topic_start: Callable[[str], int],
    ) -> None:
        self._fences = fences
        self._journals = journals
        self._offsets = offsets
        self._requirements = requirements
        self._held = held
        self._rebalances = rebalances
        self._topic_start = topic_start

    def open(self, queue: QueueToOpen, waiter: Waiter[Opened]) -> None:
        """Open a queue; the waiter gets the offset to begin at, once the opening is durable.

        Raises BrokerError for an immediate refusal.
        """
        group, topic, queue_id, claim = queue
        self._requirements.queue_to_open(topic, queue_id)
        # Before anything changes: it may look at the queue's first message, and the caller may not wait.
        offset = self._offsets.first_to_read(group, topic, queue_id)
        try:
            former = self._fences.open(group, topic, queue_id, claim)
        except OSError as error:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR, f"the opening cannot be journalled: {error}"
            ) from error
        if former is not None:
            was_open = former != NOBODY
            if not was_open:  # Its group may have been deleted meanwhile, and made again.
                former = self._fences.removed.take(group, (topic, queue_id)) or NOBODY
            self._rebalances.opened(waiter.connection, group, topic, queue_id, was_open=was_open)
            self._end_pulls(queue)
        recovered_end = self._fences.recovered_end(group, topic, queue_id)
        opened = Opened(offset, _former_epoch(former, claim), recovered_end, self._topic_start(topic))
        if self._journals.is_synced:
            waiter.answer(opened)
        else:
            self._journals.when_synced(lambda is_synced: _answer(waiter, opened, is_synced=is_synced))

    def _end_pulls(self, queue: QueueToOpen) -> None:
        group, topic, queue_id, owner = queue
        fenced = broker_error(
            ResponseCode.FENCED, f"{topic}-{queue_id} of group {group} was opened under epoch {owner.epoch}"
        )
        for held in self._held.take(topic, queue_id, lambda pull: _is_former(pull, group, owner)):
            held.request.waiter.refuse(fenced)


def _former_epoch(former: Claim | None, claim: Claim) -> int:
    """Return under which epoch the member had the queue open before, 0 for none."""
    if former is None:  # It repeats its opening.
        return claim.epoch
    return former.epoch if former.member == claim.member else 0


def _answer(waiter: Waiter[Opened], opened: Opened, *, is_synced: bool) -> None:
    if is_synced:
        waiter.answer(opened)
        return
    remark = "the opening is not on the disk, which is broken; restart the broker"
    waiter.refuse(broker_error(ResponseCode.SYSTEM_ERROR, remark))


def _is_former(pull: Pull, group: str, owner: Claim) -> bool:
    return pull.group == group and pull.member is not None and (pull.member, pull.epoch) != owner

"""Invariants of queue ownership: one reader per queue, every queue owned, short handovers, no queue taken
before its release.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.clock import MonotonicMs
from libramq.fencing import MODE_EPOCHS, Claim
from libramq.message.queue import MessageQueue
from libramq.testing.history import Commit, HandlingMember
from libramq.testing.invariants.invariant import Invariant
from libramq.testing.machine.virtual_time import DRIFT_PPM_MAX

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster


#: Many times a handover's two requests and two responses of 20 ms each, and the coordinator's own 20 ms.
HANDOVER_MS_MAX: Final = 1_000
#: The longest time from a fence's refusal, as received by the old owner, to the next member's opening.
LOST_MS_MAX: Final = 200


class HandoversAreShort(Invariant):
    """Check that a released queue soon has another owner if there are no faults."""

    name = "a queue of a coordinated group changes hands within a second"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._revoked_ms: dict[tuple[str, MessageQueue], MonotonicMs] = {}
        self._is_disturbed = False

    def disturbed(self, what: str) -> None:
        self._is_disturbed = True

    def owners_changed(self, member: str, what: str, queues: Sequence[MessageQueue]) -> None:
        known = self.cluster.member(member)
        if what == "revoked" and known.instance_id is None:  # A static member's queues wait for it.
            for queue in queues:
                self._revoked_ms[known.group, queue] = self.cluster.now_ms

    def opened(self, group: str, queue: MessageQueue, claim: Claim, requested_ms: MonotonicMs) -> None:
        revoked_ms = self._revoked_ms.pop((group, queue), None)
        if revoked_ms is None or self._is_disturbed or not self.cluster.hands_over_cleanly(group):
            return
        since_ms = max(revoked_ms, self.cluster.member(claim.member).joined_ms)
        if self.cluster.now_ms - since_ms > HANDOVER_MS_MAX:
            self.broken(f"{group}: {queue} had no owner for {self.cluster.now_ms - since_ms} ms")


class ReadersKeepTheirQueues(Invariant):
    """Check that a coordinated group's queue is taken from a member only after the member released it.

    Checked only while nothing but brokers fails: freezes, partitions and operators are other reasons for
    taking queues. After a broker failure, the coordinator's records or the fences' responses show who is
    reading.
    """

    name = "a queue is not taken from a connected member that reads it"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._readers: dict[tuple[str, MessageQueue], Claim] = {}
        self._seen_ms: dict[str, MonotonicMs] = {}
        self._lost_ms: dict[tuple[str, MessageQueue], MonotonicMs] = {}
        self._revoked_ms: dict[tuple[str, MessageQueue], MonotonicMs] = {}
        self._is_judged = True

    def disturbed(self, what: str) -> None:
        name, _, how = what.partition(" ")
        is_end = name in self.cluster.brokers and how.startswith(("is killed", "loses power"))
        self._is_judged = self._is_judged and is_end

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:
            self._is_judged = False  # Records of the last half second may be lost.

    def session_renewed(self, member: str, requested_ms: MonotonicMs) -> None:
        self._seen_ms[member] = self.cluster.now_ms

    def owners_changed(self, member: str, what: str, queues: Sequence[MessageQueue]) -> None:
        for queue in queues:
            key = (self.cluster.member(member).group, queue)
            if what == "revoked":
                self._revoked_ms[member, queue] = self.cluster.now_ms
            reader = self._readers.get(key)
            if reader is None or reader.member != member:
                continue
            if what == "revoked":
                del self._readers[key]
            elif what == "lost":
                self._lost_ms[key] = self.cluster.now_ms

    def opened(self, group: str, queue: MessageQueue, claim: Claim, requested_ms: MonotonicMs) -> None:
        key, now_ms = (group, queue), self.cluster.now_ms
        reader, lost_ms = self._readers.get(key), self._lost_ms.pop(key, now_ms)
        if reader is not None and reader.epoch > claim.epoch:
            return
        self._readers[key] = claim
        if self._revoked_ms.get((claim.member, queue), MonotonicMs(-1)) >= requested_ms:
            del self._readers[key]  # It released the queue before learning that it had opened it.
        if reader is None or reader.member == claim.member or not self._is_judged:
            return
        member = self.cluster.member(reader.member)
        silent_ms = lost_ms - self._seen_ms.get(reader.member, MonotonicMs(0))
        is_connected = member.is_alive and silent_ms < member.session_ms // 2
        is_mixed = not self.cluster.hands_over_cleanly(group)
        if is_connected and not is_mixed and member.instance_id is None and now_ms - lost_ms <= LOST_MS_MAX:
            self.broken(f"{group}: {claim.member} has opened {queue}, which {reader.member} has not released")


class EveryQueueOwned(Invariant):
    """Check that every queue of a group gets one owner and keeps it once faults have ended.

    Broadcasting members own all queues. In a coordinated group the queue's fence decides: a member that
    considers itself the owner but has not opened the queue reads nothing.
    """

    name = "every queue is owned by exactly one member soon after faults end"
    within_ms = 15_000  # Less than the 20 s between members' own rebalances.

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._opened: dict[tuple[str, MessageQueue], Claim] = {}
        self._known_ms: dict[tuple[str, MessageQueue], MonotonicMs] = {}

    def opened(self, group: str, queue: MessageQueue, claim: Claim, requested_ms: MonotonicMs) -> None:
        """Note an opening; a frozen member may learn of its own long after another member's."""
        known = self._opened.get((group, queue))
        if known is None or known.epoch <= claim.epoch or self._known_ms[group, queue] < requested_ms:
            self._opened[group, queue] = claim
            self._known_ms[group, queue] = self.cluster.now_ms

    def unmet(self) -> Iterator[str]:
        for group, topics in self.cluster.subscriptions().items():
            owners: dict[MessageQueue, list[str]] = defaultdict(list)
            members = [member for member in self.cluster.members if member.group == group and member.is_alive]
            for member in members:
                for queue in member.network.core.owned():
                    owners[queue].append(member.name)
            for queue in self.cluster.queues(topics) if members else ():
                readers = [member for member in members if queue.topic in member.topics]
                share = not any(member.is_broadcasting for member in readers)
                if len(owners[queue]) != (min(len(readers), 1) if share else len(readers)):
                    yield f"{group}: {queue} is owned by {owners[queue] or 'nobody'}"
                elif owners[queue] and not self._is_let_read(group, queue, owners[queue][0]):
                    yield f"{group}: {owners[queue][0]} considers itself the owner of {queue}"

    def _is_let_read(self, group: str, queue: MessageQueue, owner: str) -> bool:
        """Return whether the queue's fence lets the owner read under its opening's claim."""
        broker = self.cluster.brokers[queue.broker_name].broker
        if broker is None or broker.fences.mode(group) != MODE_EPOCHS:
            return True
        opened, claim = self._opened.get((group, queue)), broker.fences.claims(group).get(queue)
        return opened is not None and claim is not None and (owner, claim.epoch) == opened

    def finish(self) -> None:
        wrong = [*self.unmet()]
        if wrong:
            self.broken("; ".join(wrong))


_Key = tuple[str, MessageQueue]


class _Opening(NamedTuple):
    """An opening, and when its member learned of it."""

    claim: Claim
    known_ms: MonotonicMs


class OneReaderAQueue(Invariant):
    """Check that a fence accepts and serves requests only under the epoch of the queue's last opening.

    Under ASYNC_FLUSH an opening may be lost in a power cut: the journal is not synced.
    """

    name = "only the member that opened a queue last reads and commits it"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._openings: dict[_Key, list[_Opening]] = defaultdict(list)

    def opened(self, group: str, queue: MessageQueue, claim: Claim, requested_ms: MonotonicMs) -> None:
        if requested_ms <= self.cluster.cuts_ms.get(queue.broker_name, MonotonicMs(-1)):
            return  # The broker has lost this opening in a power cut.
        self._judge(group, queue, claim, requested_ms, "opened")
        self._openings[group, queue].append(_Opening(claim, self.cluster.now_ms))

    def pulled(self, group: str, queue: MessageQueue, claim: Claim, requested_ms: MonotonicMs) -> None:
        self._judge(group, queue, claim, requested_ms, "pulled")

    def commit_acknowledged(self, group: str, queue: MessageQueue, commit: Commit) -> None:
        if commit.claim is not None:
            self._judge(group, queue, commit.claim, commit.requested_ms, f"committed {commit.offset}")

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:
            for key in [key for key in self._openings if key[1].broker_name == name]:
                del self._openings[key]

    def _judge(
        self, group: str, queue: MessageQueue, claim: Claim, requested_ms: MonotonicMs, what: str
    ) -> None:
        for other, known_ms in reversed(self._openings[group, queue]):
            newer = other.epoch > claim.epoch and known_ms < requested_ms
            if newer or (other.epoch == claim.epoch and other.member != claim.member):
                self.broken(
                    f"{claim.member} {what} of {group}, {queue} under {claim.epoch};"
                    f" {other.member} opened it under {other.epoch}"
                )


class OwnersGoForward(Invariant):
    """Check that no commit under epochs moves an offset back, unless ASYNC_FLUSH lost the queue's end."""

    name = "acknowledged commits of owners never go back"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._last: dict[_Key, Commit] = {}

    def commit_acknowledged(self, group: str, queue: MessageQueue, commit: Commit) -> None:
        if self.cluster.was_deleted(queue) or self.cluster.was_set_back(group, queue):
            return
        last = self._last.get((group, queue))
        if commit.requested_ms <= self.cluster.cuts_ms.get(queue.broker_name, MonotonicMs(-1)):
            return  # The broker has lost this commit in a power cut.
        if commit.claim is None:
            self._last.pop((group, queue), None)  # Members that allocate for themselves may go back.
        elif (
            last is None
            or commit.offset >= last.offset
            or (queue.broker_name in self.cluster.cuts_ms and not self.cluster.is_sync)
        ):
            self._last[group, queue] = commit
        elif last.answered_ms is not None and last.answered_ms < commit.requested_ms:
            self.broken(f"{group} committed {last.offset} of {queue}, and {commit.offset} after it")

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None:
            for key in [key for key in self._last if key[1].broker_name == name]:
                del self._last[key]


class NoHandlerAfterTheSession(Invariant):
    """Check that a member starts no handler for a granted queue when its coordinator may consider it dead.

    Allows for clock drift: the member measures with its own clock and cannot know that it runs slow.
    """

    name = "a member begins no handler when its session may be over"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._renewed_ms: dict[str, MonotonicMs] = {}

    def session_renewed(self, member: str, requested_ms: MonotonicMs) -> None:
        # A late response may be older than the last one.
        self._renewed_ms[member] = max(self._renewed_ms.get(member, requested_ms), requested_ms)

    def handling_began(self, member: HandlingMember, delivery: Delivery) -> None:
        owned = delivery.owned
        if owned.claim.granted is None:
            return  # The member allocates for itself.
        silent_ms = self.cluster.now_ms - self._renewed_ms[member.name]
        if silent_ms > member.session_ms + member.session_ms * DRIFT_PPM_MAX // 1_000_000:
            where = f"{owned.queue}:{delivery.messages[0].queue_offset}"
            self.broken(f"{member.name} begins {where} {silent_ms} ms after its last answered request")

"""Invariants of coordinated groups: one reader per queue."""

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.clock import MonotonicMs
from libramq.fencing import Claim
from libramq.message.queue import MessageQueue
from libramq.testing.history import Commit
from libramq.testing.invariants.invariant import Invariant
from libramq.testing.machine.node_clock import DRIFT_PPM_MAX

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster
    from libramq.testing.nodes.consumer_node import SimulatedConsumer

_Key = tuple[str, MessageQueue]


class _Opening(NamedTuple):
    """An opening, and when its member was notified of it."""

    claim: Claim
    known_ms: MonotonicMs


class OneReaderAQueue(Invariant):
    """Check that a fence accepts and serves requests only under the epoch of the queue's last opening.

    Under ASYNC_FLUSH an opening may be lost in a power cut: the journal is not synced.
    """

    name = "a queue is read and committed by the member that opened it last, and by nobody else"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._openings: dict[_Key, list[_Opening]] = defaultdict(list)

    def opened(self, group: str, queue: MessageQueue, claim: Claim, requested_ms: MonotonicMs) -> None:
        if requested_ms <= self.cluster.cuts_ms.get(queue.broker_name, MonotonicMs(-1)):
            return  # It was informed, and has forgotten since.
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
    """Check that under epochs no commit moves a queue's offset back.

    It may if ASYNC_FLUSH lost the end of the queue.
    """

    name = "acknowledged commits of owners never go back"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._last: dict[_Key, Commit] = {}

    def commit_acknowledged(self, group: str, queue: MessageQueue, commit: Commit) -> None:
        if self.cluster.was_deleted(queue) or self.cluster.was_set_back(group, queue):
            return
        last = self._last.get((group, queue))
        if commit.requested_ms <= self.cluster.cuts_ms.get(queue.broker_name, MonotonicMs(-1)):
            return  # It was informed, and has forgotten since.
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

    It is judged by the member's own clock: it cannot know that this one runs slow.
    """

    name = "a member begins no handler when its session may be over"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._renewed_ms: dict[str, MonotonicMs] = {}

    def session_renewed(self, member: str, requested_ms: MonotonicMs) -> None:
        # An answer that comes late may be older than the last one.
        self._renewed_ms[member] = max(self._renewed_ms.get(member, requested_ms), requested_ms)

    def handling_began(self, member: "SimulatedConsumer", delivery: Delivery) -> None:
        owned = delivery.owned
        if owned.claim.granted is None:
            return  # It allocates for itself.
        silent_ms = self.cluster.now_ms - self._renewed_ms[member.name]
        if silent_ms > member.session_ms + member.session_ms * DRIFT_PPM_MAX // 1_000_000:
            where = f"{owned.queue}:{delivery.messages[0].queue_offset}"
            self.broken(f"{member.name} begins {where}; {silent_ms} ms ago it asked what was answered last")

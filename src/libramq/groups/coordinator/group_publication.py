"""The publication: what a coordinated group has to say, and whether it may.

Nothing is said of who holds what that is not recorded; while the disk refuses, the group is mute.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.fencing import MODE_CLIENT
from libramq.groups.coordinator.effect import Answer, Effect, Grant
from libramq.groups.coordinator.fence_grants import complete_grant, latest_grants
from libramq.groups.coordinator.group_assignment import Assignment
from libramq.groups.coordinator.group_member import GroupMember, Told
from libramq.groups.coordinator.group_state import GroupState, Record
from libramq.groups.coordinator.queue_handover import QueueHandover
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")

#: Ours: how soon a record that the disk refused is tried again.
RECORD_AGAIN_MS: Final = 1_000


class GroupPublication(Generic[T]):
    """What one group has to say. effects: what has been said since they were taken last.

    is_changed: there is something to record. says_all: fences are to hear everything, not only what is new.
    """

    def __init__(self, group: str, record: Record) -> None:
        self.effects: list[Effect[T]] = []
        self.is_changed = False
        self.says_all = True
        self.again_at_ms: MonotonicMs | None = None
        self._group = group
        self._record = record

    @property
    def is_mute(self) -> bool:
        """Whether there is something that could not be recorded."""
        return self.again_at_ms is not None

    def record(self, state: GroupState, *, now_ms: MonotonicMs) -> None:
        """Write the state down, unless the disk has refused it just now."""
        if self.again_at_ms is not None and now_ms < self.again_at_ms:
            return
        try:
            self._record(self._group, state)
        except OSError as error:
            log.error("group state not written, nothing is granted", group=self._group, reason=str(error))
            self.again_at_ms = now_ms + RECORD_AGAIN_MS
            return
        self.again_at_ms, self.is_changed = None, False

    def grant(
        self, mode: str, queues: QueueHandover, existing_queues: Callable[[], Iterable[MessageQueue]]
    ) -> None:
        """Tell the fences what has been granted; all of it to all fences there are, where that is due."""
        if self.says_all and (queues.granted or mode == MODE_CLIENT):
            names = sorted({queue.broker_name for queue in (*existing_queues(), *queues.granted)})
            self.effects += [Grant(name, complete_grant(self._group, mode, queues, name)) for name in names]
            self.says_all = not names
        elif queues.granted:
            self.effects += latest_grants(self._group, mode, queues)
        queues.granted.clear()

    def answer(self, member: GroupMember[P, T], assignment: Assignment, *, now_ms: MonotonicMs) -> None:
        """Answer the poll that waits."""
        assert member.poll is not None
        if self.is_mute:
            self.refuse(member, ResponseCode.SYSTEM_BUSY, "the group's state cannot be written; poll again")
            return
        member.told = Told(assignment, now_ms, member.peer)
        self.effects.append(Answer(member.poll.ticket, assignment=assignment))
        member.poll = None

    def refuse(self, member: GroupMember[P, T], code: ResponseCode, remark: str) -> None:
        """Answer the poll that waits, if there is one, by an error."""
        if member.poll is not None:
            self.effects.append(Answer(member.poll.ticket, code, remark))
            member.poll = None

    def take(self) -> list[Effect[T]]:
        """What has been said."""
        effects, self.effects = self.effects, []
        return effects

"""LeaveGroup, by which members of the classic protocol leave, and tools remove members of either protocol."""

from collections.abc import Callable, Mapping
from typing import Any

from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.groups import GroupRequests
from libramq.protocols.kafka.modern_groups import ModernGroupRequests
from libramq.wire.kafka.apis.leave_group import LeaveGroupRequest


class Leaving:
    """Answers LeaveGroup."""

    def __init__(self, groups: BrokerGroups, classic: GroupRequests, modern: ModernGroupRequests) -> None:
        self._groups = groups
        self._classic = classic
        self._modern = modern

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {LeaveGroupRequest: self.leave}

    def leave(self, request: LeaveGroupRequest, slot: Slot) -> None:
        """Have the members leave, by the protocol of their group."""
        group = self._groups.modern.get(request.group_id)
        if group is not None and self._groups.member_refusal(request.group_id, slot.principal) is None:
            self._modern.remove(request, slot, group)
        else:
            self._classic.leave(request, slot)

"""Why heartbeats of KIP-848's members are refused, whatever the state of their group."""

from libramq.groups.modern.assignors import ASSIGNORS
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.modern_group_messages import what_is_invalid
from libramq.protocols.kafka.topic_patterns import TooManyPatterns, TopicPatterns, why_invalid
from libramq.wire.kafka.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from libramq.wire.kafka.error_code import ErrorCode


class HeartbeatRefusals:
    """Refuses heartbeats."""

    def __init__(self, groups: BrokerGroups, patterns: TopicPatterns) -> None:
        self._groups = groups
        self._patterns = patterns

    def refused(
        self, request: ConsumerGroupHeartbeatRequest, slot: Slot
    ) -> ConsumerGroupHeartbeatResponse | None:
        """Return why a heartbeat is refused whatever the state of its group, if so."""
        name = request.group_id
        code, remark = self._groups.member_refusal(name, slot.principal), None
        if code is None and self._groups.has_foreign_members(name):
            code, remark = (
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"RocketMQ's members are in the group {name}",
            )
        if code is None and self._groups.classic.get(name) is not None:
            code, remark = (
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"the group {name} has members of the classic protocol",
            )
        if code is None:
            remark = what_is_invalid(request, slot.version)
            code = ErrorCode.INVALID_REQUEST if remark is not None else None
        if code is None and request.server_assignor not in (None, *ASSIGNORS):
            code = ErrorCode.UNSUPPORTED_ASSIGNOR
            remark = f"only the assignors {', '.join(ASSIGNORS)} are supported"
        if code is None and request.subscribed_topic_regex:
            code, remark = self.of_pattern(request.subscribed_topic_regex)
        return (
            ConsumerGroupHeartbeatResponse(error_code=code, error_message=remark)
            if code is not None
            else None
        )

    def of_pattern(self, pattern: str) -> tuple[ErrorCode | None, str | None]:
        """Return why a pattern cannot be used, if so."""
        try:
            remark = why_invalid(self._patterns, pattern)
        except TooManyPatterns:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None  # Clients try again.
        return ErrorCode.INVALID_REGULAR_EXPRESSION if remark is not None else None, remark

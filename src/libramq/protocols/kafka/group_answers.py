"""The answers of groups: those of the state machine in the form of Kafka's messages."""

from collections.abc import Mapping
from typing import Final

from libramq.groups.classic.values import Answer, JoinAnswer
from libramq.groups.protocol_groups import Refusal
from libramq.protocols.kafka.answers import Slot
from libramq.wire.kafka.apis.join_group import JoinGroupMember, JoinGroupResponse
from libramq.wire.kafka.apis.sync_group import SyncGroupResponse
from libramq.wire.kafka.error_code import ErrorCode

CODES: Final[Mapping[Refusal, ErrorCode]] = {
    Refusal.NONE: ErrorCode.NONE,
    Refusal.UNKNOWN_MEMBER: ErrorCode.UNKNOWN_MEMBER_ID,
    Refusal.MEMBER_ID_REQUIRED: ErrorCode.MEMBER_ID_REQUIRED,
    Refusal.ILLEGAL_GENERATION: ErrorCode.ILLEGAL_GENERATION,
    Refusal.INCONSISTENT_PROTOCOL: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    Refusal.REBALANCE_IN_PROGRESS: ErrorCode.REBALANCE_IN_PROGRESS,
    Refusal.FENCED_INSTANCE: ErrorCode.FENCED_INSTANCE_ID,
    Refusal.GROUP_FULL: ErrorCode.GROUP_MAX_SIZE_REACHED,
    Refusal.INVALID_SESSION_TIMEOUT: ErrorCode.INVALID_SESSION_TIMEOUT,
}
#: The first version of JoinGroup whose protocol name may be null.
_NULL_PROTOCOL_FROM: Final = 7


def send(answer: Answer) -> None:
    """Send an answer; where that fails, other members are answered all the same."""
    slot = answer.key
    assert isinstance(slot, Slot), "requests are named by their slots"
    try:
        slot.answer(response(answer, slot.version))
    except Exception as error:
        slot.fail(error)


def response(answer: Answer, version: int) -> JoinGroupResponse | SyncGroupResponse:
    code = CODES[answer.refusal]
    if not isinstance(answer, JoinAnswer):
        return SyncGroupResponse(
            error_code=code,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignment=answer.assignment,
        )
    return JoinGroupResponse(
        error_code=code,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=(answer.protocol_name or "") if version < _NULL_PROTOCOL_FROM else answer.protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            JoinGroupMember(
                member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata
            )
            for each in answer.members
        ),
    )

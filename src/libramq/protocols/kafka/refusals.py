"""Refusals: the mapping of services' errors and groups' refusals to Kafka's error codes."""

from collections.abc import Mapping
from typing import Final

from libramq.broker.groups.offset_commits import Committing
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, InvalidName, LibraError
from libramq.groups.protocol_groups import Refusal
from libramq.store.log.append import NOT_ENOUGH_REPLICAS
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import InvalidBatch

#: Codes for requests that name a queue. Temporary errors have codes at which clients retry.
_CODES: Final[dict[int, ErrorCode]] = {
    ResponseCode.TOPIC_NOT_EXIST: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ResponseCode.INVALID_PARAMETER: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # An invalid queue.
    ResponseCode.NO_PERMISSION: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResponseCode.MESSAGE_ILLEGAL: ErrorCode.MESSAGE_TOO_LARGE,
    ResponseCode.SERVICE_NOT_AVAILABLE: ErrorCode.KAFKA_STORAGE_ERROR,
    ResponseCode.SYSTEM_BUSY: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ResponseCode.FLUSH_DISK_TIMEOUT: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ResponseCode.SLAVE_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: ErrorCode.INVALID_GROUP_ID,
}

#: Codes for groups' refusals to members.
GROUP_CODES: Final[Mapping[Refusal, ErrorCode]] = {
    Refusal.NONE: ErrorCode.NONE,
    Refusal.UNKNOWN_MEMBER: ErrorCode.UNKNOWN_MEMBER_ID,
    Refusal.FENCED_INSTANCE: ErrorCode.FENCED_INSTANCE_ID,
    Refusal.GROUP_FULL: ErrorCode.GROUP_MAX_SIZE_REACHED,
    Refusal.MEMBER_ID_REQUIRED: ErrorCode.MEMBER_ID_REQUIRED,
    Refusal.ILLEGAL_GENERATION: ErrorCode.ILLEGAL_GENERATION,
    Refusal.INCONSISTENT_PROTOCOL: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    Refusal.REBALANCE_IN_PROGRESS: ErrorCode.REBALANCE_IN_PROGRESS,
    Refusal.INVALID_SESSION_TIMEOUT: ErrorCode.INVALID_SESSION_TIMEOUT,
    Refusal.FENCED_EPOCH: ErrorCode.FENCED_MEMBER_EPOCH,
    Refusal.STALE_EPOCH: ErrorCode.STALE_MEMBER_EPOCH,
    Refusal.UNRELEASED_INSTANCE: ErrorCode.UNRELEASED_INSTANCE_ID,
}


class Refused(Exception):
    """A refused part of a request. code: the answer; the text is the reason."""

    def __init__(self, code: ErrorCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


#: The exceptions of services, and of the checks before them, for one part of a request; see `code_of`.
REFUSALS: Final = (Refused, InvalidBatch, BrokerError, InvalidName)


def code_for(response_code: int) -> ErrorCode:
    """Return the error code for a service's response code, from this broker or another one."""
    return _CODES.get(response_code, ErrorCode.UNKNOWN_SERVER_ERROR)


def code_of(error: Exception) -> ErrorCode:
    """Return the error code for a service's exception."""
    if isinstance(error, Refused | InvalidBatch):
        return error.code
    if isinstance(error, InvalidName):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if isinstance(error, BrokerError):
        if error.remark == NOT_ENOUGH_REPLICAS:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return code_for(error.response_code)
    if isinstance(error, LibraError):  # Another broker is away.
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.UNKNOWN_SERVER_ERROR


def code_of_write(committing: Committing) -> ErrorCode:
    """Journal commits or removals; return NONE, or the error if they cannot be acknowledged."""
    try:
        committing.write()
    except BrokerError:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # Clients retry.
    return ErrorCode.NONE

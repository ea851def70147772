"""The answers of a coordinator to requests that it cannot serve, each with its remedy."""

from collections.abc import Sequence
from typing import TypeVar

from libramq.codes import ResponseCode
from libramq.errors import BrokerError, InvalidName, broker_error
from libramq.groups.coordinator.effect import Answer
from libramq.groups.coordinator.group.membership import NAMED_MAX

T = TypeVar("T")


def refusal(ticket: T, error: BrokerError | InvalidName) -> Answer[T]:
    """Return the answer for an error."""
    if isinstance(error, BrokerError):
        return Answer(ticket, ResponseCode(error.response_code), error.remark)
    return Answer(ticket, ResponseCode.INVALID_PARAMETER, str(error))


def busy(group: str) -> BrokerError:
    """Return the error for a group whose state cannot be written."""
    remark = f"the state of group {group} cannot be written; look at the broker's disk"
    return broker_error(ResponseCode.SYSTEM_BUSY, remark)


def at_limit(what: str) -> BrokerError:
    """Return the refusal of what would exceed a limit of this broker."""
    return broker_error(ResponseCode.SYSTEM_ERROR, f"{what}, which is the limit")


def no_members(group: str) -> BrokerError:
    """Return the error for a group that is not known here."""
    return broker_error(ResponseCode.UNKNOWN_MEMBER, f"group {group} has no members here")


def allocates_itself(group: str, stock: Sequence[str]) -> BrokerError:
    """Return the error for a group whose stock members make all members allocate for themselves."""
    named = f": {', '.join(stock[:NAMED_MAX])}" if stock else ""
    remark = (
        f"group {group} has stock members{named}; until they are gone, all members allocate queues for"
        " themselves and the coordinator can remove none: stop the client instead"
    )
    return broker_error(ResponseCode.INVALID_PARAMETER, remark)

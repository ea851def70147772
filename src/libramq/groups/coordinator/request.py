"""Requests to a coordinator: their values, limits (session, revoke timeout, names, queues) and refusals."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Final, TypeVar

from libramq.balance.group import CAPACITY_MAX
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, InvalidName, broker_error
from libramq.fencing import Attempts
from libramq.groups.coordinator.effect import Answer
from libramq.groups.coordinator.state import REVOKE_TIMEOUT_MS, MemberProfile
from libramq.groups.limits import SUBSCRIPTIONS_MAX
from libramq.message import names
from libramq.message.queue import MessageQueue

#: From the design: a pause of the interpreter would end shorter sessions.
SESSION_MS_MIN: Final = 1_000
#: Ours; Kafka's group.max.session.timeout.ms is half of it.
SESSION_MS_MAX: Final = 3_600_000
#: Ours: the answer to a poll must reach the member, and its release must travel back.
REVOKE_TIMEOUT_MS_MIN: Final = 1_000
#: Ours: the longest that others may wait for an unreleased queue.
REVOKE_TIMEOUT_MS_MAX: Final = 600_000
#: Ours: upstream's client ids are address@instance@unit, without a limit.
CLIENT_ID_LENGTH_MAX: Final = 255
#: Ours: a strategy's name, including the inner strategy's.
STRATEGY_LENGTH_MAX: Final = 255
#: Ours: a list of some hundred tags.
EXPRESSION_LENGTH_MAX: Final = 16_384
#: Linux: LOGIN_NAME_MAX, without its terminating NUL.
OPERATOR_LENGTH_MAX: Final = 255
#: Ours: ten times the design's 10,000 queues of a group.
HELD_MAX: Final = 100_000
#: Ours: an error names at most this many members.
NAMED_MAX: Final = 20


#: The queues that a member reports to hold, with their epochs.
Held = dict[MessageQueue, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A client joins or a member returns. member: its id, if it has one; held: the queues it holds.

    if_free: do not replace another member. waits: answer only after the changes collected with this join have
    been applied, so that the answer contains the assignment.
    """

    group: str
    client_id: str
    session_ms: int
    subscriptions: Mapping[str, str]
    member: str | None = None
    instance: str | None = None
    revoke_timeout_ms: int | None = None
    if_free: bool = False
    waits: bool = False
    strategy: str = "balanced_sticky"
    capacity: int = 1
    orderly: bool | None = None
    held: Held = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """A member polls for its assignment. epoch: its current assignment's; duplicates: seen since the last
    poll.

    is_leaving: the member is stopping, and releases its queues as they are drained. is_slow: a handler takes
    too long. hold_ms: how long the poll may be held; None: a third of the session.
    """

    group: str
    member: str
    epoch: int
    held: Held = field(default_factory=dict)
    duplicates: int = 0
    is_leaving: bool = False
    is_slow: bool = False
    hold_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A member has released queues. is_leaving, is_slow: as in a poll.

    committed: queues whose handled messages are all committed, so that none is redelivered. attempts:
    delivery attempts of the messages at which orderly queues are released.
    """

    group: str
    member: str
    queues: Held
    is_leaving: bool = False
    is_slow: bool = False
    committed: frozenset[MessageQueue] = frozenset()
    attempts: Mapping[MessageQueue, Attempts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A member leaves. reason: a rebalance reason; any but `processing_timeout` counts as `member_left`.

    committed: queues whose handled messages are all committed; messages of the others may be redelivered.
    attempts: as in a release.
    """

    group: str
    member: str
    reason: str = "member_left"
    committed: Held = field(default_factory=dict)
    attempts: Mapping[MessageQueue, Attempts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """An operator removes a member by its static name or client id. host: the operator's."""

    group: str
    name: str
    operator: str | None
    host: str


Request = Join | Poll | Release | Leave | Remove


def member_profile(join: Join, member: str) -> MemberProfile:
    """Return a client's profile under that member id; raises InvalidParameter, InvalidName."""
    if not SESSION_MS_MIN <= join.session_ms <= SESSION_MS_MAX:
        raise _invalid(f"lbSessionMs is between {SESSION_MS_MIN} and {SESSION_MS_MAX}, not {join.session_ms}")
    revoke_ms = join.revoke_timeout_ms
    if revoke_ms is None:
        revoke_ms = REVOKE_TIMEOUT_MS
    if not 0 <= revoke_ms <= REVOKE_TIMEOUT_MS_MAX:
        raise _invalid(f"lbRevokeTimeoutMs is between 0 and {REVOKE_TIMEOUT_MS_MAX}, not {revoke_ms}")
    _check_text("clientID", join.client_id, CLIENT_ID_LENGTH_MAX)
    if join.instance is not None:
        _check_text("lbInstance", join.instance, CLIENT_ID_LENGTH_MAX)
    _check_text("strategy", join.strategy, STRATEGY_LENGTH_MAX)
    if not 1 <= join.capacity <= CAPACITY_MAX:
        raise _invalid(f"capacity is between 1 and {CAPACITY_MAX}, not {join.capacity}")
    if not 1 <= len(join.subscriptions) <= SUBSCRIPTIONS_MAX:
        raise _invalid(
            f"a member subscribes to between 1 and {SUBSCRIPTIONS_MAX} topics, not {len(join.subscriptions)}"
        )
    for topic, expression in join.subscriptions.items():
        names.validate_topic(topic)
        if len(expression) > EXPRESSION_LENGTH_MAX:
            raise _invalid(f"the expression of {topic} has over {EXPRESSION_LENGTH_MAX} characters")
    return MemberProfile(
        member=member,
        client_id=join.client_id,
        session_ms=join.session_ms,
        instance=join.instance,
        subscriptions=dict(join.subscriptions),
        strategy=join.strategy,
        capacity=join.capacity,
        orderly=join.orderly,
        revoke_timeout_ms=max(revoke_ms, REVOKE_TIMEOUT_MS_MIN),
    )


def operator_of(remove: Remove) -> str:
    """Return the operator of a removal as name@host, for the record; raises InvalidParameter."""
    _check_text("lbName", remove.name, CLIENT_ID_LENGTH_MAX)
    if remove.operator is None:
        return remove.host
    _check_text("lbOperator", remove.operator, OPERATOR_LENGTH_MAX)
    return f"{remove.operator}@{remove.host}"


def check_listed(queues: Sized) -> None:
    """Check the number of queues that a request lists; raises InvalidParameter."""
    if len(queues) > HELD_MAX:
        raise _invalid(f"a member lists {HELD_MAX} queues at most, not {len(queues)}")


def _check_text(noun: str, text: str, length_max: int) -> None:
    if not 1 <= len(text) <= length_max:
        raise _invalid(f"{noun} has between 1 and {length_max} characters, not {len(text)}")
    if names.has_controls(text):
        raise _invalid(f"{noun} is printed to terminals; it has no control characters")


def _invalid(remark: str) -> BrokerError:
    return broker_error(ResponseCode.INVALID_PARAMETER, remark)


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
    """Return the refusal of a request that would exceed a limit of this broker."""
    return broker_error(ResponseCode.SYSTEM_ERROR, f"{what}, which is the limit")


def no_members(group: str) -> BrokerError:
    """Return the error for a group that is unknown here."""
    return broker_error(ResponseCode.UNKNOWN_MEMBER, f"group {group} has no members here")


def allocates_itself(group: str, stock: Sequence[str]) -> BrokerError:
    """Return the error for a group whose stock members make all members allocate for themselves."""
    named = f": {', '.join(stock[:NAMED_MAX])}" if stock else ""
    remark = (
        f"group {group} has stock members{named}; until they are gone, all members allocate queues for"
        " themselves and the coordinator can remove none: stop the client instead"
    )
    return broker_error(ResponseCode.INVALID_PARAMETER, remark)

"""What a coordinator takes from a member: requests within bounds, or one error that names the remedy."""

from dataclasses import dataclass
from typing import Final

from libramq.balance.group import CAPACITY_MAX
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.groups.consumer_group import SUBSCRIPTIONS_MAX
from libramq.groups.coordinator.group_state import REVOKE_TIMEOUT_MS, MemberProfile
from libramq.message import names
from libramq.remoting.body.coordination import GroupJoinBody, QueueGrant
from libramq.remoting.headers import GroupJoinHeader, GroupRemoveHeader

#: The design's: shorter ones end by a pause of the interpreter.
SESSION_MS_MIN: Final = 1_000
#: Ours; Kafka's group.max.session.timeout.ms is half of it.
SESSION_MS_MAX: Final = 3_600_000
#: Ours: a member hears of a revocation by the answer to its poll, and its release travels back.
REVOKE_TIMEOUT_MS_MIN: Final = 1_000
#: Ours: for so long others may wait for a queue that nobody gives up.
REVOKE_TIMEOUT_MS_MAX: Final = 600_000
#: Ours: upstream's client ids are address@instance@unit and bounded nowhere.
CLIENT_ID_LENGTH_MAX: Final = 255
#: Ours: a strategy's name, with the inner one's.
STRATEGY_LENGTH_MAX: Final = 255
#: Ours: as long as a list of some hundred tags.
EXPRESSION_LENGTH_MAX: Final = 16_384
#: Linux: LOGIN_NAME_MAX, without its end.
OPERATOR_LENGTH_MAX: Final = 255
#: Ours: ten times the design's 10,000 queues of a group.
HELD_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """How long sessions may be."""

    ms_min: int = SESSION_MS_MIN
    ms_max: int = SESSION_MS_MAX


def member_profile(
    header: GroupJoinHeader, body: GroupJoinBody, member: str, sessions: SessionLimits
) -> MemberProfile:
    """What a GROUP_JOIN says of its sender, who gets that id; raises InvalidParameter, InvalidName."""
    if not sessions.ms_min <= header.lb_session_ms <= sessions.ms_max:
        raise _invalid(
            f"lbSessionMs is between {sessions.ms_min} and {sessions.ms_max}, not {header.lb_session_ms}"
        )
    revoke_ms = header.lb_revoke_timeout_ms
    if revoke_ms is None:
        revoke_ms = REVOKE_TIMEOUT_MS
    if not 0 <= revoke_ms <= REVOKE_TIMEOUT_MS_MAX:
        raise _invalid(f"lbRevokeTimeoutMs is between 0 and {REVOKE_TIMEOUT_MS_MAX}, not {revoke_ms}")
    _check_text("clientID", header.client_id, CLIENT_ID_LENGTH_MAX)
    if header.lb_instance is not None:
        _check_text("lbInstance", header.lb_instance, CLIENT_ID_LENGTH_MAX)
    _check_text("strategy", body.strategy, STRATEGY_LENGTH_MAX)
    if not 1 <= body.capacity <= CAPACITY_MAX:
        raise _invalid(f"capacity is between 1 and {CAPACITY_MAX}, not {body.capacity}")
    if not 1 <= len(body.subscriptions) <= SUBSCRIPTIONS_MAX:
        raise _invalid(
            f"a member subscribes to between 1 and {SUBSCRIPTIONS_MAX} topics, not {len(body.subscriptions)}"
        )
    for topic, expression in body.subscriptions.items():
        names.validate_topic(topic)
        if len(expression) > EXPRESSION_LENGTH_MAX:
            raise _invalid(f"the expression of {topic} has over {EXPRESSION_LENGTH_MAX} characters")
    return MemberProfile(
        member=member,
        client_id=header.client_id,
        session_ms=header.lb_session_ms,
        instance=header.lb_instance,
        subscriptions=body.subscriptions,
        strategy=body.strategy,
        capacity=body.capacity,
        revoke_timeout_ms=max(revoke_ms, REVOKE_TIMEOUT_MS_MIN),
    )


def operator_of(header: GroupRemoveHeader, host: str) -> str:
    """Who asks for a removal, as it is recorded: name@host; raises InvalidParameter."""
    _check_text("lbName", header.lb_name, CLIENT_ID_LENGTH_MAX)
    if header.lb_operator is None:
        return host
    _check_text("lbOperator", header.lb_operator, OPERATOR_LENGTH_MAX)
    if not header.lb_operator.isprintable():
        raise _invalid("lbOperator is printed to terminals; it has no control characters")
    return f"{header.lb_operator}@{host}"


def check_listed(queues: list[QueueGrant]) -> None:
    """A list of queues in a request; raises InvalidParameter."""
    if len(queues) > HELD_MAX:
        raise _invalid(f"a member lists {HELD_MAX} queues at most, not {len(queues)}")


def _check_text(noun: str, text: str, length_max: int) -> None:
    if not 1 <= len(text) <= length_max:
        raise _invalid(f"{noun} has between 1 and {length_max} characters, not {len(text)}")


def _invalid(remark: str) -> BrokerError:
    return broker_error(ResponseCode.INVALID_PARAMETER, remark)

"""The names of topics and groups: which are valid and how long, which are reserved for the system, and the
names of retry and dead-letter topics.

Characters `[%|a-zA-Z0-9_-]`; a topic has at most 127 of them (255 for a group's retry and dead-letter topic),
a group 120, so that its retry topic's name fits.

Upstream: common/topic/TopicValidator.java, client/Validators.java, common/MixAll.java.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from libramq.errors import InvalidName

TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 120
RETRY_OR_DLQ_TOPIC_LENGTH_MAX: Final = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LIGHT_PREFIX: Final = "%LMQ%"  # MixAll.LMQ_PREFIX: light queues and their groups.
REPLY_TOPIC_POSTFIX: Final = "REPLY_TOPIC"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
#: TopicValidator.SYNC_BROKER_MEMBER_GROUP_PREFIX: its route lists the other brokers of the same name.
MEMBERS_TOPIC_PREFIX: Final = SYSTEM_TOPIC_PREFIX + "SYNC_BROKER_MEMBER_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_QUEUE_ID: Final = 0  # Both topics have one queue.
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"  # TimerMessageStore: timer messages wait in its queue 0.
REBALANCE_EVENTS_TOPIC: Final = "LIBRA_REBALANCE_EVENTS"  # Ours: rebalance events.
AUDIT_TOPIC: Final = "LIBRA_AUDIT"  # Ours: who changed what, and who was refused.
REVIVE_TOPIC_PREFIX: Final = (
    "rmq_sys_REVIVE_LOG_"  # PopAckConstants.REVIVE_TOPIC; followed by the cluster's name.
)
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"  # PopAckConstants.REVIVE_GROUP.
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"  # MixAll.CID_SYS_RMQ_TRANS.
#: The broker's own groups, whose offsets record the progress of transactions and of Apache's POP.
OWN_GROUPS: Final = frozenset({REVIVE_GROUP, TRANSACTION_GROUP})

SYSTEM_TOPICS: Final = frozenset({
    AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, BENCHMARK_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC, TRACE_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_EVENT_TOPIC, CHECKPOINT_TOPIC,
    TIMER_TOPIC, REBALANCE_EVENTS_TOPIC, AUDIT_TOPIC,
})  # fmt: skip
NOT_ALLOWED_SEND_TOPICS: Final = frozenset({
    SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC,
    OFFSET_MOVED_EVENT_TOPIC, REBALANCE_EVENTS_TOPIC, AUDIT_TOPIC, TIMER_TOPIC,
})  # fmt: skip
SYSTEM_GROUPS: Final = frozenset({
    "DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "TOOLS_CONSUMER", "TOOLS_PRODUCER", "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP", "SELF_TEST_P_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL", TRANSACTION_GROUP,
})  # fmt: skip
#: MixAll.CID_RMQ_SYS_PREFIX; and the prefix of LibraMQ's own tools.
SYSTEM_GROUP_PREFIXES: Final = ("CID_RMQ_SYS_", "LIBRA_")

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
#: Control characters of ASCII and Latin-1 (C0, DEL, C1): terminals and log viewers interpret them.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def validate_topic(topic: str) -> str:
    """Return the topic if its name is valid; InvalidName otherwise."""
    return validate_name("topic", topic, _topic_length_max(topic))


def validate_group(group: str) -> str:
    """Return the group if its name is valid; InvalidName otherwise."""
    return validate_name("group", group, GROUP_LENGTH_MAX)


def has_controls(text: str) -> bool:
    """Return whether a text has control characters."""
    return _CONTROLS.search(text) is not None


def without_controls(text: str) -> str:
    """Return a text with a blank in place of each control character."""
    return _CONTROLS.sub(" ", text)


def is_valid_topic(topic: str) -> bool:
    """Return whether the name is valid for a topic."""
    return len(topic) <= _topic_length_max(topic) and _ALLOWED.match(topic) is not None


def is_valid_group(group: str) -> bool:
    """Return whether the name is valid for a group."""
    return len(group) <= GROUP_LENGTH_MAX and _ALLOWED.match(group) is not None


def is_system_topic(topic: str) -> bool:
    """Return whether the topic is the broker's own."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_light(name: str) -> bool:
    """Return whether the topic or group is a light one (LMQ), which nobody has to create."""
    return name.startswith(LIGHT_PREFIX)


def is_sendable(topic: str) -> bool:
    """Return whether clients may send to the topic; the broker trusts the messages of some topics."""
    return topic not in NOT_ALLOWED_SEND_TOPICS and not topic.startswith(REVIVE_TOPIC_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic in which a group's failed messages wait for another attempt."""
    return RETRY_PREFIX + group


def pop_retry_topic(topic: str, group: str, *, is_new: bool = False) -> str:
    """Return the topic in which a group's unacknowledged messages of a topic become visible again.

    is_new: use the name of version 2, which is unambiguous (KeyBuilder.java).
    """
    return f"{RETRY_PREFIX}{group}{'+' if is_new else '_'}{topic}"


def popped_topic(topic: str, group: str) -> str:
    """Return the topic popped by a group that receives messages of `topic` (KeyBuilder.parseNormalTopic)."""
    for mark in "_+":
        prefix = f"{RETRY_PREFIX}{group}{mark}"
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


def retry_group(topic: str, *, is_group: Callable[[str], bool], is_topic: Callable[[str], bool]) -> str:
    """Return the group of a retry topic, whether it pulls or pops (KeyBuilder.parseGroup).

    POP's first names are ambiguous. This picks the longest group name that exists together with the topic.
    (Apache's broker takes the group and topic for the name of one group.)
    """
    name = topic.removeprefix(RETRY_PREFIX)
    group, mark, _ = name.partition("+")
    if mark:
        return group
    parts = name.split("_") if not is_group(name) else []
    for split in range(len(parts) - 1, 0, -1):
        if is_group("_".join(parts[:split])) and is_topic("_".join(parts[split:])):
            return "_".join(parts[:split])
    return name


def pop_kind(topic: str) -> str:
    """Return a topic's kind as coded in replies and handles of POP: 0 normal, 1 or 2 retry (by version)."""
    if not topic.startswith(RETRY_PREFIX):
        return "0"
    return "2" if "+" in topic else "1"


def groups_of(topics: Iterable[str], configured: Iterable[str] = ()) -> list[str]:
    """Return the groups that brokers have configured or that have one of these retry topics, sorted.

    A user who may create topics can create retry topics without a group: `%RETRY%` alone, or with too long a
    name. Groups that pop also have retry topics for each topic (`pop_retry_topic`), which may outlive it.
    """
    topics, known = set(topics), set(configured)
    retried = {topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)}
    of_pop = {name for name in retried - known if _is_of_pop(name, retried | known, known, topics)}
    return sorted(
        name for name in (retried | known) - of_pop if is_valid_group(name) and not is_system_group(name)
    )


def is_system_group(group: str) -> bool:
    """Return whether a group is reserved for brokers or tools."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIXES)


def _is_of_pop(name: str, groups: set[str], configured: set[str], topics: set[str]) -> bool:
    """Return whether a retry topic's name consists of a group and a topic that it pops, or popped."""
    parts = name.split("_")
    splits = [("_".join(parts[:split]), "_".join(parts[split:])) for split in range(1, len(parts))]
    return any(group in configured or (group in groups and topic in topics) for group, topic in splits)


def reply_topic(cluster: str) -> str:
    """Return the topic in which a cluster's brokers store replies to requests (MixAll.getReplyTopic)."""
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"


def dlq_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DLQ_PREFIX + group


def _topic_length_max(topic: str) -> int:
    is_of_a_group = isinstance(topic, str) and topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return RETRY_OR_DLQ_TOPIC_LENGTH_MAX if is_of_a_group else TOPIC_LENGTH_MAX


def validate_name(noun: str, name: str, length_max: int = TOPIC_LENGTH_MAX) -> str:
    """Return a name that is valid by the rules for topics; else raise InvalidName, naming the noun."""
    if not isinstance(name, str):
        raise InvalidName(f"the {noun} is a text, not {name!r}")
    if not name or name.isspace():
        raise InvalidName(f"the {noun} is blank")
    if len(name) > length_max:
        raise InvalidName(f"the {noun} {name[:40]!r}… has {len(name)} characters, over {length_max}")
    if not _ALLOWED.match(name):
        raise InvalidName(f"the {noun} {name!r} has characters other than letters, digits and % | _ -")
    return name

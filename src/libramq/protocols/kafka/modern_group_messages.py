"""The messages of KIP-848's members in the form of their groups, and back."""

from collections.abc import Iterable, Mapping
from typing import Final

from libramq.groups.modern.values import JOINS, LEAVES, LEAVES_FOR_A_WHILE, Heartbeat, Partition, Partitions
from libramq.groups.protocol_groups import Refusal
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.groups import NAME_CHARACTERS_MAX, client_id_of, host_of
from libramq.protocols.kafka.topic_ids import TopicIds, id_of
from libramq.secret_bits import SecretBits
from libramq.wire.kafka.apis.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from libramq.wire.kafka.error_code import ErrorCode

CODES: Final[Mapping[Refusal, ErrorCode]] = {
    Refusal.NONE: ErrorCode.NONE,
    Refusal.UNKNOWN_MEMBER: ErrorCode.UNKNOWN_MEMBER_ID,
    Refusal.FENCED_EPOCH: ErrorCode.FENCED_MEMBER_EPOCH,
    Refusal.STALE_EPOCH: ErrorCode.STALE_MEMBER_EPOCH,
    Refusal.FENCED_INSTANCE: ErrorCode.FENCED_INSTANCE_ID,
    Refusal.UNRELEASED_INSTANCE: ErrorCode.UNRELEASED_INSTANCE_ID,
    Refusal.GROUP_FULL: ErrorCode.GROUP_MAX_SIZE_REACHED,
}
#: Ours; group.consumer.heartbeat.interval.ms is 5 s.
HEARTBEAT_MS: Final = 1_500
#: Ours: of members that wait for partitions of others.
WAITING_HEARTBEAT_MS: Final = 200
#: Ours: how long a heartbeat is held; for librdkafka one fails that takes longer than the interval. A client
#: that has one under way can neither leave nor change its topics.
HELD_MS: Final = 900
#: Ours: topics that a member names.
TOPICS_MAX: Final = 1_000
#: Bytes of a member's id that cannot be guessed.
_ID_BYTES: Final = 16


class Beats:
    """Heartbeats as groups see them. secret_bits: for the ids of members without one."""

    def __init__(self, ids: TopicIds, secret_bits: SecretBits) -> None:
        self._ids = ids
        self._secret_bits = secret_bits

    def of(self, request: ConsumerGroupHeartbeatRequest, slot: Slot) -> Heartbeat:
        """Return a request as the group sees it; a member without an id gets one."""
        owned = _owned(request.topic_partitions, self._ids)
        topics = request.subscribed_topic_names
        has_all = request.rebalance_timeout_ms >= 0 and reads_others(request)
        return Heartbeat(
            member_id=request.member_id or self._secret_bits.token_hex(_ID_BYTES),
            epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            client_id=client_id_of(slot),
            client_host="/" + host_of(slot.connection),
            rebalance_ms=request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else None,
            topics=None if topics is None else frozenset(topics),
            pattern=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=owned,
            is_full=request.member_epoch == JOINS or (has_all and owned is not None),
        )


def reads_others(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether a member says what it subscribes to."""
    return request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None


def _owned(named: Iterable[TopicPartitions] | None, ids: TopicIds) -> Partitions | None:
    if named is None:
        return None
    topics = [(ids.name_of(each.topic_id), each.partitions) for each in named]
    return frozenset(
        Partition(topic, index) for topic, indexes in topics if topic is not None for index in indexes
    )


def what_is_invalid(request: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    """Return what is wrong with a request, if something is.

    Upstream: GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid.
    """
    epoch = request.member_epoch
    ids = (request.instance_id, request.member_id, request.rack_id)
    if any(len(each or "") > NAME_CHARACTERS_MAX for each in ids):
        return f"ids of members and racks have at most {NAME_CHARACTERS_MAX} characters"
    topics = request.subscribed_topic_names or ()
    if len(topics) > TOPICS_MAX or any(len(each) > NAME_CHARACTERS_MAX for each in topics):
        return f"a member subscribes to {TOPICS_MAX} topics of {NAME_CHARACTERS_MAX} characters at most"
    if request.instance_id == "" or request.rack_id == "":
        return "instance and rack ids are not empty"
    if not request.member_id and (epoch != JOINS or version > 0):
        return "a member needs an id"
    if epoch == JOINS:
        if request.rebalance_timeout_ms < 0:
            return "a join names a rebalance timeout"
        if request.topic_partitions:
            return "a member joins without partitions"
        return None if reads_others(request) else "a join names topics"
    if epoch == LEAVES_FOR_A_WHILE and request.instance_id is None:
        return "only a static member leaves for a while"
    return f"there is no member epoch {epoch}" if epoch < min(LEAVES, LEAVES_FOR_A_WHILE) else None


def response(
    member_id: str, epoch: int, assigned: Partitions | None = None, *, is_waiting: bool = False
) -> ConsumerGroupHeartbeatResponse:
    """Return the answer to a heartbeat. assigned: None where the member knows it."""
    assignment = None
    if assigned is not None:
        topics: dict[str, list[int]] = {}
        for each in sorted(assigned):
            topics.setdefault(each.topic, []).append(each.number)
        assignment = Assignment(
            topic_partitions=tuple(
                TopicPartitions(topic_id=id_of(topic), partitions=tuple(indexes))
                for topic, indexes in topics.items()
            )
        )
    return ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=epoch,
        heartbeat_interval_ms=WAITING_HEARTBEAT_MS if is_waiting else HEARTBEAT_MS,
        assignment=assignment,
    )

"""Offsets: OffsetCommit and OffsetFetch, on the committed offsets that RocketMQ's groups have, too.

All commits of a request are journalled by one write before they are acknowledged. The metadata that a client
may add to a commit is not kept.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from libramq.auth.authorizer import require_permission
from libramq.auth.operation import Consume
from libramq.auth.principal import ANONYMOUS
from libramq.broker.broker import Broker
from libramq.codes import ResponseCode
from libramq.errors import BrokerError
from libramq.groups.classic.values import Beat
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.groups import GroupRequests
from libramq.protocols.kafka.metadata import is_visible
from libramq.protocols.kafka.refusals import code_of
from libramq.wire.kafka.apis.offset_commit import (
    CommitResult,
    CommitResults,
    CommittedPartition,
    CommittedTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from libramq.wire.kafka.apis.offset_fetch import (
    FoundGroup,
    FoundPartition,
    FoundTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    WantedGroup,
    WantedTopic,
)
from libramq.wire.kafka.error_code import ErrorCode

#: offset.metadata.max.bytes.
METADATA_BYTES_MAX: Final = 4_096
#: The first version of OffsetFetch that names several groups.
_GROUPS_FROM: Final = 8


class OffsetRequests:
    """Answers OffsetCommit and OffsetFetch."""

    def __init__(self, broker: Broker, groups: GroupRequests) -> None:
        self._committing = broker.committing
        self._offsets = broker.offsets
        self._topics = broker.topics
        self._table = broker.groups
        self._authorizer = broker.authorizer
        self._clock = broker.kernel.clock
        self._groups = groups

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {OffsetCommitRequest: self.commit, OffsetFetchRequest: self.fetch}

    def commit(self, request: OffsetCommitRequest, slot: Slot) -> None:
        """Commit a group's offsets; those that are refused leave the others alone."""
        name = request.group_id
        beat = Beat(request.member_id, request.group_instance_id, request.generation_id_or_member_epoch)
        refusal = self._groups.refusal(name) or self._groups.commit_refusal(name, beat)
        if refusal is None:
            try:
                self._table.require(name, self._clock.wall_ms())
            except BrokerError as refused:
                refusal = code_of(refused)
        codes = {
            (at, partition.partition_index): refusal or self._commit(name, topic.name, partition, slot)
            for at, topic in enumerate(request.topics)
            for partition in topic.partitions
        }
        if any(code is ErrorCode.NONE for code in codes.values()):
            try:
                self._committing.write()
            except BrokerError:
                failed = ErrorCode.COORDINATOR_NOT_AVAILABLE  # Clients try again.
                codes = {place: code or failed for place, code in codes.items()}
        slot.answer(OffsetCommitResponse(topics=tuple(_results(request.topics, codes))))

    def _commit(self, group: str, topic: str, partition: CommittedPartition, slot: Slot) -> ErrorCode:
        if len((partition.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        if not is_visible(topic):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            require_permission(self._authorizer, Consume(ANONYMOUS, group, (topic,)))
            self._committing.commit(
                slot.connection, group, topic, partition.partition_index, max(partition.committed_offset, 0)
            )
        except BrokerError as refused:
            if refused.response_code in (ResponseCode.FENCED, ResponseCode.NOT_YET_GRANTED):
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # Members of ours have the queues.
            return code_of(refused)
        return ErrorCode.NONE

    def fetch(self, request: OffsetFetchRequest, slot: Slot) -> None:
        """Answer with committed offsets."""
        assert slot.call is not None, "a request has a call"
        if slot.call.header.version >= _GROUPS_FROM:
            groups = {each.group_id: each for each in request.groups}  # Asked for twice, answered once.
            slot.answer(OffsetFetchResponse(groups=tuple(map(self._found, groups.values()))))
            return
        found = self._found(WantedGroup(group_id=request.group_id, topics=request.topics))
        slot.answer(OffsetFetchResponse(topics=found.topics, error_code=found.error_code))

    def _found(self, wanted: WantedGroup) -> FoundGroup:
        name = wanted.group_id
        refusal = self._groups.refusal(name)
        if refusal is not None:
            return FoundGroup(group_id=name, error_code=refusal)
        topics = wanted.topics
        if topics is None:
            topics = tuple(
                WantedTopic(name=topic, partition_indexes=tuple(self._offsets.offsets(name, topic)))
                for topic in sorted(self._offsets.topics_of_group(name))
                if is_visible(topic) and self._may_read(name, topic)
            )
        return FoundGroup(group_id=name, topics=tuple(self._found_topic(name, each) for each in topics))

    def _found_topic(self, group: str, wanted: WantedTopic) -> FoundTopic:
        topic = wanted.name
        code = ErrorCode.NONE if self._may_read(group, topic) else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partitions = []
        for index in wanted.partition_indexes:
            offset = None
            if code is ErrorCode.NONE and topic in self._topics:
                offset = self._offsets.query(group, topic, index)
            partitions.append(
                FoundPartition(
                    partition_index=index, committed_offset=-1 if offset is None else offset, error_code=code
                )
            )
        return FoundTopic(name=topic, partitions=tuple(partitions))

    def _may_read(self, group: str, topic: str) -> bool:
        try:
            require_permission(self._authorizer, Consume(ANONYMOUS, group, (topic,)))
        except BrokerError:
            return False
        return True


def _results(
    topics: tuple[CommittedTopic, ...], codes: Mapping[tuple[int, int], ErrorCode]
) -> list[CommitResults]:
    return [
        CommitResults(
            name=topic.name,
            partitions=tuple(
                CommitResult(partition_index=each.partition_index, error_code=codes[at, each.partition_index])
                for each in topic.partitions
            ),
        )
        for at, topic in enumerate(topics)
    ]

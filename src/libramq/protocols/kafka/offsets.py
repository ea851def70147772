"""Offsets: OffsetCommit and OffsetFetch, on the committed offsets that RocketMQ's groups have, too.

All commits of a request are journalled by one write before they are acknowledged. The metadata that a client
may add to a commit is not kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final

from libramq.auth.authorizer import require_permission
from libramq.auth.operation import Consume
from libramq.auth.principal import ANONYMOUS
from libramq.broker.broker import Broker
from libramq.codes import ResponseCode
from libramq.errors import BrokerError
from libramq.groups.classic.values import Beat
from libramq.protocols.kafka.answers import ITEMS_PER_STEP, Slot
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
#: Ours: topics of an OffsetFetch that are looked up in one step; each has ITEMS_PER_STEP partitions at most.
TOPICS_PER_STEP: Final = 10
#: The first version of OffsetFetch that names several groups.
_GROUPS_FROM: Final = 8

#: A topic, and what is committed of it.
_Wanted = tuple[str, CommittedPartition]


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
        refusal = self._groups.refusal(name)
        if refusal is None:
            try:
                self._table.require(name, self._clock.wall_ms())
            except BrokerError as refused:
                refusal = code_of(refused)
        wanted = [(each.name, partition) for each in request.topics for partition in each.partitions]
        parts = [wanted[at : at + ITEMS_PER_STEP] for at in range(0, len(wanted), ITEMS_PER_STEP)]

        def commit(part: Sequence[_Wanted]) -> list[ErrorCode]:
            # Between two parts the group may move on to a generation whose members commit further.
            refused = refusal or self._groups.commit_refusal(name, beat)
            return [refused or self._commit(name, topic, partition, slot) for topic, partition in part]

        slot.each(parts, commit, partial(self._committed, request, slot), per_step=1)

    def _committed(
        self, request: OffsetCommitRequest, slot: Slot, parts: Sequence[Sequence[ErrorCode]]
    ) -> None:
        codes = list(chain.from_iterable(parts))
        if ErrorCode.NONE in codes:
            try:
                self._committing.write()
            except BrokerError:
                failed = ErrorCode.COORDINATOR_NOT_AVAILABLE  # Clients try again.
                codes = [code or failed for code in codes]
        slot.answer_with(
            lambda: OffsetCommitResponse(topics=tuple(_results(request.topics, iter(codes)))),
            is_large=len(codes) > ITEMS_PER_STEP,
        )

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
        if slot.version >= _GROUPS_FROM:
            groups = {each.group_id: each for each in request.groups}  # Asked for twice, answered once.
        else:
            groups = {request.group_id: WantedGroup(group_id=request.group_id, topics=request.topics)}
        slot.each(list(groups.values()), self._wanted, partial(self._find, slot))

    def _wanted(self, wanted: WantedGroup) -> tuple[WantedGroup, ErrorCode | None]:
        """Return a group with all topics that are wanted, or why it is refused."""
        name = wanted.group_id
        refusal = self._groups.refusal(name)
        if refusal is not None or wanted.topics is not None:
            return wanted, refusal
        topics = tuple(
            WantedTopic(name=topic, partition_indexes=tuple(self._offsets.offsets(name, topic)))
            for topic in sorted(self._offsets.topics_of_group(name))
            if is_visible(topic) and self._may_read(name, topic)
        )
        return WantedGroup(group_id=name, topics=topics), None

    def _find(self, slot: Slot, groups: Sequence[tuple[WantedGroup, ErrorCode | None]]) -> None:
        parts = [
            (group.group_id, topic.name, topic.partition_indexes[at : at + ITEMS_PER_STEP])
            for group, refusal in groups
            if refusal is None
            for topic in group.topics or ()
            for at in range(0, max(len(topic.partition_indexes), 1), ITEMS_PER_STEP)
        ]

        def answer(found: Sequence[Sequence[FoundPartition]]) -> None:
            count = sum(map(len, found)) + len(found) + len(groups)
            slot.answer_with(
                partial(_found, groups, found, has_groups=slot.version >= _GROUPS_FROM),
                is_large=count > ITEMS_PER_STEP,
            )

        slot.each(parts, self._found_partitions, answer, per_step=TOPICS_PER_STEP)

    def _found_partitions(self, wanted: tuple[str, str, Sequence[int]]) -> list[FoundPartition]:
        group, topic, indexes = wanted
        code = ErrorCode.NONE if self._may_read(group, topic) else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        is_known = code is ErrorCode.NONE and topic in self._topics
        offsets = (self._offsets.query(group, topic, index) if is_known else None for index in indexes)
        return [
            FoundPartition(
                partition_index=index, committed_offset=-1 if offset is None else offset, error_code=code
            )
            for index, offset in zip(indexes, offsets, strict=True)
        ]

    def _may_read(self, group: str, topic: str) -> bool:
        try:
            require_permission(self._authorizer, Consume(ANONYMOUS, group, (topic,)))
        except BrokerError:
            return False
        return True


def _found(
    groups: Sequence[tuple[WantedGroup, ErrorCode | None]],
    parts: Sequence[Sequence[FoundPartition]],
    *,
    has_groups: bool,
) -> OffsetFetchResponse:
    """Return the answer. parts: those of all topics, in order."""
    found = chain.from_iterable(parts)
    answered = [
        FoundGroup(
            group_id=group.group_id,
            error_code=refusal or ErrorCode.NONE,
            topics=tuple(
                FoundTopic(name=topic.name, partitions=tuple(islice(found, len(topic.partition_indexes))))
                for topic in (group.topics or () if refusal is None else ())
            ),
        )
        for group, refusal in groups
    ]
    if has_groups:
        return OffsetFetchResponse(groups=tuple(answered))
    return OffsetFetchResponse(topics=answered[0].topics, error_code=answered[0].error_code)


def _results(topics: tuple[CommittedTopic, ...], codes: Iterator[ErrorCode]) -> list[CommitResults]:
    return [
        CommitResults(
            name=topic.name,
            partitions=tuple(
                CommitResult(partition_index=each.partition_index, error_code=next(codes))
                for each in topic.partitions
            ),
        )
        for topic in topics
    ]

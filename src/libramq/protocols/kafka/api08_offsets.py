"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47): committing, reading and deleting a group's offsets.

All commits or deletions of a request are journalled in one write before they are acknowledged. A commit's
metadata is not stored. Offsets are deleted only in topics that no member of the group reads: each turn
deletes some and checks the group again, because members may have joined.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Final, NamedTuple

from libramq.auth.audit import Changed, Kind
from libramq.auth.operation import Resource, ResourceKind
from libramq.broker.cluster.kafka.nodes import is_visible
from libramq.broker.groups.group_offsets import Found, GroupOffsets
from libramq.clock import Clock
from libramq.codes import ResponseCode
from libramq.errors import BrokerError
from libramq.groups.classic.values import Beat
from libramq.kernel.connection import Principal
from libramq.kernel.work import portions
from libramq.message.queue import MessageQueue
from libramq.protocols.kafka.answers import Results, Slot, serves
from libramq.protocols.kafka.api10_groups import KafkaGroups
from libramq.protocols.kafka.refusals import code_for, code_of, code_of_write
from libramq.wire.kafka.apis import offsets as wire
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.schema import Topic, by_topic, partitions_of
from libramq.wire.kafka.subscription import CONSUMER, subscribed_topics

#: offset.metadata.max.bytes.
METADATA_BYTES_MAX: Final = 4_096
#: The first version of OffsetFetch that names several groups.
_GROUPS_FROM: Final = 8

_SUCCESS: Final = ResponseCode.SUCCESS

#: A group whose offsets are requested, and the refusal if there is one.
_Checked = tuple[wire.WantedGroup, ErrorCode | None]
#: A group, a topic, and some of its partitions.
_SomeOfTopic = tuple[str, str, Sequence[int]]
#: A topic, and a commit to a partition of it.
_Wanted = tuple[str, wire.CommittedPartition]


class _Removed(NamedTuple):
    """The outcome for a partition whose offset is deleted. queue: None if there is no such partition."""

    code: ErrorCode
    queue: MessageQueue | None


class OffsetRequests:
    """Answers requests about committed offsets."""

    def __init__(
        self,
        groups: KafkaGroups,
        offsets: GroupOffsets,
        clock: Clock,
        changed: Changed,
    ) -> None:
        self._groups = groups.every
        self._members = groups
        self._group_offsets = offsets
        self._committing = offsets.committing
        self._offsets = offsets.own
        self._nodes = groups.every.nodes
        self._clock = clock
        self._changed = changed

    @serves(wire.OffsetCommitRequest)
    def commit(self, request: wire.OffsetCommitRequest, slot: Slot) -> None:
        """Commit a group's offsets; a refused commit does not affect the others."""
        name = request.group_id
        beat = Beat(request.member_id, request.group_instance_id, request.generation_id_or_member_epoch)
        refusal = self._refusal(name, slot.principal)
        if refusal is None:
            try:
                self._groups.table.require(name, self._clock.wall_ms())
            except BrokerError as refused:
                refusal = code_of(refused)
        wanted = partitions_of(request.topics)

        def commit(part: Sequence[_Wanted]) -> list[ErrorCode]:
            # Checked for each part: meanwhile the group may have a new generation, with later commits.
            refused = refusal or self._members.commit_refusal(name, beat, slot.version)
            return [refused or self._commit(name, topic, partition, slot) for topic, partition in part]

        slot.each(list(portions(wanted)), commit, partial(self._committed, request, slot))

    def _refusal(self, name: str, principal: Principal) -> ErrorCode | None:
        refusal = self._groups.member_refusal(name, principal)
        if refusal is None and self._members.is_thawing:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # Clients retry.
        return refusal

    def _committed(
        self, request: wire.OffsetCommitRequest, slot: Slot, parts: Sequence[Sequence[ErrorCode]]
    ) -> None:
        """Journal this broker's commits, and send the other brokers theirs."""
        codes = list(chain.from_iterable(parts))
        if ErrorCode.NONE in codes:
            written = code_of_write(self._committing)
            codes = [code or written for code in codes]
        wanted = partitions_of(request.topics)
        queues = [
            None if code is not ErrorCode.NONE else self._nodes.place(topic, partition.partition_index)
            for code, (topic, partition) in zip(codes, wanted, strict=True)
        ]
        commits = {
            queue: partition.committed_offset
            for queue, (_, partition) in zip(queues, wanted, strict=True)
            if queue is not None
        }

        def answer(others: Mapping[MessageQueue, int]) -> None:
            final = [
                code if queue is None or others.get(queue, _SUCCESS) == _SUCCESS else _refused(others[queue])
                for code, queue in zip(codes, queues, strict=True)
            ]
            indexes = (partition.partition_index for _, partition in wanted)
            slot.answer_with(
                lambda: wire.OffsetCommitResponse(topics=by_topic(request.topics, _results(indexes, final))),
                len(final),
            )

        self._group_offsets.commit(request.group_id, commits, slot.guarded(answer))

    def _commit(self, group: str, topic: str, partition: wire.CommittedPartition, slot: Slot) -> ErrorCode:
        """Commit to a queue of this broker; only check a commit to another broker's."""
        if len((partition.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        try:
            self._groups.require_may_read(group, topic, slot.principal)
            queue = self._nodes.place(topic, partition.partition_index) if is_visible(topic) else None
            if queue is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if self._nodes.is_own(queue):
                self._group_offsets.commit_own(slot.connection, group, queue, partition.committed_offset)
        except BrokerError as refused:
            return _refused(refused.response_code)
        return ErrorCode.NONE

    @serves(wire.OffsetFetchRequest)
    def fetch(self, request: wire.OffsetFetchRequest, slot: Slot) -> None:
        """Answer with committed offsets."""
        if slot.version >= _GROUPS_FROM:
            groups = {each.group_id: each for each in request.groups}  # Named twice, answered once.
        else:
            groups = {request.group_id: wire.WantedGroup(group_id=request.group_id, topics=request.topics)}
        check = partial(self._checked, slot.principal)
        slot.each(list(groups.values()), check, partial(self._look_elsewhere, slot))

    def _checked(self, principal: Principal, wanted: wire.WantedGroup) -> _Checked:
        name, member_id, epoch = wanted.group_id, wanted.member_id, wanted.member_epoch
        refusal = self._refusal(name, principal)
        if refusal is None and (member_id is not None or epoch >= 0):
            refusal = self._members.modern.offsets_refusal(name, member_id or "", epoch)
        return wanted, refusal

    def _look_elsewhere(self, slot: Slot, groups: Sequence[_Checked]) -> None:
        """Find the committed offsets of queues at other brokers, then answer."""
        granted = [group for group, refusal in groups if refusal is None]
        wanted = [
            (group.group_id, topic.name, some)
            for group in granted
            for topic in group.topics or ()
            for some in portions(topic.partitions)
        ]

        def ask(parts: Sequence[Sequence[MessageQueue]]) -> None:
            queues: dict[str, list[MessageQueue] | None] = {
                group.group_id: None if group.topics is None else [] for group in granted
            }
            for (name, _, _), some in zip(wanted, parts, strict=True):
                of_group = queues[name]
                assert of_group is not None, "the request names topics of the group"
                of_group += some
            find = partial(self._look_up, slot, groups, granted)
            results: Results[Found] = Results(len(granted), slot.guarded(find))
            for at, group in enumerate(granted):
                self._group_offsets.find(group.group_id, queues[group.group_id], partial(results.put, at))

        slot.each(wanted, partial(self._elsewhere, slot.principal), ask)

    def _elsewhere(self, principal: Principal, wanted: _SomeOfTopic) -> list[MessageQueue]:
        """Return the queues at other brokers that the group may read.

        For others, the time of a query would reveal that the topic exists.
        """
        group, topic, indexes = wanted
        if not self._groups.may_read(group, topic, principal):
            return []
        places = (self._nodes.place(topic, index) for index in indexes)
        return [queue for queue in places if queue is not None and not self._nodes.is_own(queue)]

    def _look_up(
        self,
        slot: Slot,
        groups: Sequence[_Checked],
        granted: Sequence[wire.WantedGroup],
        found: Sequence[Found],
    ) -> None:
        """Look up the offsets committed here. found: the granted groups' offsets at other brokers."""
        of = {group.group_id: each for group, each in zip(granted, found, strict=True)}

        def look_up(wholes: Sequence[wire.WantedGroup]) -> None:
            whole = {each.group_id: each for each in wholes}
            wanted = [(whole.get(group.group_id, group), refusal) for group, refusal in groups]
            self._find(slot, wanted, of)

        # Tools request all offsets of many groups.
        every = [(each, of[each.group_id]) for each in granted if each.topics is None]
        slot.each(every, partial(self._whole, slot.principal), look_up)

    def _whole(self, principal: Principal, group: tuple[wire.WantedGroup, Found]) -> wire.WantedGroup:
        """Return a group with all topics in which it has committed offsets, here or elsewhere."""
        wanted, found = group
        name = wanted.group_id
        queues = [
            *found.offsets,
            *(
                self._nodes.own_queue(topic, queue_id)
                for topic in sorted(self._offsets.topics_of_group(name))
                for queue_id in self._offsets.offsets(name, topic)
            ),
        ]
        readable = {
            topic
            for topic in dict.fromkeys(queue.topic for queue in queues)
            if is_visible(topic) and self._groups.may_read(name, topic, principal)
        }
        partitions: dict[str, set[int]] = {}
        for queue in queues:
            index = self._nodes.partition(queue) if queue.topic in readable else None
            if index is not None:
                partitions.setdefault(queue.topic, set()).add(index)
        topics = tuple(
            Topic(name=topic, partitions=tuple(sorted(partitions[topic]))) for topic in sorted(partitions)
        )
        return wire.WantedGroup(group_id=name, topics=topics)

    def _find(self, slot: Slot, groups: Sequence[_Checked], elsewhere: Mapping[str, Found]) -> None:
        parts = [
            (group.group_id, topic.name, some)
            for group, refusal in groups
            if refusal is None
            for topic in group.topics or ()
            for some in portions(topic.partitions)
        ]

        def answer(found: Sequence[Sequence[wire.FoundPartition]]) -> None:
            count = sum(map(len, found)) + len(found) + len(groups)
            slot.answer_with(partial(_found, groups, found, has_groups=slot.version >= _GROUPS_FROM), count)

        find = partial(self._found_partitions, elsewhere, slot.principal)
        slot.each(parts, find, answer)

    def _found_partitions(
        self, elsewhere: Mapping[str, Found], principal: Principal, wanted: _SomeOfTopic
    ) -> list[wire.FoundPartition]:
        group, topic, indexes = wanted
        if not self._groups.may_read(group, topic, principal):
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return [
                wire.FoundPartition(partition_index=index, committed_offset=-1, error_code=denied)
                for index in indexes
            ]
        is_known = bool(self._nodes.partitions(topic))
        found = []
        for index in indexes:
            queue = self._nodes.place(topic, index) if is_known else None
            offset, code = None, ErrorCode.NONE
            if queue is not None and self._nodes.is_own(queue):
                offset = self._offsets.committed(group, topic, queue.queue_id)
            elif queue is not None:
                offset = elsewhere[group].offsets.get(queue)
                # The queue's broker is away and may have an offset: clients retry.
                code = ErrorCode.UNSTABLE_OFFSET_COMMIT if queue in elsewhere[group].unknown else code
            found.append(
                wire.FoundPartition(
                    partition_index=index, committed_offset=-1 if offset is None else offset, error_code=code
                )
            )
        return found

    @serves(wire.OffsetDeleteRequest)
    def delete(self, request: wire.OffsetDeleteRequest, slot: Slot) -> None:
        """Delete committed offsets in topics that no member reads."""
        refusal = self._deletion_refusal(request.group_id, slot.principal)
        if refusal is not None:
            slot.answer(wire.OffsetDeleteResponse(error_code=refusal))
            return
        every = partitions_of(request.topics)
        work = partial(self._remove, request.group_id, slot.principal)
        slot.each(list(portions(every)), work, partial(self._removed, request, slot))

    def _deletion_refusal(self, name: str, principal: Principal) -> ErrorCode | None:
        """Return the error if a group's offsets may not be deleted."""
        refusal = self._groups.delete_refusal(name, principal)
        if refusal is not None:
            return refusal
        if not self._groups.exists(name):
            return ErrorCode.GROUP_ID_NOT_FOUND
        found = self._groups.classic.get(name)
        # Members of other protocol types do not name their topics.
        is_readable = found is None or found.protocol_type == CONSUMER
        return (
            ErrorCode.NON_EMPTY_GROUP if self._groups.has_foreign_members(name) or not is_readable else None
        )

    def _remove(self, name: str, principal: Principal, step: Sequence[tuple[str, int]]) -> list[_Removed]:
        """Remove some offsets of this broker; return the outcome for each partition."""
        refusal = self._deletion_refusal(name, principal)
        read = self._read_topics(name) if refusal is None else frozenset()
        results: list[_Removed] = []
        for topic, group in groupby(step, key=itemgetter(0)):
            places = [self._nodes.place(topic, index) for _, index in group]
            code = refusal or ErrorCode.NONE
            # Upstream: KafkaApis.handleOffsetDeleteRequest requires Read on each topic.
            if code is ErrorCode.NONE and not self._groups.may_read(name, topic, principal):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if code is ErrorCode.NONE and topic in read:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if code is ErrorCode.NONE:
                own = {each.queue_id for each in places if each is not None and self._nodes.is_own(each)}
                self._offsets.remove_queues(name, topic, own)
            results += [_Removed(code, place) for place in places]
        return results

    def _read_topics(self, name: str) -> frozenset[str]:
        """Return the topics to which the group's members subscribe."""
        found, modern = self._groups.classic.get(name), self._groups.modern.get(name)
        members = found.members.values() if found is not None else ()
        # Most members send the same topics in the same bytes.
        distinct = {each.metadata for member in members for each in member.protocols}
        return frozenset(modern.topics if modern is not None else ()).union(*map(subscribed_topics, distinct))

    def _removed(
        self, request: wire.OffsetDeleteRequest, slot: Slot, parts: Sequence[Sequence[_Removed]]
    ) -> None:
        """Remove the offsets of other brokers, and answer once they have."""
        code = code_of_write(self._committing)
        results = list(chain.from_iterable(parts))
        queues = [each.queue for each in results if not each.code and each.queue is not None]
        others = [queue for queue in dict.fromkeys(queues) if not self._nodes.is_own(queue)]
        answer = slot.guarded(partial(self._answer_removed, request, slot, code, results))
        if others:
            self._group_offsets.remove(request.group_id, others, answer)
        else:
            answer(frozenset())

    def _answer_removed(
        self,
        request: wire.OffsetDeleteRequest,
        slot: Slot,
        code: ErrorCode,
        results: Sequence[_Removed],
        failed: Set[str],
    ) -> None:
        """Answer; failed: the brokers that still have their offsets."""
        codes = [
            ErrorCode.COORDINATOR_NOT_AVAILABLE
            if not each.code and each.queue is not None and each.queue.broker_name in failed
            else each.code
            for each in results
        ]
        every = partitions_of(request.topics)
        changed = [
            str(Resource(ResourceKind.TOPIC, topic))
            for (topic, index), each in zip(every, codes, strict=True)
            if each is ErrorCode.NONE and 0 <= index < self._nodes.partitions(topic)
        ]
        if changed:
            resources = [str(Resource(ResourceKind.GROUP, request.group_id)), *dict.fromkeys(changed)]
            reason = code.name if code else None
            self._changed(Kind.DELETED, slot.principal, "OffsetDelete", resources, reason)
        slot.answer_with(
            lambda: wire.OffsetDeleteResponse(
                error_code=code,
                topics=by_topic(request.topics, _results((index for _, index in every), codes)),
            ),
            len(codes) + len(request.topics),
        )


def _refused(response_code: int) -> ErrorCode:
    if response_code in (ResponseCode.FENCED, ResponseCode.NOT_YET_GRANTED):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # The group has members of RocketMQ's protocol.
    return code_for(response_code)


def _found(
    groups: Sequence[tuple[wire.WantedGroup, ErrorCode | None]],
    parts: Sequence[Sequence[wire.FoundPartition]],
    *,
    has_groups: bool,
) -> wire.OffsetFetchResponse:
    """Return the answer. parts: the results of all topics, in order."""
    found = chain.from_iterable(parts)
    answered = [
        wire.FoundGroup(
            group_id=group.group_id,
            error_code=refusal or ErrorCode.NONE,
            topics=by_topic(group.topics or () if refusal is None else (), found),
        )
        for group, refusal in groups
    ]
    if has_groups:
        return wire.OffsetFetchResponse(groups=tuple(answered))
    return wire.OffsetFetchResponse(topics=answered[0].topics, error_code=answered[0].error_code)


def _results(indexes: Iterable[int], codes: Iterable[ErrorCode]) -> Iterator[wire.PartitionResult]:
    for index, code in zip(indexes, codes, strict=True):
        yield wire.PartitionResult(partition_index=index, error_code=code)

"""Offset removals: OffsetDelete, in topics that no member of the group reads.

Each turn removes some, and looks at the group again: members may have joined since. All removals of a request
are journalled by one write before they are acknowledged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

from libramq.broker.groups.group_offsets import GroupOffsets
from libramq.errors import BrokerError
from libramq.groups.classic.group import ClassicGroup
from libramq.kernel.connection import Principal
from libramq.kernel.work import portions
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.wire.kafka.apis.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.subscription import CONSUMER, subscribed_topics


class OffsetRemovals:
    """Answers OffsetDelete."""

    def __init__(self, groups: BrokerGroups, offsets: GroupOffsets) -> None:
        self._groups = groups
        self._group_offsets = offsets
        self._committing = offsets.committing
        self._offsets = offsets.own
        self._nodes = groups.nodes

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {OffsetDeleteRequest: self.delete_offsets}

    def delete_offsets(self, request: OffsetDeleteRequest, slot: Slot) -> None:
        """Delete committed offsets in topics that no member reads."""
        refusal = self._refusal(request.group_id, slot.principal)
        if refusal is not None:
            slot.answer(OffsetDeleteResponse(error_code=refusal))
            return
        every = [(each.name, one.partition_index) for each in request.topics for one in each.partitions]
        work = partial(self._remove, request.group_id, slot.principal)
        slot.each(list(portions(every)), work, partial(self._removed, request, slot))

    def _refusal(self, name: str, principal: Principal) -> ErrorCode | None:
        """Return why a group's offsets may not be deleted, if so."""
        refusal = self._groups.delete_refusal(name, principal)
        if refusal is not None:
            return refusal
        if not self._groups.exists(name):
            return ErrorCode.GROUP_ID_NOT_FOUND
        found = self._groups.classic.get(name)
        # Members of other kinds do not say which topics they read.
        is_readable = found is None or found.protocol_type == CONSUMER
        return (
            ErrorCode.NON_EMPTY_GROUP if self._groups.has_foreign_members(name) or not is_readable else None
        )

    def _remove(self, name: str, principal: Principal, step: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """Remove some offsets; return a code for each partition."""
        refusal = self._refusal(name, principal)
        read = self._read_topics(name) if refusal is None else frozenset()
        codes: list[ErrorCode] = []
        for topic, group in groupby(step, key=itemgetter(0)):
            indexes = [index for _, index in group]
            code = refusal or ErrorCode.NONE
            if code is ErrorCode.NONE and topic in read:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if code is ErrorCode.NONE:
                places = [self._nodes.place(topic, index) for index in indexes]
                queues = [queue for queue in places if queue is not None]
                own = {queue.queue_id for queue in queues if self._nodes.is_own(queue)}
                self._offsets.remove_queues(name, topic, own)
                others = [queue for queue in queues if not self._nodes.is_own(queue)]
                if others:
                    self._group_offsets.remove(name, others)
            codes += [code] * len(indexes)
        return codes

    def _read_topics(self, name: str) -> frozenset[str]:
        """Return what members of the group subscribe to."""
        found, modern = self._groups.classic.get(name), self._groups.modern.get(name)
        topics = frozenset(modern.topics) if modern is not None else frozenset()
        return topics | _topics(found) if found is not None else topics

    def _removed(
        self, request: OffsetDeleteRequest, slot: Slot, parts: Sequence[Sequence[ErrorCode]]
    ) -> None:
        code = ErrorCode.NONE
        try:
            self._committing.write()
        except BrokerError:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # Clients try again.
        codes = list(chain.from_iterable(parts))
        slot.answer_with(
            lambda: OffsetDeleteResponse(
                error_code=code, topics=tuple(_results(request.topics, iter(codes)))
            ),
            len(codes) + len(request.topics),
        )


def _topics(found: ClassicGroup) -> frozenset[str]:
    """Return the topics of a group's members; most name the same ones by the same bytes."""
    distinct = {each.metadata for member in found.members.values() for each in member.protocols}
    return frozenset().union(*map(subscribed_topics, distinct))


def _results(
    topics: Sequence[OffsetDeleteRequestTopic], codes: Iterator[ErrorCode]
) -> Iterator[OffsetDeleteResponseTopic]:
    for topic in topics:
        partitions = tuple(
            OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=code)
            for each, code in zip(topic.partitions, islice(codes, len(topic.partitions)), strict=True)
        )
        yield OffsetDeleteResponseTopic(name=topic.name, partitions=partitions)

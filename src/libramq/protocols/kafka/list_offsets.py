"""ListOffsets: the ends of queues, and the first message of a time.

The time of a record is when its producer made it, and the store's index has when it was stored. A message
made at a time or later was stored later than that, unless its producer's clock was ahead; so the search goes
to the store's first message of that time, and from there on to the first that was made then.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Manage
from libramq.auth.principal import ANONYMOUS
from libramq.auth.resource import Action, topic
from libramq.broker.cluster.nodes import is_visible
from libramq.catalog.requirements import Requirements
from libramq.errors import BrokerError
from libramq.kernel.effect import Effects, Thread
from libramq.message.record import decode_records
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.node import LEADER_EPOCH, KafkaNodes
from libramq.protocols.kafka.refusals import code_of
from libramq.store.log.segments import ColdRead
from libramq.store.message_store import MessageStore
from libramq.wire.kafka.apis.list_offsets import (
    EARLIEST,
    LATEST,
    ListedPartition,
    ListedTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from libramq.wire.kafka.error_code import ErrorCode

#: Ours: how many messages stored at a time or later are looked at for one that was also made then. Producers
#: send what they make within seconds.
LOOK_MESSAGES_MAX: Final = 4096
#: Ours: a search by time reads some 20 units and as many records. After that the loop waits.
WARMINGS_MAX: Final = 64
#: Ours: partitions that are looked up in one step, at up to 0.1 ms each.
PARTITIONS_PER_STEP: Final = 16
_MESSAGES_PER_READ: Final = 32


class _Work:
    """A request, and what was found so far. warmings: how often a thread has read for the next partition."""

    def __init__(self, request: ListOffsetsRequest, slot: Slot) -> None:
        self._request = request
        self.slot = slot
        self.wanted = [(each.name, partition) for each in request.topics for partition in each.partitions]
        self.found: list[ListedPartition] = []
        self.warmings = 0

    def response(self) -> ListOffsetsResponse:
        """Return the answer, once everything was found."""
        found = iter(self.found)
        return ListOffsetsResponse(
            topics=tuple(
                ListedTopic(name=each.name, partitions=tuple(islice(found, len(each.partitions))))
                for each in self._request.topics
            )
        )


class OffsetLists:
    """Answers ListOffsets."""

    def __init__(
        self,
        store: MessageStore,
        requirements: Requirements,
        authorizer: Authorizer,
        effects: Effects,
        nodes: KafkaNodes,
    ) -> None:
        self._nodes = nodes
        self._store = store
        self._requirements = requirements
        self._authorizer = authorizer
        self._effects = effects

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {ListOffsetsRequest: self.list}

    def list(self, request: ListOffsetsRequest, slot: Slot) -> None:
        """Answer with one offset for each partition: of many, some in each turn."""
        work = _Work(request, slot)
        if len(work.wanted) <= PARTITIONS_PER_STEP:
            self._finish(work)
        else:
            self._effects.proceed(slot.connection, self._steps(work))

    def _finish(self, work: "_Work") -> None:
        for _ in self._steps(work):
            pass

    def _steps(self, work: "_Work") -> Generator[None]:
        """Look up one partition after the other; a thread reads what is not in memory."""
        while (at := len(work.found)) < len(work.wanted):
            try:
                with (
                    contextlib.nullcontext()
                    if work.warmings >= WARMINGS_MAX
                    else self._store.without_waiting()
                ):
                    work.found.append(self._listed(*work.wanted[at], work.slot.connection.address))
            except ColdRead as cold:
                work.warmings += 1
                self._effects.run(
                    Thread.READ,
                    partial(self._store.warm, (cold.stretch,)),
                    lambda _: self._effects.proceed(work.slot.connection, self._steps(work)),
                    work.slot.connection,
                )
                return
            work.warmings = 0
            if at % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
                yield
        work.slot.answer(work.response())

    def _listed(self, name: str, partition: ListOffsetsPartition, address: str) -> ListedPartition:
        index = partition.partition_index
        try:
            require_permission(self._authorizer, Manage(ANONYMOUS, Action.GET, (topic(name),)))
            if not is_visible(name):
                return ListedPartition(partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            queue_id = self._nodes.queue(name, index)
            if isinstance(queue_id, ErrorCode):
                return ListedPartition(partition_index=index, error_code=queue_id)
            self._requirements.queue_to_read(name, queue_id, address)
        except BrokerError as refused:
            return ListedPartition(partition_index=index, error_code=code_of(refused))
        if partition.timestamp == LATEST:
            return _at(index, self._store.max_offset(name, queue_id))
        if partition.timestamp == EARLIEST:
            return _at(index, self._store.min_offset(name, queue_id))
        if partition.timestamp < 0:
            return ListedPartition(partition_index=index, error_code=ErrorCode.UNSUPPORTED_VERSION)
        offset, born_ms = self._by_time(name, queue_id, partition.timestamp)
        return _at(index, offset, born_ms) if offset >= 0 else ListedPartition(partition_index=index)

    def _by_time(self, name: str, queue_id: int, timestamp_ms: int) -> tuple[int, int]:
        """Return offset and time of the first message made then or later; -1 if there is none."""
        store = self._store
        offset = store.offset_by_timestamp(name, queue_id, timestamp_ms)
        end = min(store.max_offset(name, queue_id), offset + LOOK_MESSAGES_MAX)
        while offset < end:
            result = store.read(name, queue_id, offset, _MESSAGES_PER_READ)
            for message in decode_records(b"".join(result.data), decompress=False):
                if message.born_timestamp_ms >= timestamp_ms:
                    return message.queue_offset, message.born_timestamp_ms
            if result.next_offset <= offset:
                break
            offset = result.next_offset
        return -1, -1


def _at(index: int, offset: int, timestamp_ms: int = -1) -> ListedPartition:
    return ListedPartition(
        partition_index=index, offset=offset, timestamp=timestamp_ms, leader_epoch=LEADER_EPOCH
    )

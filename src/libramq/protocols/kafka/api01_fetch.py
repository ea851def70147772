"""Fetch (1): returns messages of queues as record batches, at once or when enough have arrived, with limits
on the size of an answer.

request ─► Fetching (reads, waits) ─► records ─► batches (large ones on a thread) ─► answer
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Action, Manage, topic
from libramq.broker.cluster.kafka.nodes import is_visible
from libramq.broker.messages.fetching import Fetch, Fetching, QueueRead, is_out_of_range
from libramq.clock import Clock
from libramq.errors import BrokerError
from libramq.kernel.connection import Connection, Principal
from libramq.kernel.work import portions
from libramq.protocols.kafka.answers import Slot, serves
from libramq.protocols.kafka.node import KafkaNodes
from libramq.protocols.kafka.records import fetched_records
from libramq.protocols.kafka.refusals import code_of
from libramq.store.reading.read import ReadResult
from libramq.wire.kafka.apis import fetch as wire
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.schema import by_topic, partitions_of

#: Ours: answers up to this size are encoded at once, in a few milliseconds; larger ones on a thread.
AT_ONCE_BYTES_MAX: Final = 64 * 1024
#: Ours: answers of up to this many partitions are encoded at once, at a few microseconds each.
PARTITIONS_AT_ONCE_MAX: Final = 256
#: Ours: the size of one answer's messages; by default clients accept 50 MiB in all, and 1 MiB a partition.
BYTES_MAX: Final = 8 * 1024 * 1024

#: Ours: topics that are looked up at once, at 10 µs each; of a topic with more partitions, portions of 100.
_STEPS_AT_ONCE_MAX: Final = 16

#: A topic, and the index of a partition.
_Partition = tuple[str, int]
#: A topic, a partition of it, and its queue or error.
_Place = tuple[str, wire.FetchPartition, int | ErrorCode]


class Fetches:
    """Answers Fetch."""

    def __init__(self, fetching: Fetching, authorizer: Authorizer, clock: Clock, nodes: KafkaNodes) -> None:
        self._nodes = nodes
        self._fetching = fetching
        self._authorizer = authorizer
        self._clock = clock

    @serves(wire.FetchRequest)
    def fetch(self, request: wire.FetchRequest, slot: Slot) -> None:
        """Read the permitted partitions; many of them are looked up in several turns."""
        wanted = [(each.name, some) for each in request.topics for some in portions(each.partitions)]
        slot.step_aside()  # The fetch may be held, and the client's later requests need not wait.
        slot.each(
            wanted,
            partial(self._places, slot.principal),
            partial(self._read, request, slot),
            _STEPS_AT_ONCE_MAX,
        )

    def _places(
        self, principal: Principal, wanted: tuple[str, Sequence[wire.FetchPartition]]
    ) -> Sequence[_Place]:
        """Return the queues of a topic's partitions, or the errors of those that may not be read."""
        name, partitions = wanted
        refusal = self._refusal(name, principal)
        return [
            (name, each, refusal if refusal is not None else self._nodes.queue(name, each.partition))
            for each in partitions
        ]

    def _read(self, request: wire.FetchRequest, slot: Slot, places: Sequence[Sequence[_Place]]) -> None:
        """Read the partitions; the answer is immediate if any is refused."""
        every = list(chain.from_iterable(places))
        refusals = {
            (name, each.partition): queue_id
            for name, each, queue_id in every
            if isinstance(queue_id, ErrorCode)
        }
        reads = [
            QueueRead(name, queue_id, each.fetch_offset, each.partition_max_bytes)
            for name, each, queue_id in every
            if (name, each.partition) not in refusals  # Named twice, refused since.
        ]
        fetch = Fetch(
            waiter=_Waiter(request, slot, refusals),
            reads=reads,
            bytes_min=request.min_bytes,
            bytes_max=min(max(request.max_bytes, 1), BYTES_MAX),
            hold_ms=0 if refusals or not reads else request.max_wait_ms,
            as_stored=True,
        )
        self._fetching.fetch(fetch, self._clock.monotonic_ms())

    def _refusal(self, name: str, principal: Principal) -> ErrorCode | None:
        if not is_visible(name):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            # A fetch names no group, so permission to read the topic is enough.
            require_permission(self._authorizer, Manage(principal, Action.SUB, (topic(name),)))
        except BrokerError as refused:
            return code_of(refused)
        return None


class _Waiter:
    """Answers one fetch; a `kernel.purgatory.Waiter`."""

    def __init__(
        self, request: wire.FetchRequest, slot: Slot, refusals: Mapping[_Partition, ErrorCode]
    ) -> None:
        self._request = request
        self._slot = slot
        self._refusals = refusals

    @property
    def connection(self) -> Connection:
        """Return the consumer's connection."""
        return self._slot.connection

    def answer(self, results: Sequence[ReadResult | BrokerError]) -> None:
        """Encode and send the results."""
        size = sum(result.size for result in results if isinstance(result, ReadResult))
        count = len(results) + len(self._refusals)
        is_large = size > AT_ONCE_BYTES_MAX or count > PARTITIONS_AT_ONCE_MAX
        self._slot.answer_with(partial(_response, self._request, self._refusals, results), is_large=is_large)

    def refuse(self, error: Exception) -> None:
        """End the connection: reading failed, which is a bug of ours."""
        self._slot.fail(error)


def _response(
    request: wire.FetchRequest,
    refusals: Mapping[_Partition, ErrorCode],
    results: Sequence[ReadResult | BrokerError],
) -> wire.FetchResponse:
    following = iter(results)
    partitions = (
        wire.FetchedPartition(partition_index=each.partition, error_code=refusals[name, each.partition])
        if (name, each.partition) in refusals
        else _fetched(each, next(following))
        for name, each in partitions_of(request.topics)
    )
    return wire.FetchResponse(responses=by_topic(request.topics, partitions))


def _fetched(partition: wire.FetchPartition, result: ReadResult | BrokerError) -> wire.FetchedPartition:
    index = partition.partition
    if isinstance(result, BrokerError):
        return wire.FetchedPartition(partition_index=index, error_code=code_of(result))
    if is_out_of_range(partition.fetch_offset, result):
        return wire.FetchedPartition(partition_index=index, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    return wire.FetchedPartition(
        partition_index=index,
        high_watermark=result.max_offset,
        last_stable_offset=result.max_offset,
        log_start_offset=max(0, result.min_offset),
        records=fetched_records(result.data) if result.count else b"",
    )

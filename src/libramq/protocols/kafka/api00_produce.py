"""Produce (0): checks record batches (size, timestamp, sequence), converts them to messages, and answers once
they are stored (acks).

    request ─► decode (large ones on a thread) ─► append, partition by partition ─► all safe ─► answer

If an idempotent producer's batch was stored before, the answer is the same as the first time
(`idempotent_producers`). acks 1 and acks all both mean the durability of the broker's flush and replication
settings. acks 0 is not answered.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple

from libramq.auth.authorizer import Authorizer, is_permitted, require_permission
from libramq.auth.operation import Send
from libramq.batches.kafka_batch import batch_properties
from libramq.broker.cluster.kafka.nodes import is_visible
from libramq.broker.messages.drafts import Draft
from libramq.broker.messages.sending import Sending
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.kernel.work import InThread, Work, portions
from libramq.protocols.kafka.answers import Slot, serves
from libramq.protocols.kafka.api22_producers import Producers
from libramq.protocols.kafka.idempotent_producers import StoredBatch
from libramq.protocols.kafka.node import KafkaNodes
from libramq.protocols.kafka.records import draft_of, marked
from libramq.protocols.kafka.refusals import REFUSALS, Refused, code_of
from libramq.store.log.append import AppendResult, AppendStatus
from libramq.store.message_store import MessageStore
from libramq.wire.kafka.apis import produce as wire
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import (
    Budget,
    InvalidBatch,
    Record,
    Stamp,
    check_batch,
    checking_cost,
    decode_batch,
    stamp_of,
    unpacking_cost,
)
from libramq.wire.kafka.schema import by_topic

#: Ours: requests up to this cost are decoded at once, in a few milliseconds; larger and compressed ones on a
#: thread.
AT_ONCE_BYTES_MAX: Final = 64 * 1024
#: Ours: topics whose permission is checked at once, and portions of partitions that are looked up at once, at
#: 10 µs each; more take several turns.
AT_ONCE_MAX: Final = 16
#: Ours: partitions of a request that is decoded at once.
PARTITIONS_AT_ONCE_MAX: Final = 256
#: message.timestamp.after.max.ms of Kafka 4: a clock further ahead is wrong.
AHEAD_MS_MAX: Final = 3_600_000
#: RecordBatch.NO_TIMESTAMP: the timestamp of a record without one.
NO_TIMESTAMP_MS: Final = -1


class Batch(NamedTuple):
    """A partition's messages, or one record of a batch queue. stamp: that of an idempotent producer."""

    queue_id: int
    drafts: Sequence[Draft]
    stamp: Stamp | None


class RefusedBatch(NamedTuple):
    """The refusal of a partition's batch; not its exception, which would hold decoded data in a cycle."""

    code: ErrorCode
    remark: str


#: A partition's batch or its refusal.
Found = Batch | RefusedBatch
#: The positions of a topic and a partition in the request.
Place = tuple[int, int]


class Produces:
    """Answers Produce."""

    def __init__(
        self,
        sending: Sending,
        store: MessageStore,
        producers: Producers,
        authorizer: Authorizer,
        kernel: Kernel,
        nodes: KafkaNodes,
    ) -> None:
        self._nodes = nodes
        self._producers = producers
        self._sending = sending
        self._authorizer = authorizer
        self._store = store
        self._clock = kernel.clock

    @serves(wire.ProduceRequest)
    def produce(self, request: wire.ProduceRequest, slot: Slot) -> None:
        """Store the batches of a request."""
        if request.acks not in (-1, 0, 1):
            _Production(request, slot).refuse_all(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks}")
            return
        names = list({topic.name for topic in request.topics})

        def look_up(are_allowed: Sequence[bool]) -> None:
            allowed = {name for name, is_allowed in zip(names, are_allowed, strict=True) if is_allowed}
            places = [
                (topic_at, some)
                for topic_at, topic in enumerate(request.topics)
                for some in portions(range(len(topic.partitions)))
            ]
            find = partial(self._queues, request, allowed)
            slot.each(places, find, partial(self._decode, request, slot, allowed), AT_ONCE_MAX)

        def may_send(name: str) -> bool:  # If not, nothing is looked up or decoded.
            return is_permitted(self._authorizer, Send(slot.principal, name))

        slot.each(names, may_send, look_up, AT_ONCE_MAX)

    def _queues(
        self, request: wire.ProduceRequest, allowed: Set[str], some: tuple[int, range]
    ) -> Mapping[Place, int | ErrorCode]:
        """Return the queues of a topic's partitions, or the errors of those that are not here."""
        topic_at, positions = some
        topic = request.topics[topic_at]
        if topic.name not in allowed:
            return {(topic_at, at): ErrorCode.TOPIC_AUTHORIZATION_FAILED for at in positions}
        return {(topic_at, at): self._nodes.queue(topic.name, topic.partitions[at].index) for at in positions}

    def _decode(
        self,
        request: wire.ProduceRequest,
        slot: Slot,
        allowed: Set[str],
        found: Sequence[Mapping[Place, int | ErrorCode]],
    ) -> None:
        """Decode the batches, on a thread if that takes long, and store them."""
        queues = {place: queue for some in found for place, queue in some.items()}
        whole = {topic.name for topic in request.topics if self._store.is_in_batches(topic.name)}
        cost = sum(
            (checking_cost if topic.name in whole else unpacking_cost)(partition.records or b"")
            for topic in request.topics
            if topic.name in allowed
            for partition in topic.partitions
        )
        decode = partial(_decode, request, queues, whole, int(self._clock.wall_ms()) + AHEAD_MS_MAX)
        if cost <= AT_ONCE_BYTES_MAX and len(queues) <= PARTITIONS_AT_ONCE_MAX:
            self._append(request, slot, decode())
        else:
            slot.proceed(self._decoded_first(request, slot, decode))

    def _decoded_first(
        self, request: wire.ProduceRequest, slot: Slot, decode: Callable[[], Mapping[Place, Found]]
    ) -> Work[None]:
        """Decode the batches on a thread and store them; any exception there is a bug of ours."""
        self._append(request, slot, (yield InThread(Thread.COMPUTE, decode)))

    def _append(self, request: wire.ProduceRequest, slot: Slot, batches: Mapping[Place, Found]) -> None:
        """Store the batches; many of them in several turns."""
        production = _Production(request, slot)

        def append(found: tuple[Place, Found]) -> None:
            place, batch = found
            self._append_to(place, batch, request.topics[place[0]].name, production)

        slot.each(list(batches.items()), append, lambda _: production.answer_if_done())

    def _append_to(self, place: Place, batch: Found, topic: str, production: "_Production") -> None:
        if isinstance(batch, RefusedBatch):
            production.refuse(place, batch.code, batch.remark)
            return
        try:
            require_permission(self._authorizer, Send(production.connection.principal, topic))
            if not is_visible(topic):
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic} is not for Kafka's clients")
            self._store_batch(batch, topic, production, place)
        except REFUSALS as refused:
            production.refuse(place, code_of(refused), str(refused))

    def _store_batch(self, batch: Batch, topic: str, production: "_Production", place: Place) -> None:
        """Store a batch, or its missing part."""
        queue_id, drafts, stamp = batch
        waiter = _Waiter(production, place, self._store.min_offset(topic, queue_id))
        wall_ms, now_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        if stamp is None:
            self._sending.append(drafts, waiter, wall_ms=wall_ms, now_ms=now_ms)
            return
        known = self._producers.sequences.judge(topic, queue_id, stamp)
        if known is not None:
            waiter.base_offset = known.offset
        if known is not None and known.stored == known.records:
            result = AppendResult(AppendStatus.PUT_OK, known.end, 0, known.offset)
            self._sending.answer_when_safe([result], result.end, waiter)
            return
        done = known.stored if known is not None else 0
        offset = self._store.next_offset(topic, queue_id)
        first = known or StoredBatch(stamp.first, stamp.records, 0, offset, 0)

        def stored(count: int, end: int) -> None:
            now = first._replace(stored=done + count, end=end)
            self._producers.sequences.note(topic, queue_id, stamp, now, int(wall_ms))
            self._producers.changed()

        rest = stamp._replace(first=stamp.first + done, records=stamp.records - done)
        left = marked(drafts if drafts[0].record_count else drafts[done:], rest, offset)
        self._sending.append(left, waiter, wall_ms=wall_ms, now_ms=now_ms, stored=stored)


def _decode(
    request: wire.ProduceRequest,
    queues: Mapping[Place, int | ErrorCode],
    whole: Set[str],
    timestamp_ms_max: int,
) -> Mapping[Place, Found]:
    """Return the batch of each partition; one size limit applies to all of them together.

    queues: those of the partitions, or their errors. whole: topics whose batches are stored as they are.
    """
    batches: dict[Place, Found] = {}
    budget = Budget()
    for topic_at, topic in enumerate(request.topics):
        for partition_at, partition in enumerate(topic.partitions):
            found: Found
            data = partition.records or b""
            queue_id = queues[topic_at, partition_at]
            if isinstance(queue_id, ErrorCode):
                is_denied = queue_id is ErrorCode.TOPIC_AUTHORIZATION_FAILED
                why = "you may not send to it" if is_denied else "it is not at this broker"
                remark = f"partition {partition.index} of {topic.name}: {why}"
                batches[topic_at, partition_at] = RefusedBatch(queue_id, remark)
                continue
            try:
                if topic.name in whole:
                    batches[topic_at, partition_at] = _whole(topic.name, queue_id, data, timestamp_ms_max)
                    continue
                records = decode_batch(data, budget)
                drafts = _drafts(topic.name, queue_id, records, timestamp_ms_max)
                found = Batch(queue_id, drafts, stamp_of(data))
            except InvalidBatch as invalid:
                found = RefusedBatch(invalid.code, str(invalid))
            batches[topic_at, partition_at] = found
    return batches


def _whole(topic: str, queue_id: int, data: bytes, timestamp_ms_max: int) -> Batch:
    count, first_ms, latest_ms = check_batch(data)
    for timestamp_ms in (first_ms, latest_ms):
        if not NO_TIMESTAMP_MS <= timestamp_ms <= timestamp_ms_max:
            raise InvalidBatch(ErrorCode.INVALID_TIMESTAMP, f"a batch has the timestamp {timestamp_ms} ms")
    draft = Draft(topic, queue_id, data, batch_properties(count), latest_ms, record_count=count)
    return Batch(queue_id, [draft], stamp_of(data))


def _drafts(topic: str, queue_id: int, records: Sequence[Record], timestamp_ms_max: int) -> Sequence[Draft]:
    for record in records:
        if not NO_TIMESTAMP_MS <= record.timestamp_ms <= timestamp_ms_max:
            raise InvalidBatch(
                ErrorCode.INVALID_TIMESTAMP, f"a record has the timestamp {record.timestamp_ms} ms"
            )
    return [draft_of(topic, queue_id, record) for record in records]


class _Production:
    """Collects the results of one request."""

    def __init__(self, request: wire.ProduceRequest, slot: Slot) -> None:
        self._request = request
        self._slot = slot
        self._results: dict[Place, wire.ProducedPartition] = {}
        self._count = sum(len(topic.partitions) for topic in request.topics)
        self._is_begun = False

    @property
    def connection(self) -> Connection:
        """Return the producer's connection."""
        return self._slot.connection

    def refuse_all(self, code: ErrorCode, remark: str) -> None:
        """Answer every partition with one error."""
        for topic_at, topic in enumerate(self._request.topics):
            for partition_at in range(len(topic.partitions)):
                self.refuse((topic_at, partition_at), code, remark)
        self.answer_if_done()

    def refuse(self, place: Place, code: ErrorCode, remark: str) -> None:
        """Note that a partition's records are not stored, or not as durable as promised."""
        self.note(place, error_code=code, error_message=remark)

    def note(self, place: Place, **result: Any) -> None:
        """Note the result of a partition, its members by name; answer after the last one."""
        topic_at, partition_at = place
        index = self._request.topics[topic_at].partitions[partition_at].index
        self._results[place] = wire.ProducedPartition(index=index, **result)
        if self._is_begun:
            self.answer_if_done()

    def answer_if_done(self) -> None:
        """Answer if all results are known; from now on, `note` answers after the last one."""
        self._is_begun = True
        if len(self._results) < self._count:
            return
        if self._request.acks == 0:
            self._end_without_answer()
            return
        self._slot.answer_with(self._response, self._count)

    def _response(self) -> wire.ProduceResponse:
        results = (self._results[place] for place in sorted(self._results))
        return wire.ProduceResponse(responses=by_topic(self._request.topics, results))

    def _end_without_answer(self) -> None:
        """End a request with acks 0. A refusal ends the connection, so that the client looks for a new leader
        (KafkaApis.handleProduceRequest).
        """
        codes = {result.error_code for result in self._results.values()} - {ErrorCode.NONE}
        if codes:
            names = ", ".join(sorted(ErrorCode(code).name for code in codes))
            self._slot.drop(f"a Produce request with acks 0 is refused: {names}")
        else:
            self._slot.send(b"")


class _Waiter:
    """Takes the result of one partition; a `kernel.purgatory.Waiter`."""

    def __init__(self, production: _Production, place: Place, start: int) -> None:
        self._production = production
        self._place = place
        self._start = start
        #: The first offset of a batch that was stored before, entirely or in part.
        self.base_offset: int | None = None

    @property
    def connection(self) -> Connection:
        """Return the producer's connection."""
        return self._production.connection

    def answer(self, results: Sequence[AppendResult]) -> None:
        """Note the offset of the records."""
        offset = results[0].queue_offset if self.base_offset is None else self.base_offset
        self._production.note(self._place, base_offset=offset, log_start_offset=self._start)

    def refuse(self, error: Exception) -> None:
        """Note that the records are not as durable as promised."""
        self._production.refuse(self._place, code_of(error), str(error))

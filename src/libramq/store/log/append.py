"""The append: messages passed to the store, singly or in runs, and the outcome of each (AppendStatus); the
copying of stored messages to other queues, which leaves out messages with damaged bodies.

A run holds the messages of one batch send to one queue, which are stored together or not at all. Shared
fields are kept once, the others in columns, which are packed together (`packing`): separate objects for each
message and result took most of a batch's time in the broker.

Upstream: store/MessageExtBrokerInner.java, PutMessageResult.java, PutMessageStatus.java.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, final

import msgspec

from libramq.clock import WallMs
from libramq.codes import ResponseCode
from libramq.errors import RemoteProtocolError
from libramq.kernel.purgatory import Missing
from libramq.logs import get_logger
from libramq.message.ids import encode_host, encode_offset_id, encode_offset_ids
from libramq.message.message import MessageExt
from libramq.message.properties import (
    INNER_BASE,
    INNER_MULTI_QUEUE_OFFSET,
    PROPERTIES_BYTES_MAX,
    TAGS,
    encode_properties,
)
from libramq.message.record import decode_record
from libramq.message.tags import tag_code

log = get_logger(__name__)

#: Properties that a record has because of its queues.
_OF_ITS_QUEUE: Final = frozenset({INNER_MULTI_QUEUE_OFFSET, INNER_BASE})


class AppendStatus(Enum):
    """The outcome of an append; the names are upstream's."""

    PUT_OK = auto()
    FLUSH_DISK_TIMEOUT = auto()
    FLUSH_SLAVE_TIMEOUT = auto()
    SLAVE_NOT_AVAILABLE = auto()
    IN_SYNC_REPLICAS_NOT_ENOUGH = auto()
    SERVICE_NOT_AVAILABLE = auto()
    MESSAGE_ILLEGAL = auto()
    PROPERTIES_SIZE_EXCEEDED = auto()
    UNKNOWN_ERROR = auto()


#: The replies for messages that are stored, but less safely than required
#: (SendMessageProcessor.handlePutMessageResult).
NOT_SAFE: Final = {
    Missing.ANSWER: (ResponseCode.FLUSH_DISK_TIMEOUT, "stored, but the disk did not confirm it"),
    Missing.DISK: (ResponseCode.FLUSH_DISK_TIMEOUT, "stored, but the disk has failed"),
    Missing.SLAVE: (ResponseCode.FLUSH_SLAVE_TIMEOUT, "stored, but too few slaves confirmed it in time"),
    Missing.NO_SLAVE: (ResponseCode.SLAVE_NOT_AVAILABLE, "stored, but too few slaves are in sync"),
}


#: SendMessageProcessor.handlePutMessageResult: nothing is stored.
NOT_ENOUGH_REPLICAS: Final = "in-sync replicas not enough"


class StoreMessage(msgspec.Struct, gc=False):
    """A message to be stored.

    born_host: address and port as 8 or 20 bytes (message.ids.encode_host). body: as stored, compressed if the
    system flag says so. properties_text: already encoded (message.properties). count: the number of messages
    in an inner batch (message.inner_batch); more than 1 only for batch queues. tag_code:
    message.tags.tag_code of the tags, or the value that the topic's dispatcher derives. It is a Struct
    because one is created for every incoming message.
    """

    topic: str
    queue_id: int
    body: bytes
    properties_text: bytes = b""
    tag_code: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    count: int = 1


def stored_again(
    message: MessageExt,
    topic: str,
    queue_id: int,
    properties: Mapping[str, str],
    *,
    expendable: Collection[str] = (),
    reconsume_times: int | None = None,
) -> StoreMessage:
    """Return a copy of a stored message for another queue; its body is as stored, so it may be compressed.

    expendable: properties that are dropped if all of them would be too long, rather than lose the message.
    reconsume_times: None keeps the message's own.
    """
    # The copy gets new light queue offsets, or none (store.queues.light_queues).
    properties = {k: v for k, v in properties.items() if k not in _OF_ITS_QUEUE}
    text = encode_properties(properties)
    if len(text) > PROPERTIES_BYTES_MAX:
        text = encode_properties({k: v for k, v in properties.items() if k not in expendable})
    return StoreMessage(
        topic,
        queue_id,
        message.body,
        text,
        tag_code(properties.get(TAGS)),
        message.flag,
        message.sys_flag,
        message.born_timestamp_ms,
        encode_host(message.born_host),
        message.reconsume_times if reconsume_times is None else reconsume_times,
    )


def undamaged(pieces: Sequence[bytes | memoryview]) -> list[MessageExt]:
    """Decode records that are to be stored again or acted upon, leaving out records with a damaged body.

    A copy of a damaged record would get a valid checksum and hide the damage. Bodies stay as stored. Pulls,
    in contrast, send records unchanged, and consumers verify the checksum.
    """
    data, messages, position = b"".join(pieces), [], 0
    while position < len(data):
        try:
            decoded = decode_record(data, position, decompress=False, check_crc=True)
        except RemoteProtocolError as error:
            log.error("a damaged message is left out", reason=str(error))
            position += max(1, int.from_bytes(data[position : position + 4]))  # Reads return whole records.
            continue
        if decoded is None:
            break
        message, position = decoded
        messages.append(message)
    return messages


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """The position of a message. `end` ≤ store.flushed_offset means that it is on the disk."""

    status: AppendStatus
    physical_offset: int = -1
    size: int = 0
    queue_offset: int = -1
    store_timestamp_ms: WallMs = WallMs(0)
    store_host: bytes = bytes(8)

    @property
    def is_ok(self) -> bool:
        """Return whether the message was written."""
        return self.status is AppendStatus.PUT_OK

    @property
    def end(self) -> int:
        """Return the physical offset after the message."""
        return self.physical_offset + self.size

    @property
    def offset_id(self) -> str:
        """Return the offset message id."""
        return encode_offset_id(self.store_host, self.physical_offset)

    @property
    def offset_ids(self) -> str:
        """Return the offset message ids of all its messages, separated by commas."""
        return encode_offset_id(self.store_host, self.physical_offset)

    def __repr__(self) -> str:
        return f"AppendResult({self.status.name}, {self.physical_offset}+{self.size}, #{self.queue_offset})"


MESSAGE_ILLEGAL: Final = AppendResult(AppendStatus.MESSAGE_ILLEGAL)
PROPERTIES_SIZE_EXCEEDED: Final = AppendResult(AppendStatus.PROPERTIES_SIZE_EXCEEDED)
SERVICE_NOT_AVAILABLE: Final = AppendResult(AppendStatus.SERVICE_NOT_AVAILABLE)
IN_SYNC_REPLICAS_NOT_ENOUGH: Final = AppendResult(AppendStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)


@final
class MessageRun(NamedTuple):
    """Messages in order, with a column for each field that may differ.

    suffix: the end of the properties of every message. The shared fields are as in StoreMessage.
    """

    topic: str
    queue_id: int
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    tag_codes: Sequence[int]
    flags: Sequence[int]
    suffix: bytes = b""
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class RunResult(AppendResult, frozen=True, gc=False):
    """The positions of a stored run; `end` is the last message's, all other fields are the first's."""

    positions: list[int] = msgspec.field(default_factory=list)

    @property
    def offset_ids(self) -> str:
        """Return the offset message ids of all messages, as in the send response."""
        return encode_offset_ids(self.store_host, self.positions)


def run_of_one(message: StoreMessage) -> MessageRun:
    """Return a message as a run."""
    return MessageRun(
        message.topic,
        message.queue_id,
        (message.body,),
        (message.properties_text,),
        (message.tag_code,),
        (message.flag,),
        b"",
        message.sys_flag,
        message.born_timestamp_ms,
        message.born_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
    )


def halves_of(message: StoreMessage | MessageRun) -> Sequence[MessageRun]:
    """Return the two halves of a run; empty for a single message."""
    if isinstance(message, StoreMessage) or len(message.bodies) < 2:
        return ()
    middle = len(message.bodies) // 2
    return part_of(message, slice(middle)), part_of(message, slice(middle, None))


def part_of(run: MessageRun, part: slice) -> MessageRun:
    """Return some of a run's messages."""
    return run._replace(
        bodies=run.bodies[part],
        properties=run.properties[part],
        tag_codes=run.tag_codes[part],
        flags=run.flags[part],
    )


def joined(results: Sequence[AppendResult]) -> AppendResult:
    """Return the result of a run that was stored in parts; the first refusal, if any."""
    refused = next((each for each in results if not isinstance(each, RunResult)), None)
    if refused is not None:
        return refused
    first = results[0]
    positions = [at for each in results if isinstance(each, RunResult) for at in each.positions]
    return RunResult(
        first.status, first.physical_offset, results[-1].end - first.physical_offset, first.queue_offset,
        first.store_timestamp_ms, first.store_host, positions,
    )  # fmt: skip
